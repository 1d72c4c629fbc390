// Weights as kernels read them: row major, rows behind each other, codes and then scales, every tensor at a
// multiple of 256 bytes. What a file has in panels is laid in rows again; blocks of GGUF become int8, whose
// products there are, but for q4_k, whose codes stay. Numbers of bf16 become f16 times a power of two, and so
// do the scales of codes, for what codes and scales give to be f16 too (to_halves.cu). Uploaded by pieces of
// a few MiB, so that no second copy of a model is ever in the host's memory.
#include <algorithm>
#include <cmath>
#include <vector>

#include "cuda/cuda_device.h"
#include "cuda/network.h"
#include "lib/base/half.h"
#include "lib/ops/weight_blocks.h"
#include "lib/ops/weight_panels.h"

namespace kvc::cuda {
namespace {

constexpr int64_t kPiece = 4 << 20;

int64_t Align(int64_t n) { return (n + 255) / 256 * 256; }
// Of a form, q4_k is codes of int4 and pairs of a scale and an offset.
int64_t CodeBytesOf(const Weight& w) {
  return int64_t{w.rows} * WeightRowBytes(HasOffsets(w.type) ? WeightType::kInt4 : w.type, w.cols);
}
int64_t RowNumbers(const Weight& w) { return HasOffsets(w.type) ? 2 * (w.cols / w.group) : RowScales(w); }
int64_t ScaleBytesOf(const Weight& w) { return 2 * int64_t{w.rows} * RowNumbers(w); }
int64_t BytesOf(const Weight& w) { return Align(CodeBytesOf(w)) + Align(ScaleBytesOf(w)); }

// The largest of numbers of bf16 or f16 that came by and are finite.
class Largest {
 public:
  explicit Largest(WeightType type) : mantissa_(type == WeightType::kBf16 ? 7 : 10) {}
  void Add(const void* numbers, int64_t bytes) {
    const uint16_t* x = static_cast<const uint16_t*>(numbers);
    const int16_t infinite = static_cast<int16_t>(0x7fff >> mantissa_ << mantissa_);
    int16_t largest = 0;  // bits without a sign have the order of what they say
    for (int64_t i = 0; i < bytes / 2; ++i) {
      const int16_t bits = static_cast<int16_t>(x[i] & 0x7fff);
      largest = std::max(largest, bits < infinite ? bits : int16_t{0});
    }
    bits_ = std::max(bits_, int{largest});
  }
  // The power of two that takes it below 2^end, and not below half of that (or to 0, as f16 has numbers with
  // leading zeros). kMostShift: that 2^-shift has none.
  int ShiftBelow(int end) const {
    constexpr int kMostShift = 126;
    const int bias = (1 << (14 - mantissa_)) - 1;
    return bits_ == 0 ? 0 : std::min(end - 1 - ((bits_ >> mantissa_) - bias), kMostShift);
  }

