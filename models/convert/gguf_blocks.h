// The quantised blocks of GGUF, and those that packed weights become: whole numbers that share scales. One
// row a type; every other place reads the row.
#pragma once
#include <cstdint>

#include "lib/base/span.h"
#include "models/convert/checkpoint.h"

namespace kvc {

constexpr int32_t kMaxBlock = 256;

// A block taken apart. Element i is scale[i / group] * code[i], plus offset[i / group] where the type has
// offsets: product and sum rounded to f32 one after the other, which is what llama.cpp and the package gguf
// compute.
struct BlockCodes {
  int8_t code[kMaxBlock];
  float scale[kMaxBlock / 16], offset[kMaxBlock / 16];
};

struct BlockFormat {
  SourceType type;
  uint32_t number;          // GGML's
  int32_t elements, bytes;  // of a block
  int32_t group;            // elements that share a scale
  bool has_offset;
  int8_t least, most;  // codes
  uint8_t halves,
      n_halves;  // the byte at which its f16 stand, on which all scales and offsets hang; 0: others do
  void (*unpack)(const uint8_t* block, BlockCodes* out);
};

// Null: elements of this type stand alone.
const BlockFormat* BlockFormatOf(SourceType type);
Span<const BlockFormat> BlockFormats();  // of GGUF

}  // namespace kvc
