// Blocks of GGUF that products take as they are: 256 columns of a row, with scales of groups that are
// themselves multiples of one or two f16. All numbers little endian.
//
//   q4_k   f16 d, f16 least; 12 bytes with a scale s and a least value m of 6 bits for each group of 32; 128
//          bytes of codes, four bits: of each 64 columns the first 32 below, the others above.
//          value = d s code - least m, codes 0 to 15. 144 bytes: 4.5 bits a weight
//   q6_k   128 bytes of the low four bits (of each 128 columns the first 64 below, the others above), 64 of
//          the high two, 16 scales int8, one for each group of 16, f16 d.
//          value = d s code, codes -32 to 31. 210 bytes: 6.5625 bits a weight
//
// In panels a block of 16 rows has the same numbers, so that one vector load brings those of 16 rows, and
// what belongs to a block of columns lies together: one stream from memory.
//
//   q4_k   f16 d [16], f16 least [16]; u8 s [8][16], u8 m [8][16]; codes [32][16 rows][4] as in panels of
//          int4, but 0 to 15: 37 lines of 64 bytes, 4.625 bits a weight, 2.8 % more than the block
//   q6_k   f16 d [16], zeros to a line; int8 s [16][16]; for each group of 16 columns three lines: two of the
//          low bits like int4, one of the high ones, byte j of a row with columns j, 4 + j, 8 + j, 12 + j
//          from its lowest bits on; codes + 32: 53 lines, 6.625 bits, 1 % more
//
// Integer operations are those of int4 and int8: 2 a weight and row of activations. A group costs besides 4
// operations in f32 a vector of sums (to float, two products, a sum), those of q4_k 2 more (a product, a
// difference): its least value times the sum of the activations, which is known.
#pragma once
#include <cstdint>

#include "lib/ops/tensor.h"

namespace kvc {

constexpr int32_t kBlockColumns = 256;
constexpr int32_t kMostBlockGroups = 16;  // in a block

// A block taken apart. Column c is scale[g] * code[c] - least[g], g = c / the group of its type. The products
// that make scale and least have at most 19 bits: they are exact in f32.
struct WeightBlock {
  int8_t code[kBlockColumns];
  float scale[kMostBlockGroups], least[kMostBlockGroups];  // q6_k: least is 0
};
// Block b of row r, in either layout.
void ReadBlock(const Weight& w, int32_t r, int32_t b, WeightBlock* out);
// The same of a block by itself.
void ReadBlockOf(WeightType type, const uint8_t* block, WeightBlock* out);

// Scales and least values of eight groups, six bits each, in 12 bytes: also those of Q5_K.
void ReadSixBits(const uint8_t* in, uint8_t* scale, uint8_t* least);

// Where the f16 of a block, or of a block of 16 rows in panels, lie: those who check that they are finite
// look there.
struct BlockHalves {
  int64_t stride, offset, count;  // bytes of a block, bytes, f16
};
BlockHalves HalvesOf(WeightType type, WeightLayout layout);
// Bytes [begin, end) of a block of 16 rows of q4_k in panels, its scales and least values, are at most
// `most`.
struct SixBitBytes {
  int64_t begin, end;
  uint8_t most;
};
SixBitBytes SixBitBytesOfPanels();

// PanelFormat's functions (weight_panels.h).
void PackQ4K(const Weight& from, int32_t row, uint8_t* to);
void PackQ6K(const Weight& from, int32_t row, uint8_t* to);
void UnpackQ4K(const uint8_t* panel, int32_t cols, int32_t lane, uint8_t* to);
void UnpackQ6K(const uint8_t* panel, int32_t cols, int32_t lane, uint8_t* to);

}  // namespace kvc
