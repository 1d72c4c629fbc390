// A step as its kernels take it (step.cc and the kernels that it launches).
#pragma once
#include <algorithm>

#include "cuda/head_ops.h"
#include "cuda/layer_params.h"
#include "cuda/merge_dropped.h"
#include "cuda/read_tile.h"
#include "cuda/tuning.h"

namespace kvc::cuda {

// Entries of a head that one block of the attention reads: short ones where there are few in all, for a
// device has some hundred places for blocks; a multiple of a tile.
inline int32_t SegmentOf(int64_t entries, const Tuning& t) {
  const int64_t even = (entries / t.step_blocks + kTile - 1) / kTile * kTile;
  return static_cast<int32_t>(std::clamp<int64_t>(even, t.least_segment, t.most_segment));
}
// At most so many segments have `entries` entries of so many heads, whose entries lie in up to three runs.
inline int64_t MostSegments(int64_t entries, int64_t heads, const Tuning& t) {
  const int64_t even = t.step_blocks + t.step_blocks / t.least_segment + 1;  // SegmentOf rounds down first
  return std::max(entries / t.most_segment, even) + 3 * heads;
}

struct RowParams {
  CacheLayer cache;
  CacheLayer read;         // what attention reads: the same, or heads with the pages that are chosen
  const int32_t* n_pages;  // [G] that are chosen (PagesRead), 0: all; null: all of every head
  GroupKind reads_group;
  HeadLengths* report;  // [G] what an update leaves, for the host; null: it knows
  int32_t position;
  const float* angles;  // [D] cos, sin of the position
  // Of the session's plan (StepPlan).
  int32_t n_instrs;
  StepInstr instrs[kMaxStepInstrs];
  HistoryRule history;
  bool needs_attention, one_set, evicts, in_cache, ends_later;
  float gain;  // on the logits of the attention that is wanted (LengthGain)
  RankBy rank;
  SelectRule select;
  MergeRule merge;
  int32_t n_cleared, n_sinks;
  const int32_t *caps, *held;  // [G], null: none
  float* query_ring;           // the row [H, D] of the newest queries, null: not kept
  float* attention;            // [H, attention_stride] of this layer, or null
  int64_t attention_stride;
};

struct Segment {
  int32_t row, head, begin, end;  // physical indices
};
struct HeadSegments {
  int32_t first, n;
};

// Scratch of one head's update.
struct UpdateRoom {
  uint8_t* at;
  int64_t bytes;   // of one head
  int64_t stride;  // entries of the longest head
  int64_t sort_stride;
};
inline int64_t UpdateBytes(int64_t stride, int64_t sort_stride, int64_t settle) {
  return 16 * sort_stride + 4 * (7 * stride + 4) + (2 * stride + 15) / 16 * 16 + 64 + settle;
}

// Where pages are chosen: of every row's head `stride` numbers.
struct ChoiceRoom {
  int32_t* pages;  // which are read, ascending
  int32_t* ids;    // theirs
  float* scores;   // of all
  uint8_t* marks;
  int64_t stride;
};

struct StepParams {
  const RowParams* rows;
  int32_t n_rows, n_heads, n_kv_heads, d, window;
  float scale, cap;
  bool entries_lie;    // but for those that it appends, before what is in front of the attention has ended
  const float* sinks;  // [H], null: none
  Turn turn;
  AngleLines angles;  // for keys that are turned at every step; null where there are none
  float *q, *k;       // [rows, H, D], [rows, G, D]
  const float* v;
  float* out;
  // [rows, H, D]: what AppendToHeads leaves to the attention. Null: nobody has appended; the attention turns
  // queries on its way, and writes new entries where it reads them.
  float* turned;
  float* logits;  // [rows, H, stride] or null
  float* mean;    // [rows, G, stride] or null: room for what an update looks at
  int64_t stride;
  float* partial;  // [items, group, 2 + D]
  const Segment* items;
  const HeadSegments* heads;  // [rows, G]
  // [rows, H]: how many of a head's blocks have written their segments; the last one joins them. Null: nobody
  // does.
  int32_t* arrived;
  UpdateRoom update;
  ChoiceRoom choice;

  // Of what attention reads at `at` of a head: its physical index.
  KVC_DEVICE int32_t Physical(int32_t r, int32_t g, const Pages& read, int32_t at) const {
    const RowParams& row = rows[r];
    if (row.n_pages == nullptr || row.n_pages[g] == 0) return at;
    if (at >= read.main_len()) return at + row.cache.heads[g].len - read.main_len();
    const int32_t slots = read.format().slots;
    return choice.pages[(static_cast<int64_t>(r) * n_kv_heads + g) * choice.stride + at / slots] * slots +
           at % slots;
  }
};

// A block a KV head of every row.
inline dim3 GridOfHeads(const StepParams& p) {
  return dim3(static_cast<unsigned>(p.n_kv_heads), static_cast<unsigned>(p.n_rows));
}

// New entries, and queries turned to where they stand: in front of everything that reads them.
cudaError_t AppendToHeads(const StepParams& p, CudaStream& stream);
// The attention of all segments into `partial`, and logits where they are wanted.
cudaError_t AttendSegments(const StepParams& p, int32_t n_items, CudaStream& stream);
// The same on the tensor cores, where all heads are stored in pages for it, of one form, with keys that lie
// turned: pages of numbers of 16 bits, and of codes, beside which there may be rings of f16. Segments of
// pages begin at multiples of a tile. They append where nobody has, of up to kHeads query heads a group.
constexpr int kHeads = 8;  // query heads of a product, one a row
bool IsForMma(const PageFormat& f);
cudaError_t AttendSegmentsMma(const StepParams& p, const PageFormat& f, int32_t n_items, CudaStream& stream);
bool IsForCodes(const PageFormat& f);
inline bool IsForRings(const PageFormat& f) { return f.type == KvType::kF16 && IsForMma(f); }
cudaError_t AttendSegmentsCodes(const StepParams& p, const PageFormat& f, int32_t n_items,
                                CudaStream& stream);
// The pages that the attention of every head reads, where it reads a part.
cudaError_t ChoosePages(const StepParams& p, CudaStream& stream);
// Shares of the attention for the rows that are observed.
cudaError_t ObserveAttention(const StepParams& p, CudaStream& stream);
// What the method does after the attention; `end_only`: just the limit and settling. one: a block a row, its
// heads in order.
cudaError_t UpdateHeads(const StepParams& p, bool end_only, bool one, CudaStream& stream);

}  // namespace kvc::cuda
