// Matrix product with weights of every type, and the quantisation of activations that int8 and int4 weights
// need.
#include <cmath>
#include <cstring>

#include "lib/base/half.h"
#include "lib/ops/ref/ref_kernels.h"

namespace kvc::ref {
namespace {

// Elements [begin, begin + n) of row r as f32.
void WidenRow(const Weight& w, int32_t r, int32_t begin, int32_t n, float* out) {
  const int64_t at = int64_t{r} * w.cols + begin;
  if (w.type == WeightType::kF32) {
    std::memcpy(out, static_cast<const float*>(w.data) + at, sizeof(float) * static_cast<size_t>(n));
  } else {
    const uint16_t* data = static_cast<const uint16_t*>(w.data) + at;
    if (w.type == WeightType::kF16) {
      for (int32_t i = 0; i < n; ++i) out[i] = F16ToFloat(data[i]);
    } else {
      for (int32_t i = 0; i < n; ++i) out[i] = Bf16ToFloat(data[i]);
    }
  }
}

// Codes [begin, begin + n) of row r; begin is even.
void RowCodes(const Weight& w, int32_t r, int32_t begin, int32_t n, int8_t* out) {
  const int8_t* data = static_cast<const int8_t*>(w.data) + r * WeightRowBytes(w.type, w.cols);
  if (w.type == WeightType::kInt8) {
    std::memcpy(out, data + begin, static_cast<size_t>(n));
    return;
  }
  for (int32_t i = 0; i < n; ++i) {
    const int nibble = (data[(begin + i) / 2] >> ((begin + i) % 2 * 4)) & 0xf;
    out[i] = static_cast<int8_t>(nibble >= 8 ? nibble - 16 : nibble);
  }
}

constexpr int32_t kBlock =
    256;  // columns widened at a time, on the stack; a multiple of Dot's eight partial sums

// Partial sums of the blocks are added in order: the same for every n.
void FloatRow(const MatMulArgs& a, int32_t r) {
  const Weight& w = *a.w;
  float row[kBlock];
  for (int32_t t = 0; t < a.n; ++t) a.y[t * a.y_stride + r] = 0;
  for (int32_t begin = 0; begin < w.cols; begin += kBlock) {
    const int32_t n = w.cols - begin < kBlock ? w.cols - begin : kBlock;
    WidenRow(w, r, begin, n, row);
    for (int32_t t = 0; t < a.n; ++t) a.y[t * a.y_stride + r] += Dot(a.x + t * a.x_stride + begin, row, n);
  }
}

int32_t CodeDot(const int8_t* x, const int8_t* y, int32_t n) {
  int32_t sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += x[i] * y[i];
  return sum;
}

void CodeRow(const MatMulArgs& a, int32_t r) {
  const Weight& w = *a.w;
  const int32_t groups = w.cols / w.group;
  int8_t row[kBlock];
  for (int32_t t = 0; t < a.n; ++t) a.y[t * a.y_stride + r] = 0;
  for (int32_t g = 0; g < groups; ++g) {
    const float scale = F16ToFloat(w.scales[int64_t{r} * groups + g]);
    for (int32_t t = 0; t < a.n; ++t) {
      int32_t dot = 0;
      for (int32_t i = 0; i < w.group; i += kBlock) {
        const int32_t begin = g * w.group + i, n = w.group - i < kBlock ? w.group - i : kBlock;
        if (t == 0 || w.group > kBlock) RowCodes(w, r, begin, n, row);
        dot += CodeDot(a.xq + int64_t{t} * w.cols + begin, row, n);
      }
      a.y[t * a.y_stride + r] += static_cast<float>(dot) * (a.xs[int64_t{t} * groups + g] * scale);
    }
  }
}

}  // namespace

void MatMul(const MatMulArgs& a) {
  const bool codes = a.w->type == WeightType::kInt8 || a.w->type == WeightType::kInt4;
  for (int32_t r = a.row_begin; r < a.row_end; ++r) {
    codes ? CodeRow(a, r) : FloatRow(a, r);
    if (a.bias == nullptr) continue;
    for (int32_t t = 0; t < a.n; ++t) a.y[t * a.y_stride + r] += a.bias[r];
  }
}

void QuantizeRow(const float* x, int32_t cols, int32_t group, int8_t* codes, float* scales) {
  for (int32_t g = 0; g * group < cols; ++g) {
    const float* in = x + g * group;
    float top = 0;
    for (int32_t i = 0; i < group; ++i) top = std::fabs(in[i]) > top ? std::fabs(in[i]) : top;
    float scale = top / 127.0f;
    if (scale == 0) scale = 1;
    scales[g] = scale;
    for (int32_t i = 0; i < group; ++i) {
      const float code = std::nearbyint(in[i] / scale);
      codes[g * group + i] = static_cast<int8_t>(code >= -127 ? (code <= 127 ? code : 127) : -127);
    }
  }
}

void WeightRow(const Weight& w, int32_t row, float* out) {
  if (w.type != WeightType::kInt8 && w.type != WeightType::kInt4) return WidenRow(w, row, 0, w.cols, out);
  const int32_t groups = w.cols / w.group;
  for (int32_t c = 0; c < w.cols; ++c) {
    const int8_t* data = static_cast<const int8_t*>(w.data) + row * WeightRowBytes(w.type, w.cols);
    int code = w.type == WeightType::kInt8 ? data[c] : (data[c / 2] >> (c % 2 * 4)) & 0xf;
    if (w.type == WeightType::kInt4 && code >= 8) code -= 16;
    out[c] = static_cast<float>(code) * F16ToFloat(w.scales[int64_t{row} * groups + c / w.group]);
  }
}

}  // namespace kvc::ref
