// Matrix product with weights of every type, and the quantisation of activations that int8 and int4 weights
// need.
#include <cmath>
#include <limits>

#include "lib/base/half.h"
#include "lib/ops/ref/ref_kernels.h"
#include "lib/ops/weight_blocks.h"
#include "lib/ops/weight_panels.h"

namespace kvc::ref {
namespace {

// Where element (r, c) of a float weight lies.
int64_t ElementOf(const Weight& w, int32_t r, int32_t c) {
  if (w.layout == WeightLayout::kRowMajor) return int64_t{r} * w.cols + c;
  return (int64_t{r / kPanelLanes} * w.cols + c) * kPanelLanes + r % kPanelLanes;
}

// Elements [begin, begin + n) of row r as f32.
void WidenRow(const Weight& w, int32_t r, int32_t begin, int32_t n, float* out) {
  for (int32_t i = 0; i < n; ++i) {
    const int64_t at = ElementOf(w, r, begin + i);
    switch (w.type) {
      case WeightType::kF32:
        out[i] = static_cast<const float*>(w.data)[at];
        break;
      case WeightType::kF16:
        out[i] = F16ToFloat(static_cast<const uint16_t*>(w.data)[at]);
        break;
      case WeightType::kBf16:
        out[i] = Bf16ToFloat(static_cast<const uint16_t*>(w.data)[at]);
        break;
      case WeightType::kInt8:
      case WeightType::kInt4:
      case WeightType::kQ4K:
      case WeightType::kQ6K:
        return;  // codes have scales
    }
  }
}

int Nibble(uint8_t byte, int32_t which) { return byte >> (4 * which) & 15; }

int Code(const Weight& w, int32_t r, int32_t c) {
  const uint8_t* data = static_cast<const uint8_t*>(w.data);
  const bool wide = w.type == WeightType::kInt8;
  if (w.layout == WeightLayout::kRowMajor) {
    const uint8_t byte = data[r * WeightRowBytes(w.type, w.cols) + (wide ? c : c / 2)];
    return wide ? static_cast<int8_t>(byte) : (Nibble(byte, c % 2) ^ 8) - 8;
  }
  const int32_t columns = PanelFormatOf(w.type).columns;
  const int64_t line = int64_t{r / kPanelLanes} * (w.cols / columns) + c / columns;
  const uint8_t byte = data[(line * kPanelLanes + r % kPanelLanes) * 4 + c % 4];
  return wide ? byte - 128 : Nibble(byte, c % columns / 4) - 8;
}

float ScaleOf(const Weight& w, int32_t r, int32_t g) {
  const int64_t groups = w.cols / w.group;
  const int64_t at = w.layout == WeightLayout::kRowMajor
                         ? r * groups + g
                         : (r / kPanelLanes * groups + g) * kPanelLanes + r % kPanelLanes;
  return F16ToFloat(w.scales[at]);
}

void RowCodes(const Weight& w, int32_t r, int32_t begin, int32_t n, int8_t* out) {
  for (int32_t i = 0; i < n; ++i) out[i] = static_cast<int8_t>(Code(w, r, begin + i));
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
    const float scale = ScaleOf(w, r, g);
    for (int32_t t = 0; t < a.n; ++t) {
      int32_t dot = 0;
      for (int32_t i = 0; i < w.group; i += kBlock) {
        const int32_t begin = g * w.group + i, n = w.group - i < kBlock ? w.group - i : kBlock;
        if (t == 0 || w.group > kBlock) RowCodes(w, r, begin, n, row);
        dot += CodeDot(a.xq + int64_t{t} * w.cols + begin, row, n);
      }
      float* y = a.y + t * a.y_stride + r;
      *y = std::fma(static_cast<float>(dot), a.xs[int64_t{t} * groups + g] * scale, *y);
    }
  }
}

// As GGUF's readers do: the product rounded to f32, then the difference.
void BlocksOfRow(const Weight& w, int32_t r, float* out) {
  WeightBlock block;
  for (int32_t b = 0; b < w.cols / kBlockColumns; ++b) {
    ReadBlock(w, r, b, &block);
    for (int32_t c = 0; c < kBlockColumns; ++c) {
      const float value = block.scale[c / w.group] * static_cast<float>(block.code[c]);
      *out++ = value - block.least[c / w.group];
    }
  }
}

// Of every group the product, then what its least value takes off, each added in order and rounded once.
void BlockRow(const MatMulArgs& a, int32_t r) {
  const Weight& w = *a.w;
  const int32_t groups = w.cols / w.group, block_groups = kBlockColumns / w.group;
  for (int32_t t = 0; t < a.n; ++t) a.y[t * a.y_stride + r] = 0;
  WeightBlock block;
  for (int32_t g = 0; g < groups; ++g) {
    const int32_t i = g % block_groups;
    if (i == 0) ReadBlock(w, r, g / block_groups, &block);
    for (int32_t t = 0; t < a.n; ++t) {
      const int64_t at = int64_t{t} * groups + g;
      const int32_t dot = CodeDot(a.xq + at * w.group, block.code + i * w.group, w.group);
      float* y = a.y + t * a.y_stride + r;
      *y = std::fma(static_cast<float>(dot), a.xs[at] * block.scale[i], *y);
      const float taken = static_cast<float>(a.sums[at]) * a.xs[at];
      if (w.type == WeightType::kQ4K) *y = std::fma(-taken, block.least[i], *y);
    }
  }
}

}  // namespace

void MatMul(const MatMulArgs& a) {
  const auto row = HasBlocks(a.w->type) ? BlockRow : HasCodes(a.w->type) ? CodeRow : FloatRow;
  for (int32_t r = a.row_begin; r < a.row_end; ++r) {
    row(a, r);
    if (a.bias == nullptr) continue;
    for (int32_t t = 0; t < a.n; ++t) a.y[t * a.y_stride + r] += a.bias[r];
  }
}

void QuantizeRow(const float* x, int32_t cols, int32_t group, int8_t* codes, float* scales, int32_t* sums) {
  for (int32_t g = 0; g * group < cols; ++g) {
    const float* in = x + g * group;
    float top = 0, spoilt = 0;
    for (int32_t i = 0; i < group; ++i) {
      top = std::fabs(in[i]) > top ? std::fabs(in[i]) : top;
      spoilt += in[i] - in[i];  // 0 for numbers alone
    }
    float scale = top / 127.0f;
    if (scale == 0) scale = 1;
    if (std::isnan(spoilt)) scale = std::numeric_limits<float>::quiet_NaN();
    scales[g] = scale, sums[g] = 0;
    for (int32_t i = 0; i < group; ++i) {
      const float code = std::isnan(scale) ? 0.0f : std::nearbyint(in[i] / scale);
      codes[g * group + i] = static_cast<int8_t>(code >= -127 ? (code <= 127 ? code : 127) : -127);
      sums[g] += codes[g * group + i];
    }
  }
}

void WeightRow(const Weight& w, int32_t row, float* out) {
  if (HasBlocks(w.type)) return BlocksOfRow(w, row, out);
  if (!HasCodes(w.type)) return WidenRow(w, row, 0, w.cols, out);
  for (int32_t c = 0; c < w.cols; ++c)
    out[c] = static_cast<float>(Code(w, row, c)) * ScaleOf(w, row, c / w.group);
}

}  // namespace kvc::ref
