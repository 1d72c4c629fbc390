// Hugging Face directories whose tokenizer is SentencePiece's own file: tokens that other files add to it.
#include "models/convert/hf_added_tokens.h"

#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

using nlohmann::json;

// SentencePiece's own file: pieces with their type, byte pair encoding with bytes, nothing normalised.
std::string SentencePieceModel(const std::string& last, char type_of_last = 4) {
  const auto field = [](char tag, const std::string& bytes) {
    return std::string(1, tag) + static_cast<char>(bytes.size()) + bytes;
  };
  std::string model;
  const auto add = [&](const std::string& piece, char type) {
    model += field('\x0A', field('\x0A', piece) + std::string("\x15\0\0\0\0\x18", 6) + type);
  };
  add("<unk>", 2), add("<s>", 3), add("</s>", 3);
  const char digits[] = "0123456789ABCDEF";
  for (int byte = 0; byte < 256; ++byte)
    add(std::string("<0x") + digits[byte / 16] + digits[byte % 16] + ">", 6);
  add(last, type_of_last);
  model += field('\x12', std::string("\x18\x02\x98\x02\x01", 5));
  return model + field('\x1A', field('\x0A', "identity") + std::string("\x18\0\x20\0\x28\x01", 6));
}

// InternLM 2 keeps places free under names, and says later what stands in them.
TEST(ConvertHfAddedTokens, APlaceKeptFreeIsTakenByAnAddedToken) {
  const json added = {{"added_tokens_decoder", {{"259", {{"content", "<|im_start|>"}, {"special", true}}}}}};
  for (const auto& [last, is_free] : {std::pair("[UNUSED_TOKEN_0]", true), {"hello", false}}) {
    ScratchDirectory scratch;
    json config = SmallConfig("LlamaForCausalLM");
    config["bos_token_id"] = 1, config["eos_token_id"] = 2;
    WriteHf(scratch / "model", config, SmallTensors("BF16"));
    std::filesystem::remove(scratch / "model/tokenizer.json");
    WriteAll(scratch / "model/tokenizer.model", SentencePieceModel(last));
    WriteAll(scratch / "model/tokenizer_config.json", added.dump());
    const Status status = Convert(scratch / "model", scratch / "out.kvc", {}, nullptr);
    if (!is_free) {
      ExpectError(status, Code::kBadModel, {"the id is taken by \"hello\""});
      continue;
    }
    ASSERT_TRUE(status.ok()) << status.message();
    const auto file = OpenModel(scratch / "out.kvc");
    EXPECT_EQ(file->tokenizer_spec().pieces[259], "<|im_start|>");
    EXPECT_EQ(file->tokenizer_spec().piece_kinds[259], PieceKind::kControl);
  }
}

using Files = std::map<std::string, json>;

Status ConvertWith(const Files& files, TokenizerSpec* spec,
                   const std::string& model = SentencePieceModel("[UNUSED_TOKEN_0]")) {
  ScratchDirectory scratch;
  json config = SmallConfig("LlamaForCausalLM");
  config["bos_token_id"] = 1, config["eos_token_id"] = 2;
  WriteHf(scratch / "model", config, SmallTensors("BF16"));
  std::filesystem::remove(scratch / "model/tokenizer.json");
  WriteAll(scratch / "model/tokenizer.model", model);
  for (const auto& [name, value] : files) WriteAll(scratch / ("model/" + name), value.dump());
  const Status status = Convert(scratch / "model", scratch / "out.kvc", {}, nullptr);
  if (status.ok()) *spec = OpenModel(scratch / "out.kvc")->tokenizer_spec();
  return status;
}

// transformers: special are those that tokenizer_config.json or special_tokens_map.json name.
TEST(ConvertHfAddedTokens, OfAFileOfTheirOwn) {
  const json added = {{"<end>", 259}};
  const auto kind = [&](Files files) {
    TokenizerSpec spec;
    files["added_tokens.json"] = added;
    const Status status = ConvertWith(files, &spec);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(spec.pieces.at(259), "<end>");
    return spec.piece_kinds.at(259);
  };
  EXPECT_EQ(kind({}), PieceKind::kUserDefined);
  EXPECT_EQ(kind({{"tokenizer_config.json", {{"bos_token", "<s>"}}}}), PieceKind::kUserDefined);
  EXPECT_EQ(kind({{"tokenizer_config.json", {{"eos_token", "<end>"}}}}), PieceKind::kControl);
  EXPECT_EQ(kind({{"special_tokens_map.json", {{"eos_token", "<end>"}}}}), PieceKind::kControl);
  EXPECT_EQ(kind({{"special_tokens_map.json", {{"eos_token", {{"content", "<end>"}}}}}}),
            PieceKind::kControl);
  EXPECT_EQ(kind({{"special_tokens_map.json", {{"additional_special_tokens", {"<x>", "<end>"}}}}}),
            PieceKind::kControl);
  TokenizerSpec spec;
  ASSERT_TRUE(ConvertWith({{"added_tokens.json", {{"<|im_end|>", 259}}},
                           {"tokenizer_config.json", {{"eos_token", "<|im_end|>"}}}},
                          &spec)
                  .ok());
  EXPECT_EQ(spec.piece_kinds[259], PieceKind::kControl) << "a mark by its look";
  EXPECT_EQ(spec.eos, 259);
  EXPECT_EQ(std::count(spec.stop_tokens.begin(), spec.stop_tokens.end(), 259), 1);
  // Where tokenizer_config.json has a list, it counts alone.
  const json decoder = {{"added_tokens_decoder", {{"259", {{"content", "<a>"}, {"special", true}}}}}};
  ASSERT_TRUE(ConvertWith({{"added_tokens.json", added}, {"tokenizer_config.json", decoder}}, &spec).ok());
  EXPECT_EQ(spec.pieces[259], "<a>");
}

