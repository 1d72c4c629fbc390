// Weights as kernels read them: row major, rows behind each other, codes and then scales, every tensor at a
// multiple of 256 bytes. What a file has in panels is laid in rows again. Uploaded by pieces of a few MiB, so
// that no second copy of a model is ever in the host's memory.
#include <algorithm>
#include <vector>

#include "cuda/cuda_device.h"
#include "lib/ops/weight_panels.h"

namespace kvc::cuda {
namespace {

constexpr int64_t kPiece = 4 << 20;

int64_t Align(int64_t n) { return (n + 255) / 256 * 256; }
int64_t CodeBytesOf(const Weight& w) { return int64_t{w.rows} * WeightRowBytes(w.type, w.cols); }
int64_t ScaleBytesOf(const Weight& w) { return w.group > 0 ? int64_t{2} * w.rows * (w.cols / w.group) : 0; }
int64_t BytesOf(const Weight& w) { return Align(CodeBytesOf(w)) + Align(ScaleBytesOf(w)); }

Status Upload(uint8_t* to, const void* from, int64_t bytes) {
  for (int64_t at = 0; at < bytes; at += kPiece) {
    const int64_t n = std::min(kPiece, bytes - at);
    KVC_RETURN_IF_ERROR(Check(cudaMemcpyAsync(to + at, static_cast<const uint8_t*>(from) + at,
                                              static_cast<size_t>(n), cudaMemcpyHostToDevice, nullptr),
                              "weights for the device"));
  }
  return {};
}

Status UploadRows(const Weight& w, uint8_t* codes, uint8_t* scales) {
  if (w.layout == WeightLayout::kRowMajor) {
    KVC_RETURN_IF_ERROR(Upload(codes, w.data, CodeBytesOf(w)));
    return Upload(scales, w.scales, ScaleBytesOf(w));
  }
  const int64_t row_bytes = WeightRowBytes(w.type, w.cols), row_scales = w.group > 0 ? w.cols / w.group : 0;
  const int32_t at_once = static_cast<int32_t>(std::clamp<int64_t>(kPiece / row_bytes, 1, w.rows));
  std::vector<uint8_t> rows(static_cast<size_t>(at_once * row_bytes));
  std::vector<uint16_t> factors(static_cast<size_t>(at_once * row_scales + 1));
  for (int32_t r = 0; r < w.rows; r += at_once) {
    const int32_t n = std::min(at_once, w.rows - r);
    for (int32_t i = 0; i < n; ++i)
      UnpackRow(w, r + i, rows.data() + i * row_bytes, factors.data() + i * row_scales);
    KVC_RETURN_IF_ERROR(Upload(codes + r * row_bytes, rows.data(), n * row_bytes));
    KVC_RETURN_IF_ERROR(Upload(scales + 2 * r * row_scales, factors.data(), 2 * n * row_scales));
    KVC_RETURN_IF_ERROR(Check(cudaStreamSynchronize(nullptr), "weights for the device"));
  }
  return {};
}

}  // namespace

int64_t CudaDevice::PreparedBytes(Span<const Weight> tensors, MatrixUse) const {
  int64_t bytes = 0;
  for (const Weight& w : tensors) bytes += BytesOf(w);
  return bytes;
}

Status CudaDevice::Prepare(Span<const Weight> tensors, Span<const DevicePtr<const float>> biases,
                           MatrixUse use, Matrix* out) {
  *out = {};
  const int64_t bytes = PreparedBytes(tensors, use);
  KVC_RETURN_IF_ERROR(Allocate(bytes, "weights", &out->memory));
  out->bytes = bytes;
  out->n_parts = static_cast<int32_t>(tensors.size());
  out->cols = tensors[0].cols;
  uint8_t* at = At(out->memory);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Weight& w = tensors[i];
    uint8_t *codes = at, *scales = at + Align(CodeBytesOf(w));
    Status status = UploadRows(w, codes, scales);
    if (status.ok()) status = Check(cudaStreamSynchronize(nullptr), "weights for the device");
    if (!status.ok()) {
      Free(out->memory, bytes);
      *out = {};
      return status;
    }
    out->parts[i] = {w.type,
                     WeightLayout::kRowMajor,
                     w.rows,
                     w.group,
                     AddressOf(static_cast<const uint8_t*>(codes)),
                     AddressOf(reinterpret_cast<const uint16_t*>(scales)),
                     biases.empty() ? DevicePtr<const float>() : biases[i]};
    at += BytesOf(w);
  }
  return {};
}

int64_t CudaDevice::PreparedVectorBytes(int32_t n) const { return Align(int64_t{4} * n); }

Status CudaDevice::PrepareVector(const float* values, int32_t n, Vector* out) {
  *out = {};
  KVC_RETURN_IF_ERROR(Allocate(PreparedVectorBytes(n), "weights", &out->memory));
  out->bytes = PreparedVectorBytes(n);
  Status status = Upload(At(out->memory), values, int64_t{4} * n);
  if (status.ok()) status = Check(cudaStreamSynchronize(nullptr), "weights for the device");
  if (!status.ok()) {
    Free(out->memory, out->bytes);
    *out = {};
    return status;
  }
  out->at = out->memory.As<const float>();
  return {};
}

}  // namespace kvc::cuda
