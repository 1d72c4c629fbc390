// Weights as this processor's kernels like them: panels where the shape allows, as they lie where it does
// not.
#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/raw.h"
#include "lib/ops/weight_panels.h"

namespace kvc::cpu {
namespace {

// Rows that are only looked up are best where they lie: the few that are touched are all that is read of the
// file.
bool Packs(const KernelTable& kernels, const Weight& w, MatrixUse use) {
  return use == MatrixUse::kProducts && kernels.prefers_panels && w.layout == WeightLayout::kRowMajor &&
         FitsPanels(w);
}

int64_t PackedBytes(const Weight& w) { return (PlaceOf(ShapeInPanels(w)).n_bytes + 63) / 64 * 64; }

}  // namespace

int64_t CpuDevice::PreparedBytes(Span<const Weight> tensors, MatrixUse use) const {
  int64_t bytes = 0;
  for (const Weight& w : tensors) bytes += Packs(kernels_, w, use) ? PackedBytes(w) : 0;
  return bytes;
}

// Bytes: every weight read and written once.
Status CpuDevice::Prepare(Span<const Weight> tensors, Span<const DevicePtr<const float>> biases,
                          MatrixUse use, Matrix* out) {
  *out = {};
  const int64_t bytes = PreparedBytes(tensors, use);
  if (bytes > 0) {
    KVC_RETURN_IF_ERROR(AllocateWeights(bytes, &out->memory));
    out->bytes = bytes;
  }
  out->n_parts = static_cast<int32_t>(tensors.size());
  out->cols = tensors[0].cols, out->stack = tensors[0].stack;
  uint8_t* at = Raw(out->memory);
  for (size_t i = 0; i < tensors.size(); ++i) {
    Weight w = tensors[i];
    if (Packs(kernels_, w, use)) {
      pool_->ParallelFor(PanelsOf(w.rows),
                         [&](int64_t p, int) { PackPanel(w, static_cast<int32_t>(p), at); });
      w = PanelsAt(w, at);
      at += PackedBytes(tensors[i]);
    }
    out->parts[i] = {w.type,
                     w.layout,
                     w.rows,
                     w.group,
                     AddressOf(static_cast<const uint8_t*>(w.data)),
                     AddressOf(w.scales),
                     biases.empty() ? DevicePtr<const float>() : biases[i]};
  }
  return {};
}

Status CpuDevice::PrepareVector(const float* values, int32_t, Vector* out) {
  *out = {AddressOf(values), {}, 0};
  return {};
}

int64_t CpuDevice::PreparedVectorBytes(int32_t) const { return 0; }

}  // namespace kvc::cpu
