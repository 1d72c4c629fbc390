// Hugging Face tokenizer.json into a TokenizerSpec.
#pragma once
#include <string>

#include "lib/base/status.h"
#include "lib/model/tokenizer.h"

namespace kvc {

// Reads the text of a tokenizer.json whose model is BPE: byte-level (GPT-2, Llama 3, Qwen) or with a "▁"
// normalizer and byte fallback (Llama 2, Mistral; becomes kSentencePieceBpe, scores from the ranks of the
// merges). Token ids that the file leaves free become kUnused pieces. bos, add_bos, begin_tokens and, where a
// usual name tells them, eos and the stop tokens are filled in from the file itself; config.json and
// tokenizer_config.json may say more, and then win. kBadModel: damaged or inconsistent. kUnsupported: names
// the model, normalizer, pre-tokenizer or option that is not known.
Result<TokenizerSpec> ReadHfTokenizer(const std::string& json_text);

}  // namespace kvc
