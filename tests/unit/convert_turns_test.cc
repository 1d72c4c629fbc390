// Chat templates as turn formats: what a session is fed with is what transformers renders, token by token.
#include <gtest/gtest.h>

#include <cctype>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "lib/engine/turns.h"
#include "lib/model/model_check.h"
#include "lib/model/tokenizer.h"
#include "tests/support/chat_templates.h"

namespace kvc {
namespace {

using Json = nlohmann::ordered_json;

struct TestTokenizer {
  TokenizerSpec spec;
  std::unique_ptr<FlatTokenizer> flat;  // what the tokenizer looks into
  std::unique_ptr<Tokenizer> tokenizer;
};

// Bytes, and every special token of the texts: what stands between < and >, or [ and ].
TestTokenizer TokenizerFor(const Json& all) {
  TestTokenizer out;
  TokenizerSpec* spec = &out.spec;
  for (int i = 0; i < 256; ++i) spec->pieces.push_back(std::string(1, static_cast<char>(i)));
  spec->piece_kinds.assign(256, PieceKind::kNormal);
  std::set<std::string> specials;
  for (const Json& talk : all["conversations"]) {
    if (!talk["text"].is_string()) continue;
    const std::string text = talk["text"];
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '<' && text[i] != '[') continue;
      const size_t end = text.find(text[i] == '<' ? '>' : ']', i);
      if (end == std::string::npos || end - i > 40) continue;
      const std::string piece = text.substr(i, end + 1 - i);
      if (piece.find_first_of(" \n{") == std::string::npos && piece.size() > 2) specials.insert(piece);
    }
  }
  for (const std::string& piece : specials)
    spec->pieces.push_back(piece), spec->piece_kinds.push_back(PieceKind::kControl);
  const auto id = [&](const std::string& token) {
    for (size_t i = 256; i < spec->pieces.size(); ++i)
      if (spec->pieces[i] == token) return static_cast<int32_t>(i);
    return -1;
  };
  spec->bos = id(all["bos"]), spec->eos = id(all["eos"]), spec->add_bos = spec->bos >= 0;
  if (spec->eos >= 0) spec->stop_tokens = {spec->eos};
  // GLM's, which its template writes itself.
  if (id("[gMASK]") >= 0 && id("<sop>") >= 0)
    spec->begin_tokens = {id("[gMASK]"), id("<sop>")}, spec->add_bos = true;
  out.flat = std::make_unique<FlatTokenizer>(*spec);
  auto tokenizer = Tokenizer::Create(out.flat->view(), nullptr);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  out.tokenizer = std::move(tokenizer.value());
  return out;
}

