#include "tools/score/random.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace kvc::tool {
namespace {

constexpr uint32_t kSplitTag = 0x53;

// The words of one work item, block after block.
class WordStream {
 public:
  WordStream(uint64_t seed, uint32_t run, uint32_t size, uint32_t sample)
      : seed_(seed), run_(run), size_(size), sample_(sample) {}

  // In [0, n): 32-bit multiply-shift with rejection.
  uint32_t Below(uint32_t n) {
    const uint32_t least = static_cast<uint32_t>((uint64_t{1} << 32) % n);
    for (;;) {
      const uint64_t product = uint64_t{Next()} * n;
      if (static_cast<uint32_t>(product) >= least) return static_cast<uint32_t>(product >> 32);
    }
  }

 private:
  uint32_t Next() {
    if (used_ == words_.size()) words_ = PhiloxWords(run_, size_, sample_, block_++, seed_), used_ = 0;
    return words_[used_++];
  }

  const uint64_t seed_;
  const uint32_t run_, size_, sample_;
  uint32_t block_ = 0;
  std::array<uint32_t, 4> words_{};
  size_t used_ = 4;
};

}  // namespace

std::array<uint32_t, 4> PhiloxWords(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t seed) {
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53u} * c0, b = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0, c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1, c3 = static_cast<uint32_t>(a);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {c0, c1, c2, c3};
}

std::vector<int32_t> Permutation(uint64_t seed, uint32_t run, uint32_t size, uint32_t sample, int32_t n) {
  std::vector<int32_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), 0);
  WordStream words(seed, run, size, sample);
  for (size_t i = order.size(); i-- > 1;)
    std::swap(order[i], order[words.Below(static_cast<uint32_t>(i) + 1)]);
  return order;
}

std::vector<int32_t> ValidationExamples(uint64_t seed, int32_t n, double share) {
  std::vector<std::pair<uint32_t, int32_t>> draws;
  for (int32_t i = 0; i < n; ++i) {
    draws.emplace_back(PhiloxWords(static_cast<uint32_t>(i), 0, 0, kSplitTag, seed)[0], i);
  }
  std::sort(draws.begin(), draws.end());
  const double wanted = std::floor(share * n + 0.5);
  const size_t count = std::min(draws.size(), static_cast<size_t>(std::max(1.0, wanted)));
  std::vector<int32_t> chosen;
  for (size_t i = 0; i < count; ++i) chosen.push_back(draws[i].second);
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace kvc::tool
