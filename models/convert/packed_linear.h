// Linear layers that GPTQ or AWQ quantised to four bits, as safetensors hold them: whole numbers packed into
// int32, with a scale and a zero for each group of columns.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/convert/checkpoint.h"
#include "models/convert/json.h"

namespace kvc {

// How a checkpoint is quantised: quantization_config of config.json, or quantize_config.json of older ones.
struct PackedScheme {
  enum Kind : uint8_t { kNone, kGptq, kAwq, kMxfp4 } kind = kNone;  // kMxfp4: packed_mxfp4.h
  int32_t group_size = 128;                                         // columns; -1: all of a row
  int32_t zero_step = 0;  // what is added to a stored zero, modulo 16: 1 in GPTQ's first format
};
// kUnsupported names the method or setting that is not supported.
Result<PackedScheme> ReadPackedScheme(const JsonObject& object);

// value[r, c] = scale[g, r] * (code[c, r] - zero[g, r]), g the group of column c.
struct PackedLinear {
  PackedScheme scheme;
  FoundTensor codes, zeros, scales, order;  // order: the group of each column; without a file: neighbours
  int32_t rows = 0, cols = 0, group = 0;
  SourceType type{};    // what PackedReader makes of it
  int64_t n_bytes = 0;  // of all of its tensors
};

// Replaces the tensors NAME.qweight, .qzeros, .scales and .g_idx among `found` by one NAME.weight [rows,
// cols], which refers to a layer in `layers`, and marks biases of such layers that are 0. kBadModel: parts
// that are missing or do not fit; kUnsupported: groups that cannot be read.
Status CollectPacked(const PackedScheme& scheme, std::vector<FoundTensor>* found,
                     std::vector<std::unique_ptr<PackedLinear>>* layers);

// The rows of one layer at a time, which is held in memory as it is packed.
class PackedReader {
 public:
  Status Load(const PackedLinear& layer);  // nothing when it is loaded
  // Rows [first, first + n) as layer.type has them.
  void Rows(int64_t first, int64_t n, uint8_t* out) const;
  int64_t bytes() const {
    return static_cast<int64_t>(4 * (codes_.size() + zeros_.size() + order_.size()) + 2 * scales_.size());
  }

 private:
  int32_t Code(int64_t row, int64_t col) const;
  int32_t Zero(int64_t row, int64_t group) const;

  const PackedLinear* layer_ = nullptr;
  std::vector<uint32_t> codes_, zeros_, order_;
  std::vector<uint16_t> scales_;
};

}  // namespace kvc
