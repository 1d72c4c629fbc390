#include "lib/ops/cpu/line_ops.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>

namespace kvc::cpu {
namespace {

struct MaxOp {
  static constexpr float kIdentity = -std::numeric_limits<float>::infinity();
  using Value = float;
  static float Join(float a, float b) { return b > a ? b : a; }  // a NaN never wins: it counts as -inf
};

struct SumOp {
  static constexpr double kIdentity = 0;
  using Value = double;
  static double Join(double a, double b) { return a + b; }
};

// Every window of `kernel` values as (suffix of one block) + (prefix of the next one): two joins per value,
// no subtraction, so nothing cancels and a NaN stays within the windows that contain it. emit(t, value of the
// window around t).
template <typename Op, typename Emit>
void SlideWindow(const float* x, int32_t n, int32_t kernel, const Emit& emit) {
  using Value = typename Op::Value;
  const int32_t half = (kernel - 1) / 2;
  // x with `half` identities on both sides, by padded index.
  const auto padded = [=](int64_t j) -> Value {
    const int64_t t = j - half;
    return t < 0 || t >= n ? static_cast<Value>(Op::kIdentity) : static_cast<Value>(x[t]);
  };
  Value suffix[kMaxPoolKernel];
  for (int64_t begin = 0; begin < n; begin += kernel) {
    Value joined = Op::kIdentity;
    for (int32_t i = kernel - 1; i >= 0; --i) suffix[i] = joined = Op::Join(joined, padded(begin + i));
    const int32_t rows = static_cast<int32_t>(std::min<int64_t>(kernel, n - begin));
    Value prefix = Op::kIdentity;
    for (int32_t i = 0; i < rows; ++i) {
      emit(static_cast<int32_t>(begin + i), Op::Join(suffix[i], prefix));
      prefix = Op::Join(prefix, padded(begin + kernel + i));
    }
  }
}

}  // namespace

void MarkTop(const float* scores, int32_t n, int32_t count, uint64_t* keys, uint8_t* mark) {
  if (count <= 0 || count >= n) {
    std::fill(mark, mark + std::max(n, 0), static_cast<uint8_t>(count > 0));
    return;
  }
  for (int32_t i = 0; i < n; ++i) keys[i] = SelectionKey(scores[i], static_cast<uint32_t>(i));
  std::nth_element(keys, keys + (count - 1), keys + n, std::greater<uint64_t>());
  const uint64_t threshold = keys[count - 1];  // the smallest of the best
  for (int32_t i = 0; i < n; ++i) mark[i] = SelectionKey(scores[i], static_cast<uint32_t>(i)) >= threshold;
}

void Pool(const float* x, int32_t n, const Pooling& pooling, float* y) {
  const int32_t kernel = std::clamp(pooling.kernel, 1, kMaxPoolKernel), half = (kernel - 1) / 2;
  if (pooling.kind == PoolKind::kMax) {
    SlideWindow<MaxOp>(x, n, kernel, [=](int32_t t, float best) { y[t] = best; });
  } else {
    SlideWindow<SumOp>(x, n, kernel, [=](int32_t t, double sum) {
      const int32_t terms =
          pooling.shrink_edges ? std::min(t + half, n - 1) - std::max(t - half, 0) + 1 : kernel;
      y[t] = static_cast<float>(sum / terms);
    });
  }
}

void PushHistory(const HistoryRule& rule, float* const* aux, const float* p, int32_t visible, float average) {
  if (rule.sums) {
    for (int32_t t = 0; t < visible; ++t) aux[0][t] += p[t];
    return;
  }
  const int32_t oldest = rule.length - 1, words = rule.words();
  for (int32_t t = 0; t < visible; ++t) {
    const bool low = p[t] < average;
    uint32_t carry = low ? 1 : 0, leaving = 0;
    for (int32_t i = 0; i < words; ++i) {
      uint32_t word;
      std::memcpy(&word, &aux[1 + i][t], 4);
      const uint32_t out = word >> 31;
      if (i == oldest / 32) leaving = word >> oldest % 32 & 1;
      word = word << 1 | carry;
      carry = out;
      std::memcpy(&aux[1 + i][t], &word, 4);
    }
    aux[0][t] += static_cast<float>(low ? 1 : 0) - static_cast<float>(leaving);
  }
}

}  // namespace kvc::cpu
