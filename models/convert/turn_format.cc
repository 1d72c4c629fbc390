#include "models/convert/turn_format.h"

#include <algorithm>

#include "models/convert/jinja/template.h"
#include "models/convert/jinja/text.h"

namespace kvc {
namespace {

using Messages = std::vector<ChatMessage>;
using Segments = std::vector<std::string>;

constexpr const char* kRoleNames[] = {"system", "user", "assistant"};
// Words that no template has, one for each place, and white space to see whether it is taken away.
constexpr const char* kWords[] = {"Kvqzero", "Kvqone", "Kvqtwo", "Kvqthree", "Kvqfour", "Kvqfive", "Kvqsix"};
constexpr char kBefore[] = " \t\n ", kBehind[] = "\n\t ";

// s, u, a: whose turns. Texts: the words, between `before` and `behind`.
Messages Talk(const char* roles, const std::string& before = "", const std::string& behind = "") {
  Messages messages;
  for (const char* r = roles; *r != '\0'; ++r) {
    const auto role = *r == 's'   ? ChatMessage::kSystem
                      : *r == 'u' ? ChatMessage::kUser
                                  : ChatMessage::kAssistant;
    messages.push_back({role, before + kWords[messages.size()] + behind});
  }
  return messages;
}

bool BeginsWith(const std::string& text, const std::string& part) {
  return text.compare(0, part.size(), part) == 0;
}

bool EndsWith(const std::string& text, const std::string& part) {
  return text.size() >= part.size() && text.compare(text.size() - part.size(), part.size(), part) == 0;
}

std::string CommonStart(const std::string& a, const std::string& b) {
  const size_t n = std::min(a.size(), b.size());
  return a.substr(
      0,
      static_cast<size_t>(
          std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first - a.begin()));
}

std::string CommonEnd(const std::string& a, const std::string& b) {
  size_t n = 0;
  while (n < std::min(a.size(), b.size()) && a[a.size() - 1 - n] == b[b.size() - 1 - n]) ++n;
  while (n > 0 && (static_cast<uint8_t>(a[a.size() - n]) & 0xC0) == 0x80) --n;  // whole characters
  return a.substr(a.size() - n);
}

// The variables that transformers gives: no tools, no documents, and the special tokens there are.
Result<std::string> RenderMessages(const jinja::Template& parsed, const ChatTemplate& chat,
                                   const Messages& messages, bool answer, const std::tm* date) {
  jinja::Variables variables;
  std::vector<jinja::Value> list;
  for (const ChatMessage& m : messages) {
    jinja::Value content = jinja::Text(m.text);
    if (chat.parts) {
      content = jinja::List({jinja::Dict(
          {{jinja::Text("type"), jinja::Text("text")}, {jinja::Text("text"), std::move(content)}})});
    }
    list.push_back(jinja::Dict({{jinja::Text("role"), jinja::Text(kRoleNames[m.role])},
                                {jinja::Text("content"), std::move(content)}}));
  }
  variables.emplace_back("messages", jinja::List(std::move(list)));
  variables.emplace_back("add_generation_prompt", jinja::Bool(answer));
  variables.emplace_back("tools", jinja::None());
  variables.emplace_back("documents", jinja::None());
  const std::pair<const char*, const std::string*> tokens[] = {
      {"bos_token", &chat.bos}, {"eos_token", &chat.eos}, {"unk_token", &chat.unk}, {"pad_token", &chat.pad}};
  for (const auto& [name, text] : tokens) {
    if (!text->empty()) variables.emplace_back(name, jinja::Text(*text));
  }
  return parsed.Render(variables, date);
}

// Whose marks a template seems to use, for people who set them by hand.
std::string Nearest(const std::string& text) {
  constexpr struct {
    const char *mark, *name;
  } kFamilies[] = {{"<|im_start|>", "ChatML"},       {"<|start_header_id|>", "Llama 3"},
                   {"<<SYS>>", "Llama 2"},           {"[INST]", "Mistral"},
                   {"<start_of_turn>", "Gemma"},     {"<|user|>", "Zephyr or Phi-3"},
                   {"<|start_of_role|>", "Granite"}, {"USER:", "Vicuna"},
                   {"### Instruction", "Alpaca"}};
  for (const auto& family : kFamilies) {
    if (text.find(family.mark) != std::string::npos) return family.name;
  }
  return "";
}

Status Refusal(const std::string& why) {
  return Status(Code::kUnsupported, "the chat template cannot be kept as turn marks: " + why);
}

class Compiler {
 public:
  Compiler(const ChatTemplate& chat, const std::tm& today, std::vector<std::string>* notes)
      : chat_(chat), today_(today), notes_(notes) {}

