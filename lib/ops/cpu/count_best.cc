// The best candidates of a layer, counted by head. The threshold score is found four bits at a time: eight
// passes over the scores, per head and value one counter, no copy of the scores.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "lib/base/ordered_bits.h"
#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/raw.h"

namespace kvc::cpu {
namespace {

constexpr int32_t kMostHeads = 1024;

class Counter {
 public:
  explicit Counter(const CountBestArgs& a) : a_(a), n_heads_(a.layer.n_kv_heads) {
    if (a_.concentrated) Concentrate();
  }

  void Run() {
    uint32_t prefix = 0;
    std::fill(a_.counts, a_.counts + n_heads_, 0);  // candidates above the range that is still open
    for (int shift = 28; shift >= 0; shift -= 4) {
      CountRange(prefix, shift);
      // The highest value with which the heads would hold more than `total` contains the threshold.
      for (int value = 15;; --value) {
        int64_t with = 0;
        for (int32_t h = 0; h < n_heads_; ++h)
          with += std::max(Locked(h), a_.counts[h] + histogram_[h][value]);
        if (with > a_.total || value == 0) {
          prefix |= static_cast<uint32_t>(value) << shift;
          break;
        }
        for (int32_t h = 0; h < n_heads_; ++h) a_.counts[h] += histogram_[h][value];
      }
    }
    // Candidates equal to the threshold go to the lower heads first.
    int64_t left = a_.total;
    for (int32_t h = 0; h < n_heads_; ++h) left -= std::max(Locked(h), a_.counts[h]);
    for (int32_t h = 0; h < n_heads_; ++h) {
      const int64_t held = std::max(Locked(h), a_.counts[h]),
                    ties = a_.counts[h] + histogram_[h][prefix & 15] - held,
                    more = std::clamp<int64_t>(ties, 0, std::max<int64_t>(left, 0));
      a_.counts[h] = held + more;
      left -= more;
    }
  }

 private:
  int32_t Candidates(int32_t h) const {
    return std::max(a_.layer.len[h] - a_.protect.n_sink - a_.protect.n_recent, 0);
  }
  const float* Scores(int32_t h) const { return Raw(a_.scores) + h * a_.stride + a_.protect.n_sink; }
  uint32_t Bits(int32_t h, int32_t t) const {
    const float x = Scores(h)[t];
    return OrderedBits(a_.concentrated ? static_cast<float>(static_cast<double>(x) * factor_[h]) : x);
  }
  int64_t Locked(int32_t h) const { return std::min<int64_t>(a_.locked, Candidates(h)); }
  // Candidates of the open range by their next four bits.
  void CountRange(uint32_t prefix, int shift) {
    const uint32_t fixed = shift == 28 ? 0 : 0xFFFFFFFFu << (shift + 4);
    for (int32_t h = 0; h < n_heads_; ++h) {
      std::fill(histogram_[h], histogram_[h] + 16, 0);
      for (int32_t t = 0; t < Candidates(h); ++t) {
        const uint32_t bits = Bits(h, t);
        if ((bits & fixed) == prefix) ++histogram_[h][bits >> shift & 15];
      }
    }
  }

  // Share of the `average` best scores of a head in its total (methods.md 2.11, normalize).
  void Concentrate() {
    float* row = reinterpret_cast<float*>(Raw(a_.scratch));
    for (int32_t h = 0; h < n_heads_; ++h) {
      const int32_t m = Candidates(h), best_n = std::min(a_.average, m);
      for (int32_t t = 0; t < m; ++t) row[t] = std::isnan(Scores(h)[t]) ? -INFINITY : Scores(h)[t];
      if (best_n < m) std::nth_element(row, row + best_n, row + m, std::greater<float>());
      const double best = std::accumulate(row, row + best_n, 0.0), all = std::accumulate(row, row + m, 0.0);
      factor_[h] = all > 0 && std::isfinite(best / all) ? best / all : 1;
    }
  }

  const CountBestArgs& a_;
  const int32_t n_heads_;
  double factor_[kMostHeads];
  int32_t histogram_[kMostHeads][16];
};

}  // namespace

Status CpuDevice::CountBest(Stream*, const CountBestArgs& a) {
  Counter(a).Run();
  return {};
}

}  // namespace kvc::cpu
