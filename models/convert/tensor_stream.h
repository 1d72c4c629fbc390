// Tensors from a source into the writer of a model file, in blocks of whole rows. The parts of a block are
// read and converted on several threads, and written in order: what is written does not depend on how many
// there are.
#pragma once
#include <functional>
#include <vector>

#include "lib/base/thread_pool.h"
#include "models/convert/convert.h"
#include "models/convert/lora.h"
#include "models/convert/packed_linear.h"
#include "models/convert/weight_codec.h"

namespace kvc {

class TensorStream {
 public:
  // All of them live longer. report: what was read, written and lost is added to it.
  TensorStream(ModelWriter* writer, LoraMerge* lora, ThreadPool* pool, ConvertReport* report)
      : writer_(writer), lora_(lora), pool_(pool), report_(report) {}
  // after_block(bytes of the source): false stops with kCancelled.
  Status Convert(const SourceTensor& tensor, const WeightTarget& target,
                 const std::function<bool(int64_t)>& after_block);

 private:
  // Rows [first, first + n) of a run, the first of them row `row` of the tensor.
  struct Rows {
    const SourceTensor::Run& run;
    int64_t first, row, n;
  };
  // What a thread has of a block.
  struct Part {
    std::vector<uint8_t> in, out, read;  // read: of MXFP4, or columns, as they come
    std::vector<float> values, stored;
    const void* result = nullptr;          // what is written: one of these
    double squares = 0, lost_squares = 0;  // its values, and what they differ by once stored
    Status status;
    int64_t bytes() const;
  };

  int64_t BufferBytes() const;
  void Reserve(const SourceTensor& tensor, const WeightTarget& target, int64_t rows, int64_t n_parts);
  bool IsSerial(const SourceTensor& tensor) const;
  // Whether what is written is what was read, or what an adapter made of it.
  bool Exact(const SourceTensor& tensor, const WeightTarget& target) const;
  Status Block(const SourceTensor& tensor, const WeightTarget& target, const Rows& rows, int64_t part_rows);
  Status Read(const SourceTensor& tensor, const Rows& rows, Part* part);
  Status One(const SourceTensor& tensor, const WeightTarget& target, const Rows& rows, Part* part);
  Status Adapt(const SourceTensor& tensor, const Rows& rows, Part* part);
  Status Write(const void* data, int64_t n_bytes);
  void Count(const SourceTensor& tensor, const WeightTarget& target, int64_t bytes_out);

  ModelWriter* writer_;
  LoraMerge* lora_;
  ThreadPool* pool_;
  ConvertReport* report_;
  bool changes_ = false;  // an adapter changes the tensor
  PackedReader packed_;
  std::vector<Part> parts_;
  double squares_ = 0, lost_squares_ = 0;  // of the tensor
  std::vector<uint16_t> scales_;           // of the whole tensor: they follow its codes
};

}  // namespace kvc