  Result<TurnFormat> Run() {
    auto parsed = jinja::Template::Parse(chat_.text);
    if (!parsed.ok()) return Refusal(parsed.status().message());
    template_ = std::move(parsed.value());
    auto first = Render(Talk("u"), true);
    if (!first.ok() && first.status().message().find("strftime_now") != std::string::npos) {
      date_ = &today_;
      first = Render(Talk("u"), true);
      notes_->push_back("the chat template writes the day's date; the file keeps that of its conversion");
    }
    if (!first.ok()) return Refusal(first.status().message());
    if (first.value().find(kWords[0]) == std::string::npos) chat_.parts = true;
    format_.bos_in_marks = true;
    KVC_RETURN_IF_ERROR(ReadTurns());
    ReadSystem();
    KVC_RETURN_IF_ERROR(ReadTrim());
    KVC_RETURN_IF_ERROR(Verify());
    if (format_.empty()) return Refusal("it writes nothing around what is said");
    if (!no_system_.empty()) notes_->push_back("the model has no system text: " + no_system_);
    return std::move(format_);
  }

 private:
  Result<std::string> Render(const Messages& messages, bool answer) const {
    return RenderMessages(template_, chat_, messages, answer, date_);
  }

  // What the template writes before, between and behind the messages.
  Result<Segments> Cut(const Messages& messages, bool answer) const {
    auto text = Render(messages, answer);
    if (!text.ok()) {
      const bool refused = text.status().code() == Code::kInvalid;
      return Status(Code::kUnsupported,
                    refused ? "it says \"" + text.status().message() + "\"" : text.status().message());
    }
    Segments segments;
    size_t at = 0;
    for (const ChatMessage& m : messages) {
      const std::string word = jinja::Strip(m.text, nullptr, true, true), who = kRoleNames[m.role];
      const size_t found = text.value().find(word);
      if (found == std::string::npos)
        return Status(Code::kUnsupported, "it leaves out or changes what the " + who + " says");
      if (text.value().find(word, found + 1) != std::string::npos)
        return Status(Code::kUnsupported, "it writes twice what the " + who + " says");
      if (found < at)
        return Status(Code::kUnsupported, "it writes what the " + who + " says behind a later message");
      segments.push_back(text.value().substr(at, found - at));
      at = found + word.size();
    }
    segments.push_back(text.value().substr(at));
    return segments;
  }

  // What stands behind the last message where no answer is asked for. False: the template refuses that.
  bool Tail(const char* roles, std::string* tail) const {
    auto cut = Cut(Talk(roles), false);
    if (cut.ok()) *tail = cut.value().back();
    return cut.ok();
  }

  Status ReadTurns() {
    auto cut = Cut(Talk("uauau"), true);
    if (!cut.ok()) return Refusal(cut.status().message());
    const Segments& s = cut.value();
    if (s[1] != s[3] || s[2] != s[4]) return Refusal("its marks depend on the place of a turn");
    begin_ = s[0], to_assistant_ = s[1], to_user_ = s[2], end_ = s[5];
    std::string tail;
    if (!Tail("u", &tail) || !BeginsWith(to_assistant_, tail) || !BeginsWith(end_, tail))
      tail = CommonStart(to_assistant_, end_);
    format_.user_suffix = tail;
    format_.assistant_prefix = to_assistant_.substr(tail.size());
    const std::string answer = end_.substr(tail.size());
    if (answer != format_.assistant_prefix) format_.answer_prefix = answer;
    if (!Tail("ua", &tail) || !BeginsWith(to_user_, tail) || tail.size() == to_user_.size())
      tail = to_user_.substr(0, to_user_.size() - CommonEnd(to_user_, begin_).size());
    format_.assistant_suffix = tail;
    format_.user_prefix = to_user_.substr(tail.size());
    if (begin_ != format_.user_prefix) format_.first_user_prefix = begin_;
    return {};
  }

