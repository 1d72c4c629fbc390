// A model's chat template as the turn format of its file: the marks that stand around what each role says.
#pragma once
#include <ctime>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "lib/model/model_file.h"

namespace kvc {

// A chat template with the texts of the tokens that it may name; empty: the model has none.
struct ChatTemplate {
  std::string text, bos, eos, unk, pad;
  bool parts = false;  // it wants what is said as a list of parts, [{"type": "text", "text": ..}]
};

struct ChatMessage {
  enum Role { kSystem, kUser, kAssistant } role;
  std::string text;
};

// Renders the template on conversations made up for it and reads the marks off them, then compares what they
// give with what the template gives on others. kUnsupported: the text names what the template does that no
// marks around texts can say, or what of its language is not known, with the line. today: what strftime_now
// tells, to templates that cannot do without. notes gets sentences for people: what such a file lacks.
Result<TurnFormat> CompileTurnFormat(const ChatTemplate& chat, const std::tm& today,
                                     std::vector<std::string>* notes);

// What a session reads (kvc_session_say) where these are said one after the other and the model is to answer.
std::string WriteTurns(const TurnFormat& format, const std::vector<ChatMessage>& messages);

// The template rendered on messages as transformers renders it, with add_generation_prompt as `answer`. date
// null: without strftime_now.
Result<std::string> RenderChat(const ChatTemplate& chat, const std::vector<ChatMessage>& messages,
                               bool answer, const std::tm* date);

}  // namespace kvc
