// The readers of tokenizer.json, tokenizer.model and llama2.c's tokenizer.bin: what they take over, and what
// they refuse.
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "lib/model/tokenizer_patterns.h"
#include "models/convert/tokenizer_pieces.h"
#include "tests/support/tokenizers.h"

namespace kvc {
namespace {

using Json = nlohmann::json;

template <typename T>
void ExpectError(const Result<T>& result, Code code, const std::string& words) {
  ASSERT_FALSE(result.ok()) << words;
  EXPECT_EQ(result.status().code(), code) << result.status().message();
  EXPECT_NE(result.status().message().find(words), std::string::npos) << result.status().message();
}

Json HfJson(const char* name) {
  return Json::parse(ReadTestFile(TokenizerData(std::string(name) + ".json")));
}

template <typename Change>
Result<TokenizerSpec> Changed(const char* name, Change change) {
  Json json = HfJson(name);
  change(json);
  return ReadHfTokenizer(json.dump());
}

TEST(ReadHfTokenizer, TakesOverWhatTheFileSays) {
  const TokenizerSpec llama3 = ReadTestSpec("llama3").value();
  EXPECT_EQ(llama3.kind, TokenizerKind::kByteLevelBpe);
  EXPECT_EQ(llama3.patterns, std::vector<std::string>{kPatternLlama3});
  EXPECT_TRUE(llama3.ignore_merges && llama3.add_bos && !llama3.nfc);
  EXPECT_EQ(llama3.pieces[static_cast<size_t>(llama3.bos)], "<|begin_of_text|>");
  EXPECT_EQ(llama3.pieces[static_cast<size_t>(llama3.eos)], "<|end_of_text|>");
  EXPECT_EQ(llama3.stop_tokens.size(), 2u);
  const TokenizerSpec qwen2 = ReadTestSpec("qwen2").value();
  EXPECT_EQ(qwen2.patterns, std::vector<std::string>{kPatternQwen2});
  EXPECT_TRUE(qwen2.nfc && !qwen2.add_bos && !qwen2.ignore_merges);
  EXPECT_EQ(qwen2.bos, -1);
  EXPECT_EQ(ReadTestSpec("gpt2").value().patterns, std::vector<std::string>{kPatternGpt2});
  EXPECT_EQ(ReadTestSpec("chain").value().patterns.size(), 3u);
  const TokenizerSpec recall = ReadTestSpec("recall").value();
  EXPECT_EQ(recall.pieces.size(), 2048u);
  EXPECT_EQ(recall.bos, 0);
  EXPECT_EQ(recall.eos, 1);
  EXPECT_EQ(recall.pad, 2);
  const TokenizerSpec llama = ReadTestSpec("llama_hf").value();
  EXPECT_EQ(llama.kind, TokenizerKind::kSentencePieceBpe);
  EXPECT_TRUE(llama.add_bos && llama.byte_fallback && llama.add_space_prefix && !llama.remove_extra_spaces);
  EXPECT_EQ(llama.unk, 0);
  EXPECT_EQ(llama.bos, 1);
  EXPECT_EQ(llama.eos, 2);
}

TEST(ReadHfTokenizer, RefusesByName) {
  const auto refused = [](auto change, const char* words) {
    ExpectError(Changed("qwen2", change), Code::kUnsupported, words);
  };
  for (const char* type : {"Unigram", "WordPiece", "WordLevel"}) {
    refused([&](Json& j) { j["model"]["type"] = type; }, type);
  }
  refused([](Json& j) { j["normalizer"] = {{"type", "Lowercase"}}; }, "Lowercase");
  refused(
      [](Json& j) {
        j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFKC"}}}}};
      },
      "NFKC");
  refused([](Json& j) { j["pre_tokenizer"] = {{"type", "Whitespace"}}; }, "Whitespace");
  refused([](Json& j) { j["pre_tokenizer"] = nullptr; }, "neither a ByteLevel");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; },
          "add_prefix_space");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }, "Removed");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+"; }, "\\w");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "[a-z&&[^b]]"; },
          "nested class");
  refused([](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }, "WordPiece");
  refused([](Json& j) { j["post_processor"] = {{"type", "BertProcessing"}}; }, "BertProcessing");
  refused([](Json& j) { j["model"]["dropout"] = 0.1; }, "dropout");
  refused([](Json& j) { j["model"]["continuing_subword_prefix"] = "##"; }, "continuing_subword_prefix");
  refused([](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }, "end_of_word_suffix");
  refused([](Json& j) { j["added_tokens"][0]["single_word"] = true; }, "single_word");
  refused(
      [](Json& j) {
        j["pre_tokenizer"]["pretokenizers"][0] = {
            {"type", "Split"}, {"pattern", {{"Regex", "a+"}}}, {"behavior", "Removed"}, {"invert", true}};
      },
      "may leave text out");
  refused([](Json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "MergedWithNext"; },
          "not one character");
  const auto behind = [](Json part) {
    return [part](Json& j) { j["pre_tokenizer"]["pretokenizers"].push_back(part); };
  };
  refused(behind({{"type", "Punctuation"}, {"behavior", "Contiguous"}}), "Punctuation behind ByteLevel");
  refused(behind({{"type", "Split"}, {"pattern", {{"Regex", "[0-9]"}}}, {"behavior", "Isolated"}}),
          "Split behind ByteLevel");
  refused(
      [](Json& j) {
        j["pre_tokenizer"]["pretokenizers"][0] = {{"type", "Punctuation"}};
      },
      "Punctuation with behavior Isolated");
  ExpectError(Changed("llama3",
                      [](Json& j) {
                        std::swap(j["post_processor"]["processors"][1]["single"][0],
                                  j["post_processor"]["processors"][1]["single"][1]);
                      }),
              Code::kUnsupported, "behind the text");
  ExpectError(Changed("llama_hf",
                      [](Json& j) {
                        j["added_tokens"][2]["special"] = false, j["added_tokens"][2]["normalized"] = true;
                      }),
              Code::kUnsupported, "</s>");
  ExpectError(
      Changed("llama_hf",
              [](Json& j) {
                j["pre_tokenizer"] = {{"type", "Metaspace"}, {"prepend_scheme", "first"}, {"split", false}};
              }),
      Code::kUnsupported, "Metaspace");
}

