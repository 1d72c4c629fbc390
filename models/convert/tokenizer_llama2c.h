// llama2.c tokenizer (tok512.bin and the like) into a TokenizerSpec.
#pragma once
#include <cstdint>

#include "lib/base/span.h"
#include "lib/base/status.h"
#include "lib/model/tokenizer.h"

namespace kvc {

// The file: int32 longest piece, then for each id float32 score, int32 length, bytes; little-endian. It does
// not say how many pieces it has: vocab_size comes from the weights. Ids 0, 1, 2 are <unk>, <s>, </s>, then
// 256 byte pieces. kBadModel: cut, trailing bytes, impossible lengths.
Result<TokenizerSpec> ReadLlama2cTokenizer(Span<const uint8_t> bytes, int32_t vocab_size);

}  // namespace kvc