  void ReadSystem() {
    format_.system_turns = SystemTurns::kNone;
    auto cut = Cut(Talk("suauau"), true);
    if (!cut.ok()) {
      no_system_ = cut.status().message();
      return;
    }
    const Segments& s = cut.value();
    if (s[2] != to_assistant_ || s[4] != to_assistant_ || s[3] != to_user_ || s[5] != to_user_ ||
        s[6] != end_) {
      no_system_ = "it changes the marks of other turns";
      return;
    }
    format_.system_turns = SystemTurns::kFirst;
    format_.system_prefix = s[0];
    std::string tail;
    if (EndsWith(s[1], format_.user_prefix) && !format_.user_prefix.empty()) {
      tail = s[1].substr(0, s[1].size() - format_.user_prefix.size());
    } else if (!Tail("s", &tail) || !BeginsWith(s[1], tail)) {
      tail = s[1];
    }
    format_.system_suffix = tail;
    const std::string user = s[1].substr(tail.size());
    if (user != format_.user_prefix) format_.user_prefix_after_system = user;
    ReadLaterSystem(s[1]);
  }

  // Whether a system text may stand anywhere, between marks that do not depend on where.
  void ReadLaterSystem(const std::string& system_to_user) {
    auto later = Cut(Talk("suasu"), true), without = Cut(Talk("uasu"), true);
    if (!later.ok() || !without.ok()) return;
    const std::string& before = without.value()[2];
    const bool same = later.value()[3] == before && later.value()[4] == system_to_user &&
                      without.value()[3] == system_to_user && without.value()[0] == begin_ &&
                      later.value()[0] == format_.system_prefix;
    if (!same || !BeginsWith(before, format_.assistant_suffix)) return;
    const std::string prefix = before.substr(format_.assistant_suffix.size());
    if (prefix != format_.system_prefix) format_.first_system_prefix = format_.system_prefix;
    format_.system_prefix = prefix;
    format_.system_turns = SystemTurns::kAnywhere;
  }

  // Whether white space around texts is taken away, role by role.
  Status ReadTrim() {
    struct Side {
      bool seen = false, trims = false;
      bool Is(bool now) {  // the same wherever that role speaks
        const bool agrees = !seen || trims == now;
        seen = true, trims = now;
        return agrees;
      }
    };
    Side start[3], end[3], after_system;
    const bool system = format_.system_turns != SystemTurns::kNone;
    for (const char* roles : {"uauau", system ? "suauau" : "u"}) {
      const Messages plain = Talk(roles), padded = Talk(roles, kBefore, kBehind);
      auto bare = Cut(plain, true), full = Cut(padded, true);
      if (!bare.ok() || !full.ok()) return Refusal((bare.ok() ? full : bare).status().message());
      for (size_t i = 0; i < plain.size(); ++i) {
        const std::string &before = full.value()[i], &behind = full.value()[i + 1];
        const bool keeps_start = EndsWith(before, bare.value()[i] + kBefore),
                   keeps_end = BeginsWith(behind, kBehind + bare.value()[i + 1]);
        const bool after = i > 0 && plain[i - 1].role == ChatMessage::kSystem;
        Side& first = after ? after_system : start[plain[i].role];
        if (!first.Is(!keeps_start) || !end[plain[i].role].Is(!keeps_end))
          return Refusal("whether it takes white space away depends on the place of a turn");
      }
    }
    constexpr uint8_t kStarts[] = {kTrimSystemStart, kTrimUserStart, kTrimAssistantStart};
    constexpr uint8_t kEnds[] = {kTrimSystemEnd, kTrimUserEnd, kTrimAssistantEnd};
    for (int role = 0; role < 3; ++role) {
      if (start[role].trims) format_.trim |= kStarts[role];
      if (end[role].trims) format_.trim |= kEnds[role];
    }
    if (after_system.trims) format_.trim |= kTrimUserStartAfterSystem;
    return {};
  }

