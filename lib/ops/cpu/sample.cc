// Byte model: logits and weights are read about six times, 512 KiB each at a vocabulary of 128k, from the
// second-level cache.
#include "lib/ops/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/base/ordered_bits.h"
#include "lib/base/philox.h"
#include "lib/ops/cpu/raw.h"

namespace kvc::cpu {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// NaN and infinities rank below every number.
inline float FiniteOrNever(float x) { return x - x == 0.0f ? x : kNever; }
// OrderedBits(FiniteOrNever(logit)), in whole numbers alone: of comparisons that could trap compilers make no
// vectors.
inline uint32_t Key(float logit) {
  constexpr uint32_t kInfinity = 0xff800000u, kNeverKey = ~kInfinity;
  const uint32_t key = OrderedBits(logit);
  return key == kInfinity ? kNeverKey : key;
}

// Key by key only where one is no number.
uint32_t LargestKey(const KernelTable& kernels, const float* x, int32_t n) {
  const float number = kernels.largest_number(x, n);
  if (!std::isnan(number)) return Key(number);
  uint32_t most = 0;
  for (int32_t i = 0; i < n; ++i) {
    const uint32_t key = Key(x[i]);
    most = key > most ? key : most;
  }
  return most;
}

// The first of the largest; -1: none is a number. By all threads: half of a vocabulary's logits, or more, lie
// in the caches of others.
int32_t ArgMax(const KernelTable& kernels, ThreadPool* pool, const float* x, int32_t n) {
  constexpr int32_t kParts = 64, kLeastPart = 8192;  // below that one thread alone is as fast
  const int32_t part = std::max((n + kParts - 1) / kParts, kLeastPart), parts = (n + part - 1) / part;
  uint32_t most[kParts];
  pool->ParallelFor(parts, [&](int64_t item, int) {
    const int32_t begin = static_cast<int32_t>(item) * part;
    most[item] = LargestKey(kernels, x + begin, std::min(part, n - begin));
  });
  uint32_t best = Key(kNever);
  int32_t at = -1;
  for (int32_t i = 0; i < parts; ++i) {
    if (most[i] > best) best = most[i], at = i * part;
  }
  if (at < 0) return at;
  while (Key(x[at]) != best) ++at;
  return at;
}

// The likeliest tokens: all whose key is above, and of those with just this key the first `n_equal`.
struct Cut {
  uint32_t key = 0;
  int64_t n_equal = std::numeric_limits<int64_t>::max();
  bool Takes(uint32_t k) {
    if (k != key) return k > key;
    return n_equal-- > 0;
  }
};

// The fewest likeliest tokens whose weights add up to `limit`: the key where they end is found eleven bits at
// a time, by the weight of all keys that begin alike.
template <typename Weight>
Cut FindCut(const float* logits, int32_t n, double limit, Weight&& weight) {
  constexpr int kBits = 11, kBuckets = 1 << kBits;
  double above = 0, sums[kBuckets];
  uint32_t prefix = 0;
  for (int shift = 32 - kBits; shift > -kBits; shift -= kBits) {
    const int drop = std::max(shift, 0), width = kBits + std::min(shift, 0);
    std::fill(sums, sums + kBuckets, 0.0);
    for (int32_t i = 0; i < n; ++i) {
      const uint32_t key = Key(logits[i]);
      if (drop + width < 32 && key >> (drop + width) != prefix) continue;
      sums[key >> drop & ((1u << width) - 1)] += weight(i);
    }
    int32_t bucket = (1 << width) - 1;
    while (bucket > 0 && above + sums[bucket] < limit) above += sums[bucket--];
    prefix = prefix << width | static_cast<uint32_t>(bucket);
  }
  Cut cut;
  cut.key = prefix, cut.n_equal = 0;
  for (int32_t i = 0; i < n && above < limit; ++i) {
    if (Key(logits[i]) != cut.key) continue;
    above += weight(i);
    ++cut.n_equal;
  }
  return cut;
}

// Keeps the weights of what the cut takes, makes the others 0.
void Apply(Cut cut, const float* logits, int32_t n, float* weights) {
  for (int32_t i = 0; i < n; ++i) {
    if (!cut.Takes(Key(logits[i]))) weights[i] = 0;
  }
}

// Eight sums side by side: a single one would wait for each addition.
double Sum(const float* weights, int32_t n) {
  double part[8] = {};
  int32_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (int32_t j = 0; j < 8; ++j) part[j] += static_cast<double>(weights[i + j]);
  }
  for (; i < n; ++i) part[i % 8] += static_cast<double>(weights[i]);
  return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

// The token at `target` when the weights are laid end to end by id.
int32_t At(const float* weights, int32_t n, double target) {
  constexpr int32_t kBlock = 512;
  int32_t i = 0;
  for (; i + kBlock < n; i += kBlock) {
    const double block = Sum(weights + i, kBlock);
    if (target < block) break;
    target -= block;
  }
  int32_t last = -1;
  for (; i < n; ++i) {
    if (weights[i] <= 0) continue;
    last = i;
    target -= static_cast<double>(weights[i]);
    if (target < 0) return i;
  }
  while (last < 0 && n > 0) {  // rounding: the target lay at the very end
    if (weights[--n] > 0) last = n;
  }
  return last;
}

// Keskar et al., CTRL, section 4.1; then what the caller adds; then what may be chosen at all.
void ChangeLogits(const SampleRow& a, int32_t n, float* logits) {
  for (int32_t token : a.repeated)
    logits[token] = logits[token] > 0 ? logits[token] / a.repeat_penalty : logits[token] * a.repeat_penalty;
  for (const TokenBias& b : a.biases) logits[b.token] += b.bias;
  for (int32_t i = 0; a.allowed != nullptr && i < n; ++i) {
    if ((a.allowed[i / 32] >> (i % 32) & 1) == 0) logits[i] = kNever;
  }
}

}  // namespace

int32_t SampleToken(const KernelTable& kernels, ThreadPool* pool, const SampleRow& a, int32_t n,
                    float* weights) {
  float* logits = Raw(a.logits);
  ChangeLogits(a, n, logits);
  const int32_t best = ArgMax(kernels, pool, logits, n);
  if (best < 0 || !a.draws()) return best;
  const float top = logits[best];
  for (int32_t i = 0; i < n; ++i) weights[i] = (FiniteOrNever(logits[i]) - top) / a.temperature;
  if (a.top_k > 0 && a.top_k < n) {
    Cut cut = FindCut(logits, n, a.top_k, [](int32_t) { return 1.0; });
    for (int32_t i = 0; i < n; ++i) {
      if (!cut.Takes(Key(logits[i]))) weights[i] = kNever;
    }
  }
  kernels.softmax(weights, n);
  if (a.top_p > 0 && a.top_p < 1) {
    const double limit = static_cast<double>(a.top_p) * Sum(weights, n);
    const auto weight = [&](int32_t i) { return static_cast<double>(weights[i]); };
    Apply(FindCut(logits, n, limit, weight), logits, n, weights);
  }
  if (a.min_p > 0) {
    const float least = a.min_p * weights[best];
    for (int32_t i = 0; i < n; ++i) weights[i] = weights[i] < least ? 0 : weights[i];
  }
  const double u = Uniform(
      Philox(static_cast<uint32_t>(a.draw), static_cast<uint32_t>(a.draw >> 32), 0, kSampleDraw, a.seed)[0]);
  const int32_t token = At(weights, n, u * Sum(weights, n));
  return token < 0 ? best : token;
}

}  // namespace kvc::cpu
