// The chat templates of tests/data/templates, and the conversations that transformers made of them.
#pragma once
#include <gtest/gtest.h>

#include <ctime>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/convert/turn_format.h"

namespace kvc {

inline std::string ReadTemplate(const std::string& name) {
  std::ifstream in(std::string(KVC_TEST_DATA) + "/templates/" + name, std::ios::binary);
  EXPECT_TRUE(in.good()) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

// The day of the vectors: 4 March 2025, 15:06:07.
inline std::tm TemplateDay() {
  std::tm t{};
  t.tm_year = 125, t.tm_mon = 2, t.tm_mday = 4, t.tm_hour = 15, t.tm_min = 6, t.tm_sec = 7;
  t.tm_wday = 2, t.tm_yday = 62;
  return t;
}

inline const nlohmann::ordered_json& TemplateVectors() {
  static const nlohmann::ordered_json vectors =
      nlohmann::ordered_json::parse(ReadTemplate("conversations.json"));
  return vectors;
}

inline ChatTemplate TemplateOf(const std::string& name) {
  const nlohmann::ordered_json& all = TemplateVectors()[name];
  return {ReadTemplate(name + ".jinja"), all["bos"], all["eos"], "", ""};
}

inline Result<TurnFormat> CompiledTemplate(const std::string& name, std::vector<std::string>* notes) {
  return CompileTurnFormat(TemplateOf(name), TemplateDay(), notes);
}

inline TurnFormat FormatOf(const std::string& name) {
  std::vector<std::string> notes;
  Result<TurnFormat> format = CompiledTemplate(name, &notes);
  EXPECT_TRUE(format.ok()) << name << ": " << format.status().message();
  return format.ok() ? format.value() : TurnFormat();
}

inline std::vector<ChatMessage> MessagesOf(const nlohmann::ordered_json& talk) {
  std::vector<ChatMessage> messages;
  for (const nlohmann::ordered_json& m : talk["messages"]) {
    const std::string role = m[0];
    messages.push_back({role == "system" ? ChatMessage::kSystem
                        : role == "user" ? ChatMessage::kUser
                                         : ChatMessage::kAssistant,
                        m[1]});
  }
  return messages;
}

// Whether the format takes system texts where the conversation has them.
inline bool Takes(const TurnFormat& format, const std::vector<ChatMessage>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role != ChatMessage::kSystem) continue;
    if (format.system_turns == SystemTurns::kNone) return false;
    if (format.system_turns == SystemTurns::kFirst && i > 0) return false;
  }
  return true;
}

struct TemplateConversation {
  std::vector<ChatMessage> messages;
  std::string text;  // as transformers writes it
};

// Those of a template that its format can be compared in: they end where the model is to answer, and have no
// system text where it takes none.
inline std::vector<TemplateConversation> ConversationsOf(const std::string& name, const TurnFormat& format) {
  std::vector<TemplateConversation> out;
  for (const nlohmann::ordered_json& talk : TemplateVectors()[name]["conversations"]) {
    const std::vector<ChatMessage> messages = MessagesOf(talk);
    if (!talk["answer"] || !talk["text"].is_string() || !Takes(format, messages)) continue;
    std::string text = talk["text"];
    // What the template says where nobody tells it the day, which is what a file keeps.
    const size_t day = text.find("04 Mar 2025");
    if (name == "style_llama3_dated" && day != std::string::npos) text.replace(day, 11, "26 Jul 2024");
    out.push_back({messages, text});
  }
  return out;
}

}  // namespace kvc
