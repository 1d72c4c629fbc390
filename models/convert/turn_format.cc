#include "models/convert/turn_format.h"

namespace kvc {
namespace {

struct Family {
  const char* marks[3];  // all must stand in the template; null: none
  const char *system_prefix, *system_suffix, *user_prefix, *user_suffix, *assistant_prefix, *assistant_suffix;
};

// Llama 2 and Mistral have no system turn of their own: their system text stands inside the first user turn.
constexpr Family kFamilies[] = {
    {{"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},  // Llama 3
     "<|start_header_id|>system<|end_header_id|>\n\n",
     "<|eot_id|>",
     "<|start_header_id|>user<|end_header_id|>\n\n",
     "<|eot_id|>",
     "<|start_header_id|>assistant<|end_header_id|>\n\n",
     "<|eot_id|>"},
    {{"<|im_start|>", "<|im_end|>", nullptr},  // ChatML: Qwen, InternLM2
     "<|im_start|>system\n",
     "<|im_end|>\n",
     "<|im_start|>user\n",
     "<|im_end|>\n",
     "<|im_start|>assistant\n",
     "<|im_end|>\n"},
    {{"[INST]", "<<SYS>>", nullptr}, "", "", "[INST] ", " [/INST]", " ", " </s>"},      // Llama 2
    {{"[INST]", " [/INST]", nullptr}, "", "", "[INST] ", " [/INST]", "", "</s>"},       // Mistral
    {{"[INST]", "[/INST]", nullptr}, "", "", "[INST] ", "[/INST]", " ", "</s>"},        // Mistral, newer
    {{"USER: ", "ASSISTANT:", nullptr}, "", " ", "USER: ", " ", "ASSISTANT:", "</s>"},  // Vicuna
};

}  // namespace

TurnFormat RecognizeTurnFormat(const std::string& chat_template) {
  for (const Family& family : kFamilies) {
    bool all = true;
    for (const char* mark : family.marks)
      all = all && (mark == nullptr || chat_template.find(mark) != std::string::npos);
    if (all) {
      return {family.system_prefix, family.system_suffix,    family.user_prefix,
              family.user_suffix,   family.assistant_prefix, family.assistant_suffix};
    }
  }
  return {};
}

}  // namespace kvc