Span<const uint8_t> BytesOfText(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// As kvc_session_say feeds one message after the other, and the model is to answer the last.
std::vector<int32_t> Fed(const Tokenizer& tokenizer, const TurnFormat& format,
                         const std::vector<ChatMessage>& messages) {
  std::vector<int32_t> ids;
  for (size_t i = 0; i < messages.size(); ++i) {
    TurnPlace place;
    place.first = i == 0, place.after_system = i > 0 && messages[i - 1].role == ChatMessage::kSystem;
    place.answer = i + 1 == messages.size();
    place.newest_token = ids.empty() ? -1 : ids.back();
    const Status status = EncodeTurn(tokenizer, format, TurnMarks(), static_cast<Role>(messages[i].role),
                                     BytesOfText(messages[i].text), place, &ids);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return ids;
}

const std::map<std::string, std::string> kRefused = {
    {"refused_rounds", "depend on the place of a turn"},
    {"refused_repeats", "writes twice what the user says"},
    {"refused_changes", "leaves out or changes what the user says"},
    {"refused_includes", "line 1: \"include\" is not supported; its marks look like those of ChatML"},
};

TEST(ConvertTurns, EveryTemplateGivesWhatTransformersGives) {
  int n_templates = 0, n_conversations = 0;
  for (const auto& [name, all] : TemplateVectors().items()) {
    if (kRefused.count(name) != 0) continue;
    SCOPED_TRACE(name);
    const TurnFormat format = FormatOf(name);
    EXPECT_TRUE(CheckTurnFormat(format).ok());
    const TestTokenizer made = TokenizerFor(all);
    const Tokenizer& tokenizer = *made.tokenizer;
    const std::vector<TemplateConversation> talks = ConversationsOf(name, format);
    for (const TemplateConversation& talk : talks) {
      EXPECT_EQ(WriteTurns(format, talk.messages), talk.text);
      std::vector<int32_t> ids;
      ASSERT_TRUE(tokenizer.Encode(BytesOfText(talk.text), kParseSpecial, &ids).ok());
      EXPECT_EQ(Fed(tokenizer, format, talk.messages), ids) << talk.text;
    }
    const int n = static_cast<int>(talks.size());
    EXPECT_GE(n, format.system_turns == SystemTurns::kNone ? 5 : 8);
    ++n_templates, n_conversations += n;
  }
  EXPECT_GE(n_templates, 40);
  EXPECT_GE(n_conversations, 340);
}

TEST(ConvertTurns, WhatCannotBeSaidIsNamed) {
  for (const auto& [name, why] : kRefused) {
    std::vector<std::string> notes;
    const Result<TurnFormat> format = CompiledTemplate(name, &notes);
    ASSERT_FALSE(format.ok()) << name;
    EXPECT_EQ(format.status().code(), Code::kUnsupported);
    EXPECT_NE(format.status().message().find(why), std::string::npos) << format.status().message();
  }
  std::vector<std::string> notes;
  const Result<TurnFormat> loops =
      CompileTurnFormat({ReadTemplate("refused_loops.jinja"), "", "", "", ""}, TemplateDay(), &notes);
  ASSERT_FALSE(loops.ok());
  EXPECT_NE(loops.status().message().find("too many steps"), std::string::npos) << loops.status().message();
}

TEST(ConvertTurns, TheMarksOfKnownTemplates) {
  const TurnFormat qwen = FormatOf("qwen_25");
  EXPECT_EQ(
      qwen.first_user_prefix,
      "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
      "<|im_start|>user\n");
  EXPECT_EQ(qwen.user_prefix, "<|im_start|>user\n");
  EXPECT_EQ(qwen.assistant_prefix, "<|im_start|>assistant\n");
  EXPECT_EQ(qwen.assistant_suffix, "<|im_end|>\n");
  EXPECT_FALSE(qwen.answer_prefix.has_value());
  EXPECT_EQ(qwen.system_turns, SystemTurns::kAnywhere);
  EXPECT_EQ(qwen.trim, 0);
  EXPECT_TRUE(qwen.bos_in_marks);

  const TurnFormat llama = FormatOf("style_llama2");
  EXPECT_EQ(llama.system_prefix, "<s>[INST] <<SYS>>\n");
  EXPECT_EQ(llama.system_suffix, "\n<</SYS>>\n\n");
  EXPECT_EQ(llama.user_prefix_after_system, "");
  EXPECT_EQ(llama.user_prefix, "<s>[INST] ");
  EXPECT_EQ(llama.user_suffix, " [/INST]");
  EXPECT_EQ(llama.assistant_prefix, " ");
  EXPECT_EQ(llama.answer_prefix, "");
  EXPECT_EQ(llama.assistant_suffix, " </s>");
  EXPECT_EQ(llama.system_turns, SystemTurns::kFirst);
  // A system text keeps its spaces, and the user's text behind it those at its start.
  EXPECT_EQ(llama.trim, kTrimUserStart | kTrimUserEnd | kTrimAssistantStart | kTrimAssistantEnd);

  const TurnFormat gemma = FormatOf("style_gemma3");
  EXPECT_EQ(gemma.system_prefix, "<bos><start_of_turn>user\n");
  EXPECT_EQ(gemma.system_suffix, "\n\n");
  EXPECT_EQ(gemma.user_prefix_after_system, "");
  EXPECT_EQ(gemma.assistant_prefix, "<start_of_turn>model\n");

  const TurnFormat r1 = FormatOf("deepseek_r1_distill");
  EXPECT_NE(r1.answer_prefix, std::nullopt);
  EXPECT_EQ(r1.answer_prefix->substr(r1.answer_prefix->size() - 8), "<think>\n");
  EXPECT_EQ(r1.assistant_prefix.find("<think>"), std::string::npos);
}

TEST(ConvertTurns, ModelsWithoutSystemTextsSaySo) {
  for (const char* name : {"style_gemma", "style_starcoder", "mistral_v2v3", "mistral_v3_tekken"}) {
    std::vector<std::string> notes;
    const Result<TurnFormat> format = CompiledTemplate(name, &notes);
    ASSERT_TRUE(format.ok()) << format.status().message();
    EXPECT_EQ(format.value().system_turns, SystemTurns::kNone) << name;
    ASSERT_EQ(notes.size(), 1u) << name;
    EXPECT_NE(notes[0].find("no system text"), std::string::npos) << notes[0];
    const TestTokenizer made = TokenizerFor(TemplateVectors()[name]);
    std::vector<int32_t> ids;
    TurnPlace place;
    place.first = true;
    TurnMarks marks;
    const std::string text = "be brief";
    EXPECT_EQ(
        EncodeTurn(*made.tokenizer, format.value(), marks, Role::kSystem, BytesOfText(text), place, &ids)
            .code(),
        Code::kUnsupported);
    ASSERT_TRUE(marks.Set(Role::kSystem, "S:", "\n").ok());  // of the caller's own
    EXPECT_TRUE(
        EncodeTurn(*made.tokenizer, format.value(), marks, Role::kSystem, BytesOfText(text), place, &ids)
            .ok());
  }
  std::vector<std::string> notes;
  ASSERT_TRUE(CompiledTemplate("style_granite", &notes).ok());
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("day's date"), std::string::npos) << notes[0];
}

TEST(ConvertTurns, MarksOfTheCallersOwnComeWithTheTokenizersBos) {
  const TurnFormat format = FormatOf("qwen_25");
  const TestTokenizer made = TokenizerFor(TemplateVectors()["style_llama2"]);
  TurnMarks marks;
  ASSERT_TRUE(marks.Set(Role::kUser, "U:", "").ok());
  TurnPlace place;
  place.first = true;
  std::vector<int32_t> ids;
  ASSERT_TRUE(EncodeTurn(*made.tokenizer, format, marks, Role::kUser, BytesOfText("x"), place, &ids).ok());
  EXPECT_EQ(ids, (std::vector<int32_t>{made.spec.bos, 'U', ':', 'x'}));
}

}  // namespace
}  // namespace kvc
