// The parts of a step on the processor: its scratch, and what a method does to one head after the attention.
#pragma once
#include <atomic>

#include "lib/ops/cpu/pages.h"
#include "lib/ops/step_ops.h"

namespace kvc::cpu {

// Lines of one thread, each as long as the longest head has slots.
struct StepLines {
  uint64_t* keys;
  int32_t* order;
  float *scores, *line;
  uint8_t* marks;
  int32_t* links;  // three lines
  float* vectors;  // two of D
  float* settle;   // HeadPages::SettleFloats
};

struct StepScratch {
  static constexpr int32_t kSegment = 256;  // entries of one work item
  static constexpr int32_t kTile = 16;  // entries that are attended together at least, of pages with fewer
  struct Item {
    int32_t row, head, begin, end;  // physical indices; of main those among the pages that are read
    Slot first;                     // of `begin`: other items look at it while this head may change
  };
  struct HeadTask {
    int64_t first_item;
    int32_t n_items;
    int32_t n_pages;            // of main that are read, in Chosen(); 0: all
    std::atomic<int32_t> open;  // items that have not ended
  };
  struct Sizes {
    int64_t stride, items, partial, attention, tile, seen, lines, parts, chosen;
    explicit Sizes(const StepShape& shape);
  };

  StepScratch(const StepShape& shape, int64_t n_threads, uint8_t* at);
  static int64_t Bytes(const StepShape& shape, int64_t n_threads);
  float* Tile(int thread) const;
  uint8_t* Seen(int thread) const;
  StepLines Lines(int thread, int32_t d) const;
  float* Parts(int thread) const;  // PageChoice::parts
  // Of pages that are read, by a row's number times G + its head.
  int32_t* Chosen(int64_t head) const { return chosen + head * z.chosen; }

  Sizes z;
  Item* items;
  float* partial;    // [items, group, 2 + D]: m, l, acc
  float* attention;  // [rows, H, stride] by physical index
  uint8_t *tiles, *seen, *lines, *parts;
  int32_t* chosen;                 // [rows, G, pages]
  HeadTask* heads;                 // [rows, G]
  std::atomic<int32_t>* row_open;  // [rows] heads that have not ended
  float* angles;                   // [rows, D]
};

// Physical indices by ascending position. keys, order: lines.
void SortByPosition(const HeadPages& pages, uint64_t* keys, int32_t* order);

// What happens to one head after its attention (methods.md 1.6, steps 3 and 4): side values, then reduction,
// the limit of a full context, and entries that leave the ring.
struct HeadUpdate {
  const KernelTable& kernels;
  const StepPlan& plan;
  const StepArgs& args;
  const StepRow& row;
  int32_t g;
  HeadPages pages;
  const float* p;          // [physical index] the step's attention, or null
  const float* new_value;  // [D]
  StepLines lines;

  void Run() const;
  void End() const;

 private:
  void Observe() const;
  void AddPrior() const;
  float Rank(const Slot& s, int32_t physical) const;
  void Reduce() const;
  bool ReduceByOne() const;
  void MergeOne(int32_t victim) const;
  void ReduceMany() const;
  void HoldLength() const;
  int32_t head() const { return args.layer * row.cache->layout->n_kv_heads + g; }
  void Dropped() const {
    if (row.dropped != nullptr) row.dropped->store(true, std::memory_order_relaxed);
  }
};

}  // namespace kvc::cpu
