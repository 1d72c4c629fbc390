// Values into blocks of GGUF, the same bytes on every machine. Q8_0 and Q4_0 are what llama.cpp makes; Q4_K
// and Q6_K are plain: scales from the extremes of a group, where llama.cpp searches for better ones.
#pragma once
#include <cstdint>

namespace kvc::test {

struct BlockForm {
  const char* name;
  uint32_t number;          // GGML's
  int32_t elements, bytes;  // of a block
  void (*encode)(const float* x, uint8_t* out);
};
extern const BlockForm kQ8_0Blocks, kQ4_0Blocks, kQ4KBlocks, kQ6KBlocks;

}  // namespace kvc::test
