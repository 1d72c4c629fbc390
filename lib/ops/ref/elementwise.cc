// Vectors in, vectors out: norm, rotation, activation, sums, softmax.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/ops/ref/ref_kernels.h"

namespace kvc::ref {

// Eight partial sums, so that the error grows with n / 8 and the compiler can use what vectors it has.
float Dot(const float* a, const float* b, int32_t n) {
  float part[8] = {};
  int32_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int j = 0; j < 8; ++j) part[j] += a[i + j] * b[i + j];
  }
  for (int j = 0; i < n; ++i, ++j) part[j] += a[i] * b[i];
  return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

void Axpy(float a, const float* x, int32_t n, float* y) {
  for (int32_t i = 0; i < n; ++i) y[i] += a * x[i];
}

void Add(const float* x, int32_t n, float* y) {
  for (int32_t i = 0; i < n; ++i) y[i] += x[i];
}

void RmsNorm(const float* x, const float* weight, float eps, int32_t n, float* y) {
  const float scale = 1.0f / std::sqrt(Dot(x, x, n) / static_cast<float>(n) + eps);
  for (int32_t i = 0; i < n; ++i) y[i] = x[i] * scale * weight[i];
}

// The mean in double: what is left once it is taken off may be small beside it.
void LayerNorm(const float* x, const float* weight, const float* bias, float eps, int32_t n, float* y) {
  double sum = 0, squares = 0;
  for (int32_t i = 0; i < n; ++i) sum += double{x[i]};
  const double mean = sum / n;
  for (int32_t i = 0; i < n; ++i) squares += (double{x[i]} - mean) * (double{x[i]} - mean);
  const double scale = 1 / std::sqrt(squares / n + double{eps});
  for (int32_t i = 0; i < n; ++i) {
    const float normed = static_cast<float>((double{x[i]} - mean) * scale);
    y[i] = bias == nullptr ? normed * weight[i] : normed * weight[i] + bias[i];
  }
}

void ApplyRope(float* x, const float* cos, const float* sin, int32_t d, RopePairing pairing) {
  const int32_t half = d / 2;
  for (int32_t j = 0; j < half; ++j) {
    const int32_t first = pairing == RopePairing::kHalf ? j : 2 * j;
    const int32_t second = pairing == RopePairing::kHalf ? j + half : 2 * j + 1;
    const float a = x[first], b = x[second];
    x[first] = a * cos[j] - b * sin[j];
    x[second] = b * cos[j] + a * sin[j];
  }
}

void SiluMul(const float* gate, const float* up, int32_t n, float* y) {
  for (int32_t i = 0; i < n; ++i) y[i] = gate[i] / (1.0f + std::exp(-gate[i])) * up[i];
}

void GeluMul(const float* gate, const float* up, int32_t n, float* y) {
  for (int32_t i = 0; i < n; ++i) {
    const float g = gate[i], inner = 0.79788456f * (g + 0.044715f * g * g * g);
    y[i] = 0.5f * g * (1.0f + std::tanh(inner)) * up[i];
  }
}

void ClampedMul(const float* gate, const float* up, float gain, float limit, int32_t n, float* y) {
  for (int32_t i = 0; i < n; ++i) {
    const float g = gate[i] > limit ? limit : gate[i], low = up[i] > limit ? limit : up[i],
                u = low < -limit ? -limit : low;
    y[i] = (u + 1.0f) * (g / (1.0f + std::exp(-gain * g)));
  }
}

void SoftCap(float cap, int32_t n, float* x) {
  for (int32_t i = 0; i < n; ++i) x[i] = Capped(x[i], cap);
}

void Softmax(float* x, int32_t n) {
  float top = -INFINITY;
  for (int32_t i = 0; i < n; ++i) top = x[i] > top ? x[i] : top;
  if (top == -INFINITY) {
    for (int32_t i = 0; i < n; ++i) x[i] = 0;
    return;
  }
  float sum = 0;
  for (int32_t i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - top);
  for (int32_t i = 0; i < n; ++i) x[i] /= sum;
}

void Weights(float most, float factor, int32_t n, float* x) {
  for (int32_t i = 0; i < n; ++i) x[i] = std::exp(x[i] - most) * factor;
}

void Raise(const float* x, float shift, int32_t n, float* y) {
  for (int32_t i = 0; i < n; ++i) y[i] = std::max(y[i], x[i] - shift);
}

void AddSquares(const float* z, float lse, int32_t n, float* y) {
  for (int32_t i = 0; i < n; ++i) y[i] += std::exp(2 * (z[i] - lse));
}

float LargestNumber(const float* x, int32_t n) {
  float most = -std::numeric_limits<float>::infinity();
  for (int32_t i = 0; i < n; ++i) {
    if (!std::isfinite(x[i])) return std::numeric_limits<float>::quiet_NaN();
    most = std::max(most, x[i]);
  }
  return most;
}

}  // namespace kvc::ref