// A template of the post-processor: what stands before the text, by name, and ids of the names.
Json Template(const std::vector<std::string>& names, Json ids) {
  Json single = Json::array(), special = Json::object();
  for (const std::string& name : names) single.push_back({{"SpecialToken", {{"id", name}, {"type_id", 0}}}});
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  for (const auto& [name, list] : ids.items()) special[name] = {{"id", name}, {"ids", list}};
  return {{"type", "TemplateProcessing"}, {"single", single}, {"special_tokens", special}};
}

TEST(ReadHfTokenizer, SeveralTokensMayStandBeforeAText) {
  const auto read = [](const std::vector<Json>& processors) {
    return Changed("qwen2", [&](Json& j) {
      j["post_processor"] = {{"type", "Sequence"}, {"processors", processors}};
    });
  };
  const auto begins = [&](const std::vector<Json>& processors) {
    const auto spec = read(processors);
    EXPECT_TRUE(spec.ok()) << spec.status().message();
    EXPECT_TRUE(spec.value().add_bos);
    EXPECT_EQ(spec.value().bos, spec.value().begin_tokens.empty() ? 7 : spec.value().begin_tokens[0]);
    return spec.value().begin_tokens;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(begins({Template({"a", "b"}, {{"a", {5}}, {"b", {3}}})}), (Ids{5, 3}));
  EXPECT_EQ(begins({Template({"a"}, {{"a", {5, 6}}})}), (Ids{5, 6}));
  EXPECT_EQ(begins({Template({"a"}, {{"a", {7}}})}), Ids()) << "one is BOS";
  EXPECT_EQ(begins({Template(std::vector<std::string>(16, "a"), {{"a", {5}}})}), Ids(16, 5));
  // Lists of any length, any number of times: what they make together is never made.
  const Json many = std::vector<int32_t>(1000000, 5);
  EXPECT_EQ(read({Template(std::vector<std::string>(1000000, "a"), {{"a", many}})}).status().code(),
            Code::kUnsupported);
  const Json plain = {{"type", "ByteLevel"}};
  EXPECT_EQ(read({plain}).value().begin_tokens, Ids());
  EXPECT_FALSE(read({plain}).value().add_bos);
  ExpectError(read({Template(std::vector<std::string>(17, "a"), {{"a", {5}}})}), Code::kUnsupported,
              "more than 16 tokens before the text");
  ExpectError(read({Template({"a"}, {{"a", {1 << 20}}})}), Code::kBadModel, "not in the vocab");
  ExpectError(read({Template({"a"}, {{"a", {-1}}})}), Code::kBadModel, "not in the vocab");
  ExpectError(read({Template({"a"}, {{"a", {"x"}}})}), Code::kBadModel, "not in the vocab");
  ExpectError(read({Template({"a"}, {{"a", 5}})}), Code::kBadModel, "no ids for \"a\"");
  ExpectError(read({Template({"no such"}, Json::object())}), Code::kBadModel, "\"no such\", which is not in");
  ExpectError(read({Template({"a"}, {{"a", {5}}}), Template({"b"}, {{"b", {3}}})}), Code::kUnsupported,
              "several templates");
  Json twice = Template({}, Json::object());
  twice["single"].push_back(twice["single"][0]);
  ExpectError(read({twice}), Code::kUnsupported, "repeats the text");
}

TEST(ReadHfTokenizer, RefusesDamage) {
  const auto bad = [](auto change, const char* words) {
    ExpectError(Changed("gpt2", change), Code::kBadModel, words);
  };
  bad([](Json& j) { j.erase("model"); }, "no model");
  bad([](Json& j) { j["model"]["vocab"] = Json::array(); }, "no vocab");
  bad([](Json& j) { j["model"]["vocab"] = Json::object(); }, "vocab is empty");
  bad([](Json& j) { j["model"]["vocab"]["new"] = 5; }, "not its own");
  bad([](Json& j) { j["model"]["vocab"]["new"] = -5; }, "out of range");
  bad([](Json& j) { j["model"]["vocab"]["new"] = int64_t{1} << 40; }, "out of range");
  bad([](Json& j) { j["model"]["vocab"]["new"] = "7"; }, "no id");
  bad([](Json& j) { j["model"]["merges"] = 3; }, "no merges");
  bad([](Json& j) { j["model"]["merges"][9] = {"a", "not there"}; }, "merge 9 names \"not there\"");
  bad([](Json& j) { j["model"]["merges"][9] = "a b c"; }, "merge 9 is not a pair");
  bad([](Json& j) { j["model"]["merges"][9] = Json::array({1, 2}); }, "merge 9 is not a pair");
  bad([](Json& j) { j["added_tokens"][0]["content"] = ""; }, "empty");
  bad([](Json& j) { j["added_tokens"][0]["id"] = 5; }, "not its own");
  const std::string text = ReadTestFile(TokenizerData("gpt2.json"));
  for (size_t n : {size_t{0}, size_t{1}, text.size() / 2, text.size() - 1}) {
    ExpectError(ReadHfTokenizer(text.substr(0, n)), Code::kBadModel, "tokenizer.json");
  }
  ExpectError(ReadHfTokenizer(std::string(100000, '[')), Code::kBadModel, "tokenizer.json");
  ExpectError(ReadHfTokenizer("[]"), Code::kBadModel, "not an object");
}

TEST(ReadHfTokenizer, FreeIdsBecomeUnusedPieces) {
  const auto spec = Changed("gpt2", [](Json& j) {
    j["added_tokens"].push_back({{"id", 1500}, {"content", "<far>"}, {"special", true}});
  });
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec.value().pieces.size(), 1501u);
  EXPECT_EQ(spec.value().piece_kinds[1450], PieceKind::kUnused);
  EXPECT_EQ(Encode(*MakeTokenizer(spec.value()), "<far>", kParseSpecial), std::vector<int32_t>{1500});
}