// transformers cuts added tokens out of a text before it merges pieces, those that are pieces too; and one
// of which nothing is said is not special.
TEST(ConvertHfAddedTokens, APieceThatIsAddedIsCutOut) {
  constexpr char kNormal = 1;
  const auto kind = [&](const std::string& last, const json& more) {
    json token = {{"content", last}};
    token.update(more);
    TokenizerSpec spec;
    const Status status =
        ConvertWith({{"tokenizer_config.json", {{"added_tokens_decoder", {{"259", token}}}}}}, &spec,
                    SentencePieceModel(last, kNormal));
    EXPECT_TRUE(status.ok()) << status.message();
    return spec.piece_kinds.at(259);
  };
  EXPECT_EQ(kind("<tool>", {{"special", false}}), PieceKind::kUserDefined);
  EXPECT_EQ(kind("<tool>", json::object()), PieceKind::kUserDefined);
  EXPECT_EQ(kind("<tool>", {{"special", true}}), PieceKind::kControl);
  EXPECT_EQ(kind("<|tool|>", json::object()), PieceKind::kControl) << "a mark by its look";
  TokenizerSpec spec;  // without an added token
  ASSERT_TRUE(ConvertWith({}, &spec, SentencePieceModel("<tool>", kNormal)).ok());
  EXPECT_EQ(spec.piece_kinds.at(259), PieceKind::kNormal);
}

TEST(ConvertHfAddedTokens, DamagedFilesAreRefused) {
  TokenizerSpec spec;
  const auto damaged = [&](const json& added, const std::string& text) {
    ExpectError(ConvertWith({{"added_tokens.json", added}}, &spec), Code::kBadModel,
                {"added_tokens.json", text});
  };
  damaged(json::array({1}), "must be a JSON object");
  damaged({{"<a>", "259"}}, "no id");
  damaged({{"", 259}}, "is empty");
  damaged({{"<a>", -1}}, "no id");
  damaged({{"<a>", 99999999999}}, "no id");
  damaged({{"<a>", 260}}, "no id in the vocabulary of 260");
  damaged({{"<a>", 259}, {"<b>", 259}}, "not its own");
  damaged({{"<a>", 2}}, "the id is taken by \"</s>\"");
}

TEST(ConvertHfAddedTokens, TakeSpacesAlongAsTheyAreSaidTo) {
  TokenizerSpec spec;
  const auto with = [&](const json& more) {
    json token = {{"content", "<|end|>"}, {"special", true}};
    token.update(more);
    return ConvertWith(
        {{"tokenizer_config.json",
          {{"added_tokens_decoder", {{"259", token}, {"2", {{"content", "</s>"}, {"rstrip", true}}}}}}}},
        &spec);
  };
  ASSERT_TRUE(with(json::object()).ok());
  EXPECT_EQ(spec.piece_strips.at(2), kStripRight) << "of a piece that the file has";
  EXPECT_EQ(spec.piece_kinds[2], PieceKind::kControl);
  EXPECT_TRUE(spec.piece_strips.size() <= 259 || spec.piece_strips[259] == 0);
  ASSERT_TRUE(with({{"rstrip", true}}).ok());
  EXPECT_EQ(spec.piece_strips.at(259), kStripRight);
  ASSERT_TRUE(with({{"lstrip", true}, {"rstrip", true}}).ok());
  EXPECT_EQ(spec.piece_strips.at(259), kStripLeft | kStripRight);
  // Not special, but cut out before spaces count: what tokenizer.json's tokens become.
  ASSERT_TRUE(with({{"special", false}, {"normalized", false}, {"lstrip", true}}).ok());
  EXPECT_EQ(spec.piece_kinds[259], PieceKind::kControl);
  EXPECT_EQ(spec.piece_strips.at(259), kStripLeft);
  ExpectError(with({{"special", false}, {"normalized", true}, {"rstrip", true}}), Code::kUnsupported,
              {"added_tokens_decoder 259", "<|end|>", "rstrip"});
  ExpectError(with({{"single_word", true}}), Code::kUnsupported, {"added_tokens_decoder 259", "single_word"});
}

}  // namespace
}  // namespace kvc
