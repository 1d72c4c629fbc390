// The merge loop both kinds of BPE share: the best pair of neighbours becomes one symbol, until no pair may
// merge.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <new>

#include "lib/base/memory_meter.h"
#include "lib/model/tokenizer_tables.h"

namespace kvc {

// Words are merged whole up to this size. A longer one is cut where no piece crosses, and where there is no
// such place between two characters: there its ids may differ by a merge from those of the whole.
constexpr size_t kMaxWordBytes = 256 * 1024;

struct Symbol {
  uint32_t begin = 0, size = 0;  // bytes in the text of the word
  int32_t id = -1;               // piece, -1 unknown
};

// Working memory of the loop, kept from word to word: 32 bytes for each byte of the longest one. O(n log n)
// for n symbols, whatever they are.
class Merger {
 public:
  // A word of `size` bytes; its symbols follow, in order and without gaps. frozen: never merges.
  void Begin(size_t size) {
    if (cells_.size() < static_cast<int64_t>(size)) Grow(size);
    size_ = static_cast<uint32_t>(size);
    n_queued_ = 0;
  }
  void Add(const Symbol& symbol, bool frozen) {
    cells_[symbol.begin] = Cell{symbol.id, Merge{}, symbol.size, frozen};
    cells_[symbol.begin + symbol.size - 1].size = symbol.size;
  }

  // find(left, right) -> Merge, for neighbours that are not frozen.
  template <typename Find>
  void Run(const Find& find) {
    for (uint32_t at = 0; at < size_; at += cells_[at].size) Look(at, find, false);
    uint64_t* queue = queue_.data();
    std::make_heap(queue, queue + n_queued_, std::greater<uint64_t>());
    while (n_queued_ > 0) {
      std::pop_heap(queue, queue + n_queued_, std::greater<uint64_t>());
      const uint64_t entry = queue[--n_queued_];
      const auto at = static_cast<uint32_t>(entry);
      // An entry is stale when the pair that begins here has changed since; then the pair of now has its own
      // entry.
      if (cells_[at].merge.rank == static_cast<uint32_t>(entry >> 32)) Join(at, find);
    }
  }

  // each(symbol), in order.
  template <typename Each>
  void ForEach(const Each& each) const {
    for (uint32_t at = 0; at < size_; at += cells_[at].size) each(Symbol{at, cells_[at].size, cells_[at].id});
  }

 private:
  // Of the symbol that starts at this byte. The last byte of a symbol knows its size too, which leads from a
  // symbol to the one before.
  struct Cell {
    int32_t id;
    Merge merge;  // with the next symbol; rank kNone also where no symbol starts any more
    uint32_t size : 31, frozen : 1;
  };

  void Grow(size_t size) {
    const auto grown =
        std::max(static_cast<int64_t>(size),
                 std::clamp<int64_t>(2 * cells_.size(), 64, static_cast<int64_t>(kMaxWordBytes)));
    // A symbol is in the queue once at first; a join takes one entry out and puts two in at most.
    if (!cells_.Allocate(nullptr, grown, "a word").ok() ||
        !queue_.Allocate(nullptr, 2 * grown, "a word").ok()) {
      throw std::bad_alloc();
    }
  }

  template <typename Find>
  void Look(uint32_t at, const Find& find, bool sift) {
    Cell& left = cells_[at];
    const uint32_t next = at + left.size;
    left.merge = Merge{};
    if (next == size_ || left.frozen || cells_[next].frozen) return;
    left.merge = find(Symbol{at, left.size, left.id}, Symbol{next, cells_[next].size, cells_[next].id});
    if (left.merge.rank == Merge::kNone) return;
    queue_[n_queued_++] = uint64_t{left.merge.rank} << 32 | at;
    if (sift) std::push_heap(queue_.data(), queue_.data() + n_queued_, std::greater<uint64_t>());
  }

  template <typename Find>
  void Join(uint32_t at, const Find& find) {
    Cell& left = cells_[at];
    Cell& right = cells_[at + left.size];
    left.id = left.merge.id;
    right.merge = Merge{};
    left.size += right.size;
    cells_[at + left.size - 1].size = left.size;
    if (at > 0) Look(at - cells_[at - 1].size, find, true);
    Look(at, find, true);
  }

  Buffer<Cell> cells_;      // by byte of the word
  Buffer<uint64_t> queue_;  // min-heap of rank << 32 | byte where the left symbol starts
  int64_t n_queued_ = 0;
  uint32_t size_ = 0;
};

}  // namespace kvc