// Phi-3's "</s>" is no special token by name, but is cut out of the text as those are.
TEST(ReadHfTokenizer, TokensBeforeTheSpaceRulesAreSpecial) {
  const auto spec = Changed("llama_hf", [](Json& j) {
    j["added_tokens"][2]["special"] = false, j["added_tokens"][2]["rstrip"] = true;
  });
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec.value().piece_kinds[2], PieceKind::kControl);
  EXPECT_EQ(spec.value().piece_strips, std::vector<uint8_t>({0, 0, kStripRight}));
  const auto tokenizer = MakeTokenizer(spec.value());
  EXPECT_EQ(Encode(*tokenizer, "</s> \n\t\xE3\x80\x80</s>", kParseSpecial), std::vector<int32_t>({2, 2}));
}

TEST(ReadHfTokenizer, WhiteSpaceGoesWithTheToken) {
  const auto spec = Changed("qwen2", [](Json& j) {
    for (Json& token : j["added_tokens"]) token["lstrip"] = true;
  });
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  const auto tokenizer = MakeTokenizer(spec.value());
  const std::vector<int32_t> tight = Encode(*tokenizer, "a<|im_end|>", kParseSpecial);
  EXPECT_EQ(Encode(*tokenizer, "a \xC2\xA0\xE2\x80\x83\n<|im_end|>", kParseSpecial), tight);
  EXPECT_EQ(Encode(*tokenizer, " \t<|im_end|>", kParseSpecial), std::vector<int32_t>{tight.back()});
  // A byte that ends a space elsewhere ends none here.
  EXPECT_EQ(Encode(*tokenizer, "a\x80<|im_end|>", kParseSpecial).size(), tight.size() + 1);
  EXPECT_EQ(Encode(*tokenizer, "a <|im_end|>"), Encode(*MakeTestTokenizer("qwen2"), "a <|im_end|>"));
  // The flags survive a view, which is what a model file holds.
  const FlatTokenizer flat(spec.value());
  EXPECT_EQ(flat.view().ToSpec().piece_strips, spec.value().piece_strips);
  EXPECT_EQ(flat.view().ToSpec().piece_kinds, spec.value().piece_kinds);
}

