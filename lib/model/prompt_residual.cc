#include "lib/model/prompt_residual.h"

namespace kvc {

Status PromptResidual::Reserve(const DeviceMemory& memory, int64_t rows, int32_t hidden, int32_t chunk,
                               bool halves) {
  const char* what = "activations of the prompt";
  hidden_ = hidden, chunk_ = chunk, in_halves_ = halves, last_ = {};
  KVC_RETURN_IF_ERROR(x_.Reserve(memory, (halves ? int64_t{chunk} + 1 : rows) * hidden, what));
  if (!halves) return {};
  KVC_RETURN_IF_ERROR(halves_.Reserve(memory, rows * hidden, what));
  return factors_.Reserve(memory, rows, what);
}

void PromptResidual::Free() { x_.Free(), halves_.Free(), factors_.Free(), last_ = {}; }

DevicePtr<float> PromptResidual::Place(int64_t row) const {
  return x_.at() + (in_halves_ ? 0 : row * hidden_);
}

HalfRowsArgs PromptResidual::ArgsOf(int64_t row, int32_t n) const {
  return {x_.at(), halves_.at() + row * hidden_, factors_.at() + row, n, hidden_};
}

Status PromptResidual::Load(Stream* stream, Device* device, int64_t row, int32_t n) {
  return in_halves_ ? device->LoadHalves(stream, ArgsOf(row, n)) : Status();
}

Status PromptResidual::Store(Stream* stream, Device* device, int64_t row, int32_t n) {
  return in_halves_ ? device->StoreHalves(stream, ArgsOf(row, n)) : Status();
}

// Beside halves, behind the rows that others are worked on in.
Status PromptResidual::KeepLast(Stream* stream, Device* device, int64_t row, int32_t at) {
  const DevicePtr<float> from = Place(row) + int64_t{at} * hidden_;
  last_ = in_halves_ ? x_.at() + int64_t{chunk_} * hidden_ : from;
  if (!in_halves_) return {};
  const PageCopy copy{last_.As<uint8_t>(), from.As<uint8_t>(), int64_t{4} * hidden_};
  return device->Copy(stream, {&copy, 1});
}

}  // namespace kvc
