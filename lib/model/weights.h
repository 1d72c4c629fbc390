// The tensors of a model by what they do in the network, as the device wants them.
#pragma once
#include <vector>

#include "lib/base/memory_meter.h"
#include "lib/model/model_file.h"
#include "lib/ops/device.h"

namespace kvc {

// Device memory that matrices own, counted while this lives. Movable.
class PreparedMemory {
 public:
  PreparedMemory() = default;
  PreparedMemory(PreparedMemory&& o) noexcept { Swap(o); }
  PreparedMemory& operator=(PreparedMemory&& o) noexcept {
    Swap(o);
    return *this;
  }
  ~PreparedMemory();
  // Device::Prepare, its memory taken through the meter (null: not counted) beforehand. On failure nothing is
  // kept. With a meter that only counts nothing is prepared: matrices have no numbers then, vectors are null.
  Status Prepare(Device* device, MemoryMeter* meter, Span<const Weight> tensors,
                 Span<const DevicePtr<const float>> biases, MatrixUse use, Matrix* out);
  Status PrepareVector(Device* device, MemoryMeter* meter, const float* values, int32_t n,
                       DevicePtr<const float>* out);
  int64_t bytes() const { return bytes_; }

 private:
  void Swap(PreparedMemory& o) noexcept;
  Status Take(Device* device, MemoryMeter* meter, int64_t bytes);
  struct Block {
    DeviceBytes at;
    int64_t bytes;
  };
  Device* device_ = nullptr;
  MemoryMeter* meter_ = nullptr;
  std::vector<Block> blocks_;
  int64_t bytes_ = 0;
};

struct Weights {
  NetworkShape shape;
  Matrix embedding, output_head;
  DevicePtr<const float> final_norm, final_norm_bias;
  std::vector<LayerMatrices> layers;
  // Those that steps read.
  std::vector<const Matrix*> Matrices() const;
  PreparedMemory memory;
  int64_t replaced_bytes = 0;  // of tensors of the file that are not read any more

  // Prepares every tensor of the file, one matrix at a time; device and meter outlive the result, and so does
  // the file, since what needs no other form stays there. meter: may be null; it has counted the file's
  // tensors where they are mapped, and they leave it as they are replaced, also where it fails behind that.
  // watch: as of ModelFile::Open. kBadModel names a tensor that is missing; kMemory. With a meter that only
  // counts no number of the file is read, and what comes has a shape alone.
  static Result<Weights> Prepare(const ModelFile& file, Device* device, MemoryMeter* meter = nullptr,
                                 CallState* watch = nullptr);
};

}  // namespace kvc