 private:
  const int mantissa_;
  int bits_ = 0;
};

// On the device's own stream: the one without a name would wait for the host program's. largest: null:
// nobody asks.
Status Upload(cudaStream_t stream, uint8_t* to, const void* from, int64_t bytes, Largest* largest) {
  for (int64_t at = 0; at < bytes; at += kPiece) {
    const int64_t n = std::min(kPiece, bytes - at);
    if (largest != nullptr) largest->Add(static_cast<const uint8_t*>(from) + at, n);
    KVC_RETURN_IF_ERROR(Check(cudaMemcpyAsync(to + at, static_cast<const uint8_t*>(from) + at,
                                              static_cast<size_t>(n), cudaMemcpyHostToDevice, stream),
                              "weights for the device"));
  }
  return {};
}

// The form of a weight here, without data.
Weight FormOf(const Weight& w) {
  const bool keeps = !HasBlocks(w.type) || (HasOffsets(w.type) && w.stack == 1);
  return {!keeps                        ? WeightType::kInt8
          : w.type == WeightType::kBf16 ? WeightType::kF16
                                        : w.type,
          WeightLayout::kRowMajor,
          w.rows,
          w.cols,
          w.group,
          nullptr,
          nullptr};
}

// A group of a block as int8. Without least values the codes stay, else the largest becomes 127. False: no
// f16 holds the scale.
bool CodeGroup(const Weight& w, const WeightBlock& block, int32_t g, int8_t* codes, uint16_t* scale) {
  const int8_t* from = block.code + g * w.group;
  float values[kBlockColumns], top = 0;
  for (int32_t i = 0; i < w.group; ++i) {
    values[i] = block.scale[g] * static_cast<float>(from[i]) - block.least[g];
    top = std::max(top, std::fabs(values[i]));
  }
  const bool keeps = w.type == WeightType::kQ6K;
  *scale = FloatToF16(keeps ? block.scale[g] : top == 0 ? 1.0f : top / 127);
  if (*scale == 0 && !keeps) *scale = 1;  // the smallest f16
  const float rounded = F16ToFloat(*scale);
  if (!std::isfinite(rounded)) return false;
  for (int32_t i = 0; i < w.group; ++i) {
    const float code = keeps ? static_cast<float>(from[i]) : std::nearbyint(values[i] / rounded);
    codes[i] = static_cast<int8_t>(std::clamp(code, -127.0f, 127.0f));
  }
  return true;
}

// The codes of a block of q4_k as those of int4, 8 less each, and what a group has beside them. Nothing is
// lost but of both numbers what f16 has not. False: it does not hold them.
bool PairGroup(const Weight& w, const WeightBlock& block, int32_t g, uint8_t* codes, uint16_t* pair) {
  constexpr int kMiddle = 8;
  const int8_t* from = block.code + g * w.group;
  for (int32_t i = 0; i < w.group; i += 2)
    codes[i / 2] = static_cast<uint8_t>(((from[i] - kMiddle) & 15) | ((from[i + 1] - kMiddle) & 15) << 4);
  pair[0] = FloatToF16(block.scale[g]);
  pair[1] = FloatToF16(kMiddle * block.scale[g] - block.least[g]);
  return std::isfinite(F16ToFloat(pair[0])) && std::isfinite(F16ToFloat(pair[1]));
}

// Row r as `form` has it.
Status ReadRow(const Weight& w, const Weight& form, int32_t r, uint8_t* codes, uint16_t* scales) {
  if (!HasBlocks(w.type)) {
    UnpackRow(w, r, codes, scales);
    return {};
  }
  const bool pairs = HasOffsets(form.type);
  WeightBlock block;
  for (int32_t b = 0; b < w.cols / kBlockColumns; ++b) {
    ReadBlock(w, r, b, &block);
    for (int32_t g = 0; g < kBlockColumns / w.group; ++g) {
      const bool fits = pairs ? PairGroup(w, block, g, codes, scales)
                              : CodeGroup(w, block, g, reinterpret_cast<int8_t*>(codes), scales);
      codes += pairs ? w.group / 2 : w.group, scales += pairs ? 2 : 1;
      if (!fits) {
        return Error(Code::kUnsupported, "weights of type %s with scales beyond f16 do not run on CUDA",
                     InfoOf(w.type).name);
      }
    }
  }
  return {};
}

// largest: of the numbers, or the scales where it is codes that have some.
Status UploadRows(cudaStream_t stream, const Weight& w, uint8_t* codes, uint8_t* scales, Largest* largest) {
  Largest* const of_numbers = HasCodes(w.type) ? nullptr : largest;
  if (!HasBlocks(w.type) && w.layout == WeightLayout::kRowMajor) {
    KVC_RETURN_IF_ERROR(Upload(stream, codes, w.data, CodeBytesOf(w), of_numbers));
    return Upload(stream, scales, w.scales, ScaleBytesOf(w), largest);
  }
  const Weight form = FormOf(w);
  const int64_t row_bytes = CodeBytesOf(form) / w.rows, row_scales = RowNumbers(form);
  const int32_t at_once = static_cast<int32_t>(std::clamp<int64_t>(kPiece / row_bytes, 1, w.rows));
  std::vector<uint8_t> rows(static_cast<size_t>(at_once * row_bytes));
  std::vector<uint16_t> factors(static_cast<size_t>(at_once * row_scales + 1));
  for (int32_t r = 0; r < w.rows; r += at_once) {
    const int32_t n = std::min(at_once, w.rows - r);
    for (int32_t i = 0; i < n; ++i)
      KVC_RETURN_IF_ERROR(
          ReadRow(w, form, r + i, rows.data() + i * row_bytes, factors.data() + i * row_scales));
    KVC_RETURN_IF_ERROR(Upload(stream, codes + r * row_bytes, rows.data(), n * row_bytes, of_numbers));
    KVC_RETURN_IF_ERROR(
        Upload(stream, scales + 2 * r * row_scales, factors.data(), 2 * n * row_scales, largest));
    KVC_RETURN_IF_ERROR(Check(cudaStreamSynchronize(stream), "weights for the device"));
  }
  return {};
}

// Numbers stay below 2^kEnd, where f16 is nearly at its end: of what is within 2^29 of the largest it has
// every bit, below that less than 2^-39 of the largest is lost. Codes, and one more for an offset, are within
// 2^kCodeBits.
// factor: Matrix::Part.
Status UploadWeight(cudaStream_t stream, const Weight& w, uint8_t* codes, uint8_t* scales, float* factor) {
  constexpr int kEnd = 15, kCodeBits = 7;
  const bool is_bf16 = w.type == WeightType::kBf16, has_codes = HasCodes(w.type);
  Largest largest(is_bf16 ? WeightType::kBf16 : WeightType::kF16);
  KVC_RETURN_IF_ERROR(UploadRows(stream, w, codes, scales, is_bf16 || has_codes ? &largest : nullptr));
  int shift = 0;
  if (is_bf16 || has_codes) {
    shift = largest.ShiftBelow(has_codes ? kEnd - kCodeBits : kEnd);
    uint16_t* const numbers = reinterpret_cast<uint16_t*>(has_codes ? scales : codes);
    const int64_t n = has_codes ? ScaleBytesOf(FormOf(w)) / 2 : int64_t{w.rows} * w.cols;
    KVC_RETURN_IF_ERROR(Check(ToHalves(numbers, n, is_bf16, shift, stream), "weights"));
  }
  *factor = std::ldexp(1.0f, -shift);
  return Check(cudaStreamSynchronize(stream), "weights for the device");
}

}  // namespace

int64_t CudaDevice::PreparedBytes(Span<const Weight> tensors, MatrixUse) const {
  int64_t bytes = 0;
  for (const Weight& w : tensors) bytes += BytesOf(FormOf(w));
  return bytes;
}

WeightType CudaDevice::PreparedType(const Weight& tensor) const { return FormOf(tensor).type; }

Status CudaDevice::Prepare(Span<const Weight> tensors, Span<const DevicePtr<const float>> biases,
                           MatrixUse use, Matrix* out) {
  KVC_ENTER();
  *out = {};
  const int64_t bytes = PreparedBytes(tensors, use);
  KVC_RETURN_IF_ERROR(Allocate(bytes, "weights", &out->memory));
  out->bytes = bytes;
  out->n_parts = static_cast<int32_t>(tensors.size());
  out->cols = tensors[0].cols, out->stack = tensors[0].stack;
  uint8_t* at = At(out->memory);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Weight w = FormOf(tensors[i]);
    uint8_t *codes = at, *scales = at + Align(CodeBytesOf(w));
    float factor = 1;
    const Status status = UploadWeight(stream_, tensors[i], codes, scales, &factor);
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
                     biases.empty() ? DevicePtr<const float>() : biases[i],
                     factor};
    at += BytesOf(w);
  }
  return {};
}

int64_t CudaDevice::PreparedVectorBytes(int32_t n) const { return Align(int64_t{4} * n); }

Status CudaDevice::PrepareVector(const float* values, int32_t n, Vector* out) {
  KVC_ENTER();
  *out = {};
  KVC_RETURN_IF_ERROR(Allocate(PreparedVectorBytes(n), "weights", &out->memory));
  out->bytes = PreparedVectorBytes(n);
  Status status = Upload(stream_, At(out->memory), values, int64_t{4} * n, nullptr);
  if (status.ok()) status = Check(cudaStreamSynchronize(stream_), "weights for the device");
  if (!status.ok()) {
    Free(out->memory, out->bytes);
    *out = {};
    return status;
  }
  out->at = out->memory.As<const float>();
  return {};
}

}  // namespace kvc::cuda
