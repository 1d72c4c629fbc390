// Tokenizers of the test data, and the strings and ids that belong to them.
#pragma once
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

#include "lib/model/tokenizer.h"
#include "lib/model/tokenizer_patterns.h"
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

// A tokenizer that keeps what it refers to.
inline Result<std::shared_ptr<const Tokenizer>> CreateTokenizer(const TokenizerSpec& spec,
                                                                MemoryMeter* meter = nullptr) {
  struct Holder {
    explicit Holder(const TokenizerSpec& s) : flat(s) {}
    const FlatTokenizer flat;
    std::unique_ptr<Tokenizer> tokenizer;
  };
  const auto holder = std::make_shared<Holder>(spec);
  auto tokenizer = Tokenizer::Create(holder->flat.view(), meter);
  if (!tokenizer.ok()) return tokenizer.status();
  holder->tokenizer = std::move(tokenizer.value());
  return std::shared_ptr<const Tokenizer>(holder, holder->tokenizer.get());
}

inline std::shared_ptr<const Tokenizer> MakeTokenizer(const TokenizerSpec& spec) {
  auto tokenizer = CreateTokenizer(spec);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  return tokenizer.ok() ? tokenizer.value() : nullptr;
}

inline std::shared_ptr<const Tokenizer> MakeTestTokenizer(const std::string& name) {
  auto spec = ReadTestSpec(name);
  EXPECT_TRUE(spec.ok()) << name << ": " << spec.status().message();
  return spec.ok() ? MakeTokenizer(spec.value()) : nullptr;
}

// A byte-level vocabulary as large as today's: the 256 bytes, then `n` pieces of up to 14 letters, each a
// merge of two of up to 7 before it, then `n_special` control pieces "<|0|>", "<|1|>", ...
inline TokenizerSpec GrownByteLevel(size_t n, size_t n_special) {
  TokenizerSpec spec;
  std::unordered_set<std::string> seen;
  std::vector<int32_t> parts = {' '};
  for (int b = 0; b < 256; ++b) spec.pieces.push_back(std::string(1, static_cast<char>(b)));
  for (int32_t c = 'a'; c <= 'z'; ++c) parts.push_back(c);
  std::mt19937 random(7);
  while (spec.pieces.size() < 256 + n) {
    const int32_t left = parts[random() % parts.size()], right = parts[random() % parts.size()];
    const std::string joined =
        spec.pieces[static_cast<size_t>(left)] + spec.pieces[static_cast<size_t>(right)];
    if (joined.rfind(' ') > 0 && joined.rfind(' ') != std::string::npos) continue;
    if (!seen.insert(joined).second) continue;
    spec.merges.push_back(left), spec.merges.push_back(right);
    if (joined.size() <= 7) parts.push_back(static_cast<int32_t>(spec.pieces.size()));
    spec.pieces.push_back(joined);
  }
  spec.piece_kinds.assign(spec.pieces.size(), PieceKind::kNormal);
  for (size_t i = 0; i < n_special; ++i) spec.pieces.push_back("<|" + std::to_string(i) + "|>");
  spec.piece_kinds.resize(spec.pieces.size(), PieceKind::kControl);
  spec.patterns = {kPatternQwen2};
  spec.nfc = true;
  return spec;
}

inline std::vector<int32_t> Encode(const Tokenizer& tokenizer, const std::string& text, uint32_t flags = 0) {
  std::vector<int32_t> ids;
  const Status status = tokenizer.Encode(Bytes(text), flags, &ids);
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
