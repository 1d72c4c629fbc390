// Tokenizers in the style of every family against the PyPI package tokenizers (tests/vectors/make_families.py
// states the files), from tokenizer.json and, under each of its names, from GGUF.
#include "models/convert/gguf_tokenizer.h"

#include <set>

#include "models/convert/pre_tokenizers.h"
#include "tests/support/tokenizer_families.h"

namespace kvc {
namespace {

// What the package puts before a text, with special tokens.
void ExpectBegins(const std::string& family, const TokenizerSpec& spec) {
  const Json begins = Json::parse(ReadTestFile(kFamilies + "begins.json"));
  const std::vector<int32_t> ids = begins[family].get<std::vector<int32_t>>();
  const std::shared_ptr<const Tokenizer> tokenizer = MakeTokenizer(spec);
  ASSERT_NE(tokenizer, nullptr);
  EXPECT_EQ(spec.add_bos, !ids.empty()) << family;
  if (!ids.empty()) {
    EXPECT_EQ(Encode(*tokenizer, "", kAddBos), ids) << family;
    EXPECT_EQ(spec.begin_tokens.size(), ids.size() > 1 ? ids.size() : 0);
  }
}

void ExpectSums(const std::string& family, const TokenizerSpec& spec, const std::string& source) {
  static const std::vector<std::string> strings = FamilyStrings();
  const std::vector<std::string> sums = Lines(kFamilies + family + ".sums");
  ASSERT_EQ(strings.size(), sums.size());
  ASSERT_GE(strings.size(), 2000u);
  const std::shared_ptr<const Tokenizer> tokenizer = MakeTokenizer(spec);
  ASSERT_NE(tokenizer, nullptr);
  int failures = 0, checked = 0;
  for (size_t i = 0; i < strings.size() && failures < 10; ++i) {
    if (sums[i] == "-") continue;
    ++checked;
    const std::string got = SumsOf(*tokenizer, strings[i]);
    EXPECT_EQ(got, sums[i]) << source << ", string " << i + 1 << ": make_families.py --explain " << family
                            << " " << i + 1,
        failures += got != sums[i];
  }
  EXPECT_TRUE(failures > 0 || checked >= 2000) << checked;
}

std::vector<uint8_t> LittleEndian(const std::vector<int32_t>& values) {
  std::vector<uint8_t> bytes;
  for (const int32_t value : values) {
    for (int shift = 0; shift < 32; shift += 8)
      bytes.push_back(static_cast<uint8_t>(static_cast<uint32_t>(value) >> shift));
  }
  return bytes;
}

GgufValue Texts(std::vector<std::string> texts, bool is_array = true) {
  GgufValue value;
  value.type = GgufType::kString, value.is_array = is_array, value.strings = std::move(texts);
  return value;
}

// What a GGUF file holds of a tokenizer.json: names, types and merges, and the name `pre` for the rest.
GgufHeader AsGguf(const Json& json, const std::string& pre) {
  const Json& vocab = json["model"]["vocab"];
  std::vector<std::string> tokens(vocab.size() + json["added_tokens"].size());
  std::vector<int32_t> types(tokens.size(), 1);
  size_t n = 0;
  for (const auto& [token, id] : vocab.items())
    tokens[id.get<size_t>()] = token, n = std::max(n, id.get<size_t>() + 1);
  for (const Json& token : json["added_tokens"]) {
    const auto id = token["id"].get<size_t>();
    tokens[id] = token["content"].get<std::string>();
    types[id] = token["special"].get<bool>() ? 3 : 4;
    n = std::max(n, id + 1);
  }
  tokens.resize(n), types.resize(n);
  std::vector<std::string> merges;
  for (const Json& merge : json["model"]["merges"])
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  GgufHeader header;
  header.metadata["tokenizer.ggml.model"] = Texts({"gpt2"}, false);
  header.metadata["tokenizer.ggml.pre"] = Texts({pre}, false);
  header.metadata["tokenizer.ggml.tokens"] = Texts(tokens);
  header.metadata["tokenizer.ggml.merges"] = Texts(merges);
  GgufValue& kinds = header.metadata["tokenizer.ggml.token_type"];
  kinds.type = GgufType::kI32, kinds.is_array = true, kinds.numbers = LittleEndian(types);
  return header;
}

std::string TestName(std::string name) {
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) != 0 ? c : '_';
  return name;
}

class TokenizerFamilies : public testing::TestWithParam<std::string> {};

TEST_P(TokenizerFamilies, AgreeWithTheLibrary) {
  const auto spec = ReadHfTokenizer(ReadTestFile(kFamilies + GetParam() + ".json"));
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  ExpectSums(GetParam(), spec.value(), "tokenizer.json");
  ExpectBegins(GetParam(), spec.value());
}

// The names of one family are the same rules; each of them says so in GGUF.
TEST_P(TokenizerFamilies, AgreeFromGguf) {
  const Json json = ReadFamiliesJson(GetParam() + ".json");
  const auto own = ReadHfTokenizer(json.dump());
  ASSERT_TRUE(own.ok());
  const Json families = ReadFamiliesJson("families.json");
  for (const Json& pre : families[GetParam()]) {
    const GgufHeader header = AsGguf(json, pre);
    GgufMetadata metadata(header, "x.gguf");
    const auto spec = ReadGgufTokenizer(&metadata);
    ASSERT_TRUE(spec.ok()) << pre << ": " << spec.status().message();
    EXPECT_EQ(spec.value().ignore_merges, own.value().ignore_merges) << pre;
    EXPECT_EQ(spec.value().nfc, own.value().nfc) << pre;
    EXPECT_EQ(spec.value().merges, own.value().merges) << pre;
    EXPECT_EQ(spec.value().pieces, own.value().pieces) << pre;
    EXPECT_EQ(spec.value().piece_kinds, own.value().piece_kinds) << pre;
    ExpectSums(GetParam(), spec.value(), pre);
  }
}

INSTANTIATE_TEST_SUITE_P(All, TokenizerFamilies, testing::ValuesIn(TokenizerFamilyNames()),
                         [](const auto& test) { return TestName(test.param); });

// GGUF has one place for what begins a text, and llama.cpp's converter writes another token there for GLM-4.
TEST(PreTokenizers, GlmBeginsTextsWithTwoTokens) {
  const Json json = ReadFamiliesJson("glm4.json");
  const auto own = ReadHfTokenizer(json.dump());
  ASSERT_TRUE(own.ok()) << own.status().message();
  const std::vector<int32_t> ids = own.value().begin_tokens;
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(own.value().pieces[static_cast<size_t>(ids[0])], "[gMASK]");
  EXPECT_EQ(own.value().pieces[static_cast<size_t>(ids[1])], "<sop>");
  for (const char* pre : {"glm4", "glm5", "chatglm-bpe", "dbrx"}) {
    for (const bool adds : {false, true}) {
      GgufHeader header = AsGguf(json, pre);
      GgufValue& bos = header.metadata["tokenizer.ggml.bos_token_id"];
      bos.type = GgufType::kU32, bos.numbers = LittleEndian({3});
      GgufValue& add = header.metadata["tokenizer.ggml.add_bos_token"];
      add.type = GgufType::kBool, add.numbers = {static_cast<uint8_t>(adds)};
      GgufMetadata metadata(header, "x.gguf");
      const auto spec = ReadGgufTokenizer(&metadata);
      ASSERT_TRUE(spec.ok()) << spec.status().message();
      const bool glm = std::string(pre) != "dbrx";
      EXPECT_EQ(spec.value().begin_tokens, glm ? ids : std::vector<int32_t>()) << pre;
      EXPECT_EQ(spec.value().bos, glm ? ids[0] : 3) << pre;
      EXPECT_EQ(spec.value().add_bos, adds) << pre;
    }
  }
  GgufHeader without = AsGguf(ReadFamiliesJson("smollm3.json"), "glm4");
  GgufMetadata metadata(without, "x.gguf");
  EXPECT_TRUE(ReadGgufTokenizer(&metadata).value().begin_tokens.empty())
      << "its vocabulary has no such tokens";
}

TEST(PreTokenizers, EachNameHasOneFamily) {
  std::multiset<std::string> listed, tested;
  for (const PreTokenizerRules& rules : KnownPreTokenizers()) listed.insert(rules.name);
  const Json families = ReadFamiliesJson("families.json");
  for (const auto& [family, names] : families.items()) {
    for (const Json& name : names) tested.insert(name.get<std::string>());
  }
  EXPECT_EQ(listed, tested);
  EXPECT_EQ(std::set<std::string>(listed.begin(), listed.end()).size(), listed.size());
}

// Texts on which a pattern that looks twice at what it has seen would take hours.
TEST(PreTokenizers, AreLinear) {
  TokenizerSpec spec = ReadHfTokenizer(ReadTestFile(kFamilies + "gpt-2.json")).value();
  std::set<std::vector<const char*>> seen;
  for (const PreTokenizerRules& rules : KnownPreTokenizers()) {
    if (!seen.insert(rules.patterns).second) continue;
    spec.patterns.assign(rules.patterns.begin(), rules.patterns.end());
    spec.n_byte_patterns = rules.n_byte_patterns;
    const auto tokenizer = MakeTokenizer(spec);
    for (const std::string unit : {"a", "A", "aB", " ", " \t", "\n", "\r\n ", "1", "'", "!", "/", "\xCC\x81",
                                   "\xE4\xB8\x80", "\xEA\xB0\x80", "\xE2\x80\x83", "'s", " a"}) {
      std::string text;
      while (text.size() < 256 * 1024) text += unit;
      text += "x";
      EXPECT_EQ(Decode(*tokenizer, Encode(*tokenizer, text)), text) << rules.name << ": " << unit;
    }
  }
}

TEST(PreTokenizers, AnUnknownNameIsRefusedWithTheList) {
  const Json json = ReadFamiliesJson("gpt-2.json");
  for (const char* name : {"afmoe", "kimi-k2", "superbpe", "", "default"}) {
    const GgufHeader header = AsGguf(json, name);
    GgufMetadata metadata(header, "x.gguf");
    const Status status = ReadGgufTokenizer(&metadata).status();
    EXPECT_EQ(status.code(), Code::kUnsupported) << name;
    for (const PreTokenizerRules& rules : KnownPreTokenizers())
      EXPECT_NE(status.message().find(rules.name), std::string::npos) << status.message();
  }
}

}  // namespace
}  // namespace kvc
