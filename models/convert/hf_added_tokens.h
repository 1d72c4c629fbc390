// Tokens that a Hugging Face directory adds to SentencePiece's own file (tokenizer.model).
#pragma once
#include <string>

#include "models/convert/checkpoint.h"
#include "models/convert/json.h"

namespace kvc {

// Into out->content.tokenizer: added_tokens_decoder of tokenizer_config.json (`config`), without it those of
// added_tokens.json, of which special_tokens_map.json and `config` say which are special.
Status AddHfTokens(const std::string& directory, const JsonObject& config, int32_t vocab_size,
                   Checkpoint* out);

}  // namespace kvc
