// The merge loop both kinds of BPE share: the best pair of neighbours becomes one symbol, until no pair may
// merge.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace kvc {

struct Symbol {
  uint32_t begin = 0, size = 0;  // bytes in the text of the word
  int32_t id = -1;               // piece, -1 unknown
  bool frozen = false;           // never merges
};

// What a pair of neighbours would become.
struct Merge {
  static constexpr uint32_t kNone = ~uint32_t{0};
  uint32_t rank = kNone;  // smaller merges first, equal ranks from the left; kNone: never
  int32_t id = -1;
};

// Working memory of the loop, kept from word to word. O(n log n) for n symbols, whatever they are.
class Merger {
 public:
  // The symbols of one word, in order and without gaps. Fill, then Run; then they are the result.
  std::vector<Symbol>& symbols() { return symbols_; }

  // find(left, right) -> Merge, for neighbours that are not frozen.
  template <typename Find>
  void Run(const Find& find) {
    const size_t n = symbols_.size();
    if (n < 2) return;
    links_.resize(n);
    queue_.clear();
    for (size_t i = 0; i < n; ++i) {
      links_[i] = Link{static_cast<int32_t>(i) - 1, i + 1 < n ? static_cast<int32_t>(i) + 1 : kEnd, Merge{}};
    }
    for (size_t i = 0; i + 1 < n; ++i) Look(static_cast<int32_t>(i), find, false);
    std::make_heap(queue_.begin(), queue_.end(), std::greater<uint64_t>());
    while (!queue_.empty()) {
      std::pop_heap(queue_.begin(), queue_.end(), std::greater<uint64_t>());
      const uint64_t entry = queue_.back();
      queue_.pop_back();
      const auto at = static_cast<int32_t>(entry & 0xFFFFFFFFu);
      // An entry is stale when the pair that begins here has changed since; then the pair of now has its own
      // entry.
      if (links_[static_cast<size_t>(at)].merge.rank == static_cast<uint32_t>(entry >> 32)) Join(at, find);
    }
    size_t count = 0;
    for (int32_t at = 0; at != kEnd; at = links_[static_cast<size_t>(at)].next) {
      symbols_[count++] = symbols_[static_cast<size_t>(at)];
    }
    symbols_.resize(count);
  }

 private:
  static constexpr int32_t kEnd = -1;
  struct Link {
    int32_t previous, next;
    Merge merge;  // of this symbol with the next one; rank kNone also for symbols that are gone
  };

  template <typename Find>
  void Look(int32_t at, const Find& find, bool sift) {
    Link& link = links_[static_cast<size_t>(at)];
    const Symbol& left = symbols_[static_cast<size_t>(at)];
    link.merge = Merge{};
    if (link.next == kEnd || left.frozen) return;
    const Symbol& right = symbols_[static_cast<size_t>(link.next)];
    if (right.frozen) return;
    link.merge = find(left, right);
    if (link.merge.rank == Merge::kNone) return;
    queue_.push_back(uint64_t{link.merge.rank} << 32 | static_cast<uint32_t>(at));
    if (sift) std::push_heap(queue_.begin(), queue_.end(), std::greater<uint64_t>());
  }

  template <typename Find>
  void Join(int32_t at, const Find& find) {
    Link& link = links_[static_cast<size_t>(at)];
    Link& gone = links_[static_cast<size_t>(link.next)];
    symbols_[static_cast<size_t>(at)].size += symbols_[static_cast<size_t>(link.next)].size;
    symbols_[static_cast<size_t>(at)].id = link.merge.id;
    gone.merge = Merge{};
    link.next = gone.next;
    if (link.next != kEnd) links_[static_cast<size_t>(link.next)].previous = at;
    if (link.previous != kEnd) Look(link.previous, find, true);
    Look(at, find, true);
  }

  std::vector<Symbol> symbols_;
  std::vector<Link> links_;
  std::vector<uint64_t> queue_;  // min-heap of rank << 32 | index of the left symbol
};

}  // namespace kvc
