#include "lib/engine/sampler.h"

#include <algorithm>
#include <cmath>

#include "lib/base/philox.h"

namespace kvc {
namespace {

constexpr uint32_t kDrawTag = 0x54;  // keeps these draws apart from those of the methods (methods.md 3.8)

int32_t ArgMax(const float* logits, int32_t n) {
  int32_t best = -1;
  for (int32_t i = 0; i < n; ++i) {
    if (!std::isnan(logits[i]) && (best < 0 || logits[i] > logits[best])) best = i;
  }
  return std::max(best, 0);
}

}  // namespace

Status Sampler::Check(const SamplerParams& p) {
  if (!(p.temperature >= 0) || p.temperature > 100)
    return Error(Code::kInvalid, "temperature is %g; it is 0 (greedy) to 100",
                 static_cast<double>(p.temperature));
  if (!(p.top_p >= 0) || p.top_p > 1)
    return Error(Code::kInvalid, "top_p is %g; it is 0 (off) to 1", static_cast<double>(p.top_p));
  if (p.top_k < 0) return Error(Code::kInvalid, "top_k is %d; it is 0 (off) or more", p.top_k);
  return {};
}

Sampler::Sampler(const SamplerParams& params, int32_t vocab_size) : params_(params), vocab_size_(vocab_size) {
  if (params_.temperature <= 0) return;
  ids_.resize(static_cast<size_t>(vocab_size));
  weights_.resize(static_cast<size_t>(vocab_size));
}

int32_t Sampler::Pick(const float* logits, int64_t draw) {
  const int32_t best = ArgMax(logits, vocab_size_);
  if (params_.temperature <= 0) return best;
  size_t n = 0;
  for (int32_t i = 0; i < vocab_size_; ++i) {
    if (!std::isnan(logits[i])) ids_[n++] = i;
  }
  if (n == 0) return best;
  // Most likely first, equal ones by id: the order is total, so the result does not depend on the library's
  // sort.
  const auto before = [&](int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  const size_t keep = params_.top_k > 0 ? std::min(n, static_cast<size_t>(params_.top_k)) : n;
  std::partial_sort(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(keep),
                    ids_.begin() + static_cast<std::ptrdiff_t>(n), before);
  double total = 0;
  for (size_t i = 0; i < keep; ++i) {
    weights_[i] = std::exp((logits[ids_[i]] - logits[best]) / params_.temperature);
    total += weights_[i];
  }
  size_t last = keep;
  if (params_.top_p > 0 && params_.top_p < 1) {
    double sum = 0;
    for (last = 0; last < keep && sum < params_.top_p * total;) sum += weights_[last++];
    total = sum;
  }
  const uint32_t low = static_cast<uint32_t>(draw), high = static_cast<uint32_t>(draw >> 32);
  double target = Uniform(Philox(low, high, 0, kDrawTag, static_cast<uint64_t>(params_.seed))[0]) * total;
  for (size_t i = 0; i + 1 < last; ++i) {
    target -= weights_[i];
    if (target < 0) return ids_[i];
  }
  return ids_[last - 1];
}

}  // namespace kvc
