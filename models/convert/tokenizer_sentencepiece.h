// SentencePiece tokenizer.model (a serialized ModelProto) into a TokenizerSpec.
#pragma once
#include <cstdint>

#include "lib/base/span.h"
#include "lib/base/status.h"
#include "lib/model/tokenizer.h"

namespace kvc {

// Reads pieces, scores, kinds, special ids and the space rules. kBadModel: damaged. kUnsupported: names the
// model type (Unigram, word, char), normalizer rules or option that is not known.
Result<TokenizerSpec> ReadSentencePiece(Span<const uint8_t> bytes);

}  // namespace kvc
