// Where sources keep their chat template, and what becomes of it.
#pragma once
#include <string>

#include "models/convert/checkpoint.h"
#include "models/convert/json.h"
#include "models/convert/turn_format.h"

namespace kvc {

// The texts of the special tokens that a tokenizer has.
ChatTemplate ChatTemplateOf(std::string text, const TokenizerSpec& spec);

// The chat template of a Hugging Face directory, as transformers finds it: chat_template.jinja,
// chat_template.json, or what tokenizer_config.json (config, may be null) has, of several the one called
// default. Empty: none. Files that were read are added to out->inputs.
Result<std::string> FindChatTemplate(const std::string& directory, const Json* config, Checkpoint* out);

// Compiles the template into out->content.turn_format; what cannot be kept, and what is lacking, becomes a
// warning.
void KeepChatTemplate(const ChatTemplate& chat, Checkpoint* out);

}  // namespace kvc
