// Every string of tests/data/tokenizers/strings.txt through every tokenizer, against what the PyPI packages
// tokenizers and sentencepiece made of it (tests/vectors/make_tokenizer_vectors.py states the format).
#include <cstdlib>
#include <sstream>

#include "tests/support/tokenizers.h"

namespace kvc {
namespace {

std::vector<std::string> Lines(const std::string& path) {
  std::vector<std::string> lines;
  std::istringstream in(ReadTestFile(path));
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string Unescape(const std::string& s) {
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '\\') {
      out += s[i];
    } else if (s[i + 1] == '\\') {
      out += '\\', i += 1;
    } else {
      out += static_cast<char>(std::stoi(s.substr(i + 2, 2), nullptr, 16)), i += 3;
    }
  }
  return out;
}

std::vector<int32_t> Ids(const std::string& s) {
  std::istringstream in(s);
  std::vector<int32_t> ids;
  for (int32_t id; in >> id;) ids.push_back(id);
  return ids;
}

// Of a text whose first n bytes are trusted.
std::vector<int32_t> EncodeTrusted(const Tokenizer& tokenizer, const std::string& text, size_t n) {
  const TextRange trusted{0, static_cast<uint32_t>(n)};
  TokenList list;
  EXPECT_TRUE(tokenizer.EncodeParts(Bytes(text), {&trusted, 1}, 0, &list).ok());
  std::vector<int32_t> ids(list.size());
  list.CopyTo(ids.data());
  return ids;
}

class TokenizerVectors : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerVectors, AgreeWithTheLibrary) {
  const std::shared_ptr<const Tokenizer> tokenizer = MakeTestTokenizer(GetParam());
  ASSERT_NE(tokenizer, nullptr);
  const std::vector<std::string> strings = Lines(TokenizerData("strings.txt"));
  const std::vector<std::string> vectors = Lines(TokenizerData(std::string(GetParam()) + ".ids"));
  ASSERT_EQ(strings.size(), vectors.size());
  ASSERT_GE(strings.size(), 2000u);
  int failures = 0;
  for (size_t i = 0; i < strings.size() && failures < 20; ++i) {
    const std::string text = Unescape(strings[i]);
    std::vector<std::string> fields;
    std::istringstream in(vectors[i]);
    for (std::string field; std::getline(in, field, '\t');) fields.push_back(field);
    if (fields.empty()) fields.push_back("");
    const std::vector<int32_t> plain = Ids(fields[0]);
    std::vector<int32_t> special = plain;
    const bool has_special =
        GetParam() != std::string("tok512") && std::string(GetParam()).rfind("sp_", 0) != 0;
    std::string decoded = text;
    std::vector<int32_t> continued = plain;
    for (size_t f = 1; f < fields.size(); ++f) {
      if (fields[f][0] == 'C') continued = Ids(fields[f].substr(1));
      if (fields[f][0] == 'S') special = Ids(fields[f].substr(1));
      if (fields[f][0] == 'D') decoded = Unescape(fields[f].size() > 2 ? fields[f].substr(2) : "");
    }
    const std::vector<int32_t> ids = Encode(*tokenizer, text);
    EXPECT_EQ(ids, plain) << "string " << i + 1 << ": " << strings[i], failures += ids != plain;
    if (has_special) {
      EXPECT_EQ(Encode(*tokenizer, text, kParseSpecial), special) << "string " << i + 1 << ": " << strings[i];
    }
    const std::vector<int32_t> trusted = EncodeTrusted(*tokenizer, text, text.size());
    if (has_special) {
      EXPECT_EQ(trusted, special) << "string " << i + 1 << ": " << strings[i];
    }
    EXPECT_EQ(EncodeTrusted(*tokenizer, text, 0), plain) << "string " << i + 1 << ": " << strings[i];
    if (trusted == plain) {  // no special token in it: where trust ends makes no border
      EXPECT_EQ(EncodeTrusted(*tokenizer, text, text.size() / 2), plain) << "string " << i + 1;
    }
    if (!tokenizer->spec().remove_extra_spaces) {  // the packages have no such text where they trim
      EXPECT_EQ(Encode(*tokenizer, text, kContinue), continued) << "string " << i + 1 << ": " << strings[i];
    }
    const std::string back = Decode(*tokenizer, plain);
    EXPECT_EQ(back, decoded) << "string " << i + 1 << ": " << strings[i], failures += back != decoded;
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerVectors,
                         testing::Values("recall", "gpt2", "llama3", "qwen2", "chain", "llama_hf", "tok512",
                                         "sp_fallback", "sp_unused", "sp_squeeze", "sp_plain"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace kvc
