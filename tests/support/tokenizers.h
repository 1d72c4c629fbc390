// Tokenizers of the test data, and the strings and ids that belong to them.
#pragma once
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "lib/model/tokenizer.h"
#include "models/convert/tokenizer_hf.h"
#include "models/convert/tokenizer_llama2c.h"
#include "models/convert/tokenizer_sentencepiece.h"

namespace kvc {

inline Span<const uint8_t> Bytes(const std::string& s) {
  return Span<const uint8_t>(reinterpret_cast<const uint8_t*>(s.data()), s.size());
}

inline std::string ReadTestFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.good()) << path;
  return std::string(std::istreambuf_iterator<char>(file), {});
}

inline std::string TokenizerData(const std::string& name) {
  return std::string(KVC_TEST_DATA) + "/tokenizers/" + name;
}

// By the name of its vectors: "recall", "tok512", or a file of tests/data/tokenizers without its ending.
inline Result<TokenizerSpec> ReadTestSpec(const std::string& name) {
  const std::string root = KVC_SOURCE_DIR;
  if (name == "recall") return ReadHfTokenizer(ReadTestFile(root + "/models/recall/tokenizer.json"));
  if (name == "tok512")
    return ReadLlama2cTokenizer(Bytes(ReadTestFile(root + "/models/stories260k/tok512.bin")), 512);
  if (name.rfind("sp_", 0) == 0)
    return ReadSentencePiece(Bytes(ReadTestFile(TokenizerData(name + ".model"))));
  return ReadHfTokenizer(ReadTestFile(TokenizerData(name + ".json")));
}

inline std::unique_ptr<Tokenizer> MakeTokenizer(TokenizerSpec spec) {
  auto tokenizer = Tokenizer::Create(std::move(spec));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? std::move(tokenizer.value()) : nullptr;
}

inline std::unique_ptr<Tokenizer> MakeTestTokenizer(const std::string& name) {
  auto spec = ReadTestSpec(name);
  EXPECT_TRUE(spec.ok()) << name << ": " << spec.status().message();
  return spec.ok() ? MakeTokenizer(spec.value()) : nullptr;
}

inline std::vector<int32_t> Encode(const Tokenizer& tokenizer, const std::string& text,
                                   bool parse_special = false) {
  std::vector<int32_t> ids;
  const Status status = tokenizer.Encode(Bytes(text), false, parse_special, &ids);
  EXPECT_TRUE(status.ok()) << status.message();
  return ids;
}

inline std::string Decode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string text;
  const Status status = tokenizer.Decode(ids, &text);
  EXPECT_TRUE(status.ok()) << status.message();
  return text;
}

}  // namespace kvc
