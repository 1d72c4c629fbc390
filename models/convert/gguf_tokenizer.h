// The tokenizer in GGUF metadata into a TokenizerSpec.
#pragma once
#include "lib/model/tokenizer.h"
#include "models/convert/gguf_metadata.h"

namespace kvc {

// Models "gpt2" (byte-level BPE; tokenizer.ggml.pre names the pre-tokenizer) and "llama" (SentencePiece BPE).
// kUnsupported names what else is found.
Result<TokenizerSpec> ReadGgufTokenizer(GgufMetadata* metadata);

}  // namespace kvc
