// Items of a job that several threads share. Every thread has a range of them, so that it walks through
// memory; then it takes what is left of the others' ranges, also of those who never come. It takes a few
// items at a time, and one by one towards the end of a range: taking locks a line, which waits until the item
// before has all the memory that it asked for.
#pragma once
#include <algorithm>
#include <atomic>
#include <cstdint>
#include <vector>

namespace kvc {

class ItemRanges {
 public:
  explicit ItemRanges(int most) : ranges_(static_cast<size_t>(most)) {}

  // While nobody takes any. n: ranges, at most as many as there is room for.
  void Share(int64_t n_items, int n) {
    n_ = n;
    for (int64_t i = 0; i < n; ++i) {
      Range& range = ranges_[static_cast<size_t>(i)];
      range.next.store(n_items * i / n, std::memory_order_relaxed);
      range.end = n_items * (i + 1) / n;
    }
  }
  // Calls f(item) until none is left that was not taken. first: the range to begin with, 0 or any above.
  template <typename F>
  void Take(int first, F&& f) {
    for (int i = 0, begin = first % n_; i < n_; ++i) {
      Range& range = ranges_[static_cast<size_t>((begin + i) % n_)];
      for (;;) {
        const int64_t left = range.end - range.next.load(std::memory_order_relaxed);
        if (left <= 0) break;
        const int64_t some = std::clamp<int64_t>(left / 4, 1, kMostAtOnce);
        int64_t item = range.next.fetch_add(some, std::memory_order_relaxed);
        for (const int64_t end = std::min(item + some, range.end); item < end; ++item) f(item);
      }
    }
  }

 private:
  struct alignas(64) Range {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };
  static constexpr int64_t kMostAtOnce = 4;

  std::vector<Range> ranges_;
  int n_ = 0;
};

}  // namespace kvc
