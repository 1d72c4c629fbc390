// Experts in MXFP4 as safetensors hold them: NAME_blocks, codes of four bits, two a byte, the even column
// below, 16 bytes a block of 32 columns; NAME_scales, a power of two for each block.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "models/convert/packed_linear.h"

namespace kvc {

// Replaces the tensors NAME_blocks [.., columns / 32, 16] and NAME_scales [.., columns / 32] among `found` by
// one NAME_blocks [.., columns] of type MXFP4, which refers to a layer in `layers`. kBadModel: one without
// the other, or shapes that do not fit each other.
Status CollectMxfp4(std::vector<FoundTensor>* found, std::vector<std::unique_ptr<PackedLinear>>* layers);

// n rows of a layer from `first` on, every `step`-th, as GGUF's blocks of MXFP4 have them. read: to be kept
// from call to call.
Status ReadMxfp4Rows(const PackedLinear& layer, int64_t first, int64_t n, int32_t step,
                     std::vector<uint8_t>* read, uint8_t* out);

}  // namespace kvc