TEST(ReadHfTokenizer, PlainSplitPatternsAreQuoted) {
  const auto spec = Changed("chain", [](Json& j) {
    j["pre_tokenizer"]["pretokenizers"][0]["pattern"] = {{"String", "a.b|[c]"}};
  });
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec.value().patterns[0], R"(a\.b\|\[c\])");
  MakeTokenizer(spec.value());
}

// Protobuf, written by hand.
std::string Varint(uint64_t v) {
  std::string out;
  for (; v >= 128; v >>= 7) out += static_cast<char>(v | 128);
  return out + static_cast<char>(v);
}
std::string Number(uint32_t field, uint64_t v) { return Varint(field << 3) + Varint(v); }
std::string Part(uint32_t field, const std::string& bytes) {
  return Varint(field << 3 | 2) + Varint(bytes.size()) + bytes;
}
std::string Float(uint32_t field, float v) {
  std::string out = Varint(field << 3 | 5) + "1234";
  std::memcpy(&out[out.size() - 4], &v, 4);
  return out;
}
std::string PieceMessage(const std::string& piece, float score, uint64_t type) {
  return Part(1, Part(1, piece) + Float(2, score) + Number(3, type));
}
const std::string kUnk = PieceMessage("<unk>", 0, 2);
const std::string kBpe = Part(2, Number(3, 2));
Result<TokenizerSpec> ReadProto(const std::string& bytes) { return ReadSentencePiece(Bytes(bytes)); }

TEST(ReadSentencePiece, TakesOverWhatTheFileSays) {
  const auto spec =
      ReadProto(kUnk + PieceMessage("[B]", 0, 3) + PieceMessage("\xE2\x96\x81x", -2.5f, 1) +
                PieceMessage("<0x0a>", 0, 6) + PieceMessage("<sep>", 0, 4) + PieceMessage("y", -1, 5) +
                Part(2, Number(3, 2) + Part(46, "[B]") + Float(10, 0.5f)) +
                Part(3, Part(1, "identity") + Number(4, 0)));
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  const TokenizerSpec& s = spec.value();
  EXPECT_EQ(s.pieces, (std::vector<std::string>{"<unk>", "[B]", " x", "\n", "<sep>", "y"}));
  EXPECT_EQ(s.piece_kinds,
            (std::vector<PieceKind>{PieceKind::kUnknown, PieceKind::kControl, PieceKind::kNormal,
                                    PieceKind::kByte, PieceKind::kUserDefined, PieceKind::kUnused}));
  EXPECT_EQ(s.scores[2], -2.5f);
  EXPECT_EQ(s.unk, 0);
  EXPECT_EQ(s.bos, 1);
  EXPECT_EQ(s.eos, -1);
  EXPECT_TRUE(s.add_space_prefix && !s.remove_extra_spaces && !s.byte_fallback && s.add_bos);
}

TEST(ReadSentencePiece, RefusesByName) {
  ExpectError(ReadProto(kUnk), Code::kUnsupported, "Unigram");
  ExpectError(ReadProto(kUnk + Part(2, Number(3, 3))), Code::kUnsupported, "word");
  ExpectError(ReadProto(kUnk + kBpe + Part(3, Part(1, "nmt_nfkc") + Part(2, "map"))), Code::kUnsupported,
              "nmt_nfkc");
  ExpectError(ReadProto(kUnk + Part(2, Number(3, 2) + Number(24, 1))), Code::kUnsupported,
              "treat_whitespace_as_suffix");
  ExpectError(ReadProto(kUnk + kBpe + Part(3, Number(5, 0))), Code::kUnsupported, "escape_whitespaces");
}

