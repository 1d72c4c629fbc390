// Arbitrary bytes as a chat template: parsed, rendered on the converter's probes, made a turn format or
// refused by name.
#include <string>
#include <vector>

#include "models/convert/turn_format.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvc;
  const ChatTemplate chat{std::string(reinterpret_cast<const char*>(data), size), "<s>", "</s>", "", ""};
  std::tm day{};
  day.tm_year = 125, day.tm_mon = 2, day.tm_mday = 4;
  std::vector<std::string> notes;
  const Result<TurnFormat> format = CompileTurnFormat(chat, day, &notes);
  if (!format.ok()) {
    if (format.status().code() != Code::kUnsupported || format.status().message().size() > 2000)
      __builtin_trap();
    return 0;
  }
  for (const char* answer : {"yes", "Jinja {{ 2 }}\n\nmore"}) {
    const std::vector<ChatMessage> talk = {
        {ChatMessage::kUser, "one"}, {ChatMessage::kAssistant, answer}, {ChatMessage::kUser, "two"}};
    const std::string written = WriteTurns(format.value(), talk);
    if (written.find("one") == std::string::npos || written.find("two") == std::string::npos)
      __builtin_trap();
  }
  return 0;
}
