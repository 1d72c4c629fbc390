// What stands between the layers of a prompt, a row for every token: in f32, or of long prompts in f16 with a
// factor for every row, where the device and the request have f16 for the prompt's layers (PromptRequest).
#pragma once
#include "lib/ops/device.h"
#include "lib/ops/device_buffer.h"

namespace kvc {

class PromptResidual {
 public:
  // At most `chunk` rows are worked on at once.
  Status Reserve(const DeviceMemory& memory, int64_t rows, int32_t hidden, int32_t chunk, bool halves);
  void Free();
  int64_t bytes() const { return x_.bytes() + halves_.bytes() + factors_.bytes(); }

  // Where rows from `row` on are worked on, as they were stored or, before the first Store, without numbers.
  DevicePtr<float> Place(int64_t row) const;
  Status Load(Stream* stream, Device* device, int64_t row, int32_t n);
  // Of all rows of a Place.
  Status Store(Stream* stream, Device* device, int64_t row, int32_t n);
  // Row `at` of the Place of `row` is the last of the prompt, and stays.
  Status KeepLast(Stream* stream, Device* device, int64_t row, int32_t at);
  DevicePtr<float> last() const { return last_; }  // [hidden]

 private:
  HalfRowsArgs ArgsOf(int64_t row, int32_t n) const;

  DeviceBuffer<float> x_;          // [rows, hidden], or [chunk + 1, hidden] beside halves
  DeviceBuffer<uint16_t> halves_;  // [rows, hidden]
  DeviceBuffer<float> factors_;    // [rows]
  int32_t hidden_ = 0, chunk_ = 0;
  bool in_halves_ = false;
  DevicePtr<float> last_;
};

}  // namespace kvc