  // Other conversations: what the marks give is what the template gives.
  Status Verify() const {
    std::vector<const char*> talks = {"u", "uau", "uauau"};
    if (format_.system_turns != SystemTurns::kNone) talks.insert(talks.end(), {"su", "suau", "suauau"});
    if (format_.system_turns == SystemTurns::kAnywhere) talks.insert(talks.end(), {"uasu", "suasuau"});
    const std::pair<const char*, const char*> around[] = {{"", ""},
                                                          {kBefore, kBehind},
                                                          {"first line\n\n", "\n  last: \xC3\xA9 {x} \"y\""},
                                                          {"\xE3\x80\x80", "\r\n"}};
    for (const char* roles : talks) {
      for (const auto& [before, behind] : around) {
        const Messages messages = Talk(roles, before, behind);
        auto rendered = Render(messages, true);
        if (!rendered.ok()) return Refusal(rendered.status().message());
        if (rendered.value() != WriteTurns(format_, messages))
          return Refusal("what it writes depends on more than whose turn it is");
      }
    }
    return {};
  }

  ChatTemplate chat_;
  const std::tm& today_;
  std::vector<std::string>* const notes_;
  const std::tm* date_ = nullptr;
  jinja::Template template_;
  TurnFormat format_;
  std::string no_system_;
  // Before the first message, between user and assistant, between assistant and user, behind the last.
  std::string begin_, to_assistant_, to_user_, end_;
};

}  // namespace

std::string WriteTurns(const TurnFormat& format, const std::vector<ChatMessage>& messages) {
  std::string out;
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& m = messages[i];
    const bool after_system = i > 0 && messages[i - 1].role == ChatMessage::kSystem;
    const auto trims = [&](int bit) { return (format.trim & bit) != 0; };
    const std::string* suffix = nullptr;
    bool start = false, end = false;
    switch (m.role) {
      case ChatMessage::kSystem:
        out += i == 0 ? format.first_system_prefix.value_or(format.system_prefix) : format.system_prefix;
        suffix = &format.system_suffix;
        start = trims(kTrimSystemStart), end = trims(kTrimSystemEnd);
        break;
      case ChatMessage::kUser:
        out += i == 0         ? format.first_user_prefix.value_or(format.user_prefix)
               : after_system ? format.user_prefix_after_system.value_or(format.user_prefix)
                              : format.user_prefix;
        suffix = &format.user_suffix;
        start = trims(after_system ? kTrimUserStartAfterSystem : kTrimUserStart), end = trims(kTrimUserEnd);
        break;
      case ChatMessage::kAssistant:
        out += format.assistant_prefix;
        suffix = &format.assistant_suffix;
        start = trims(kTrimAssistantStart), end = trims(kTrimAssistantEnd);
        break;
    }
    out += jinja::Strip(m.text, nullptr, start, end) + *suffix;
  }
  return out + format.answer_prefix.value_or(format.assistant_prefix);
}

Result<TurnFormat> CompileTurnFormat(const ChatTemplate& chat, const std::tm& today,
                                     std::vector<std::string>* notes) {
  auto format = Compiler(chat, today, notes).Run();
  const std::string nearest = Nearest(chat.text);
  if (format.ok() || nearest.empty()) return format;
  return Status(Code::kUnsupported, format.status().message() + "; its marks look like those of " + nearest);
}

Result<std::string> RenderChat(const ChatTemplate& chat, const std::vector<ChatMessage>& messages,
                               bool answer, const std::tm* date) {
  auto parsed = jinja::Template::Parse(chat.text);
  if (!parsed.ok()) return parsed.status();
  return RenderMessages(parsed.value(), chat, messages, answer, date);
}

}  // namespace kvc