TEST(ReadSentencePiece, RefusesDamage) {
  ExpectError(ReadProto(""), Code::kBadModel, "empty");
  ExpectError(ReadProto(kBpe), Code::kBadModel, "no pieces");
  ExpectError(ReadProto(kUnk + kBpe + std::string(1, '\0')), Code::kBadModel, "field number");
  ExpectError(ReadProto(std::string(11, '\xff')), Code::kBadModel, "64 bits");
  ExpectError(ReadProto("\x0A\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x01"), Code::kBadModel,
              "longer than the file");
  ExpectError(ReadProto("\x0B"), Code::kBadModel, "wire type");
  ExpectError(ReadProto(Number(1, 3)), Code::kBadModel, "wire type");
  ExpectError(ReadProto(PieceMessage("x", 0, 9)), Code::kBadModel, "unknown type");
  ExpectError(ReadProto(PieceMessage("x", NAN, 1)), Code::kBadModel, "not finite");
  ExpectError(ReadProto(PieceMessage("<0x1>", 0, 6)), Code::kBadModel, "byte piece");
  const std::string whole = ReadTestFile(TokenizerData("sp_plain.model"));
  for (size_t n = 1; n < whole.size();
       n += 101) {  // never more than an error; a cut between fields leaves a smaller model
    const auto spec = ReadProto(whole.substr(0, n));
    EXPECT_TRUE(spec.ok() || spec.status().message().find("tokenizer.model") != std::string::npos);
  }
}

TEST(ReadLlama2cTokenizer, TakesOverAndRefuses) {
  const std::string file = ReadTestFile(std::string(KVC_SOURCE_DIR) + "/models/stories260k/tok512.bin");
  const auto read = [](const std::string& bytes, int32_t n) { return ReadLlama2cTokenizer(Bytes(bytes), n); };
  const TokenizerSpec spec = read(file, 512).value();
  EXPECT_EQ(spec.pieces.size(), 512u);
  EXPECT_EQ(spec.pieces[3 + '\n'], "\n");
  EXPECT_EQ(spec.pieces[265], " the");
  EXPECT_EQ(spec.bos, 1);
  EXPECT_EQ(spec.eos, 2);
  ExpectError(read(file, 511), Code::kBadModel, "follow the last");
  ExpectError(read(file, 513), Code::kBadModel, "cut at piece 512");
  ExpectError(read(file, 100), Code::kBadModel, "impossible");
  ExpectError(read(file, -1), Code::kBadModel, "impossible");
  ExpectError(read(file.substr(0, 3), 512), Code::kBadModel, "first number");
  for (size_t n = 4; n < file.size(); n += 37)
    ExpectError(read(file.substr(0, n), 512), Code::kBadModel, "cut");
  std::string huge = file;
  huge[8] = huge[9] = huge[10] = huge[11] = '\xff';
  ExpectError(read(huge, 512), Code::kBadModel, "claims 4294967295 bytes");
  std::string nan = file;
  nan[4] = nan[5] = nan[6] = '\xff', nan[7] = '\x7f';
  ExpectError(read(nan, 512), Code::kBadModel, "not finite");
}

TEST(TokenizerPieces, Spellings) {
  EXPECT_EQ(UndoByteAlphabet("\xC4\xA0the\xC4\x8A").value(), " the\n");
  EXPECT_EQ(UndoByteAlphabet("\xC4\x80\xC3\xBF\xC5\x83").value(), std::string("\0\xFF\xAD", 3));
  ExpectError(UndoByteAlphabet("a b"), Code::kBadModel, "byte alphabet");
  ExpectError(UndoByteAlphabet("\xE4\xB8\xAD"), Code::kBadModel, "byte alphabet");
  EXPECT_EQ(UndoSpaceSymbol("\xE2\x96\x81"
                            "a\xE2\x96\x81\xE2\x96\x80"),
            " a \xE2\x96\x80");
  EXPECT_EQ(ParseBytePiece("<0xfF>"), 255);
  EXPECT_EQ(ParseBytePiece("<0xfG>"), -1);
  EXPECT_EQ(ParseBytePiece("<0xff"), -1);
}

}  // namespace
}  // namespace kvc
