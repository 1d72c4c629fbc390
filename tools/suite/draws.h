// Random draws of what is made for a benchmark, deterministic by seed, task and item.
#pragma once
#include <array>
#include <cstdint>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tools/score/random.h"

namespace kvc::tool {

// Draws of one item: the same ones for every length that is tried.
class Draws {
 public:
  Draws(uint64_t seed, uint32_t task, uint32_t item) : seed_(seed), task_(task), item_(item) {}
  uint32_t item() const { return item_; }
  uint32_t Word() {
    if (used_ == 4) words_ = PhiloxWords(task_, item_, kTag, block_++, seed_), used_ = 0;
    return words_[used_++];
  }
  uint32_t Below(uint32_t n) { return static_cast<uint32_t>(uint64_t{Word()} * n >> 32); }
  template <typename T>
  void Shuffle(std::vector<T>* list) {
    for (size_t i = list->size(); i-- > 1;)
      std::swap((*list)[i], (*list)[Below(static_cast<uint32_t>(i) + 1)]);
  }
  // k different numbers below n, in any order. k <= n.
  std::vector<size_t> Sample(size_t n, size_t k) {
    std::vector<size_t> all(n);
    std::iota(all.begin(), all.end(), size_t{0});
    for (size_t i = 0; i < k; ++i) std::swap(all[i], all[i + Below(static_cast<uint32_t>(n - i))]);
    all.resize(k);
    return all;
  }
  std::string Letters(int n, char first) {
    std::string text;
    for (int i = 0; i < n; ++i) text += static_cast<char>(first + static_cast<char>(Below(26)));
    return text;
  }

 private:
  static constexpr uint32_t kTag = 0x524c;
  const uint64_t seed_;
  const uint32_t task_, item_;
  uint32_t block_ = 0;
  std::array<uint32_t, 4> words_{};
  size_t used_ = 4;
};

}  // namespace kvc::tool
