// Attention of prompts. Flops: 4 * rows * entries * D per query head, and 2 * rows * entries * D again for
// columns, unless they are folded of the same logits (AttendAndFold); keys of a layer are read once per block
// of rows, by the heads of a group together.
#include <algorithm>
#include <cstring>
#include <limits>

#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/layer.h"

namespace kvc::cpu {
namespace {

constexpr int32_t kQueryBlock = 64;  // query rows of one work item
constexpr int64_t kKeyBlock = 128;   // keys of one work item of columns
// Entries whose logits are kept for a block of rows, at most: 1 MiB a thread.
constexpr int64_t kMostKept = 4096;
// Work items a thread at least, where there are heads to part: what a slow one leaves is for the others.
constexpr int64_t kItemsAThread = 8;

// Into how many items of about as many heads the query heads of a group go: the fewest that are enough for
// all threads. n_whole: items if they stayed together, 1 ...
int32_t PartsOfGroup(int32_t group, int64_t n_whole, int n_threads) {
  const int64_t wanted = (kItemsAThread * n_threads + n_whole - 1) / n_whole;
  return static_cast<int32_t>(std::clamp<int64_t>(wanted, 1, group));
}

int32_t QueryBlocks(int32_t n_rows) { return (n_rows + kQueryBlock - 1) / kQueryBlock; }

// Floats of a row of kept logits.
int64_t KeptStride(int64_t n_entries) { return (n_entries + kKeptKeys - 1) / kKeptKeys * kKeptKeys; }

// The rows [row, row + ...) of query heads [h, h + n_heads), which share a KV head.
PrefillAttentionArgs BlockOf(const PromptAttentionArgs& a, int32_t row, int32_t h, int32_t n_heads) {
  const LayerView& kv = a.layer;
  const int32_t d = kv.head_dim, group = a.n_heads / kv.n_kv_heads, g = h / group;
  const int64_t at = (int64_t{row} * a.n_heads + h) * d;
  PrefillAttentionArgs t{};
  t.q = Raw(a.q) + at, t.out = a.out ? Raw(a.out) + at : nullptr;
  t.q_stride = t.out_stride = int64_t{a.n_heads} * d;
  t.k = KeysOf(kv, g), t.v = ValuesOf(kv, g);
  t.lse = a.lse ? Raw(a.lse) + h * a.lse_stride + row : nullptr, t.lse_stride = a.lse_stride;
  t.seen = kv.has_seen ? Raw(kv.seen) + g * kv.capacity : nullptr, t.seen_bit = SeenBit(h % group);
  t.n_q = std::min(kQueryBlock, a.rows.n - row), t.n_heads = n_heads;
  t.first_visible = a.rows.base[g] + a.rows.offset + row;
  t.d = d, t.window = a.window, t.scale = a.scale, t.cap = a.cap;
  t.first_logit = RestLogit(Raw(kv.positions)[g * kv.capacity]);
  t.sink = a.sinks ? Raw(a.sinks) + h : nullptr;
  return t;
}

}  // namespace

int64_t CpuDevice::PlaceScratchBytes(int32_t n_rows, int32_t head_dim) const {
  return int64_t{4} * n_rows * head_dim;
}

Status CpuDevice::Place(Stream*, const PlaceArgs& a) {
  const LayerView& to = a.layer;
  const int32_t d = to.head_dim, heads = to.n_kv_heads, group = a.n_heads / heads;
  float* q = Raw(a.q);
  pool_->ParallelFor(a.rows.n, [&](int64_t i, int) {
    float *cos = reinterpret_cast<float*>(Raw(a.scratch)) + i * d, *sin = cos + d / 2;
    const int64_t position = a.first_position + a.rows.offset + i;
    if (!a.turning.in_cache) a.turning.rope->Angles(position, cos, sin);
    for (int32_t g = 0; g < heads; ++g) {
      const int64_t slot = a.rows.base[g] + a.rows.offset + i, at = g * to.capacity + slot;
      if (a.turning.in_cache) a.turning.rope->Angles(slot, cos, sin);
      for (int32_t h = g * group; h < (g + 1) * group; ++h)
        kernels_.rope(q + (i * a.n_heads + h) * d, cos, sin, d, a.turning.pairing);
      float* k = KeysOf(to, g) + slot * d;
      std::memcpy(k, Raw(a.k) + (i * heads + g) * d, static_cast<size_t>(d) * sizeof(float));
      kernels_.rope(k, cos, sin, d, a.turning.pairing);
      std::memcpy(ValuesOf(to, g) + slot * d, Raw(a.v) + (i * heads + g) * d,
                  static_cast<size_t>(d) * sizeof(float));
      Raw(to.positions)[at] = static_cast<int32_t>(position);
      for (int32_t x = 0; x < to.n_aux; ++x) Raw(to.aux)[x * heads * to.capacity + at] = 0.0f;
      if (to.has_seen) Raw(to.seen)[at] = ~0u;
    }
  });
  for (int32_t g = 0; g < heads; ++g) to.len[g] = a.rows.base[g] + a.rows.offset + a.rows.n;
  return {};
}

Status CpuDevice::AttendPrompt(Stream*, const PromptAttentionArgs& a) {
  const LayerView& kv = a.layer;
  const int32_t group = a.n_heads / kv.n_kv_heads, blocks = QueryBlocks(a.rows.n),
                parts = PartsOfGroup(group, std::max(int64_t{blocks} * kv.n_kv_heads, int64_t{1}),
                                     pool_->n_threads()),
                a_block = kv.n_kv_heads * parts;  // items
  pool_->ParallelFor(int64_t{blocks} * a_block, [&](int64_t item, int) {
    // Later blocks see more keys: they go first, so that threads end together.
    const int32_t block = blocks - 1 - static_cast<int32_t>(item / a_block), row = block * kQueryBlock,
                  g = static_cast<int32_t>(item % a_block) / parts, part = static_cast<int32_t>(item % parts),
                  first = group * part / parts;
    kernels_.prefill_attention(BlockOf(a, row, g * group + first, group * (part + 1) / parts - first));
  });
  return {};
}

Status CpuDevice::FoldColumns(Stream*, const ColumnArgs& a) {
  const LayerView& kv = a.layer;
  const int32_t d = kv.head_dim, group = a.n_heads / kv.n_kv_heads;
  const bool maxima = a.fold == ColumnFold::kMaxima;
  const int64_t blocks = (kv.capacity + kKeyBlock - 1) / kKeyBlock;
  pool_->ParallelFor(blocks * kv.n_kv_heads, [&](int64_t item, int) {
    const int32_t g = static_cast<int32_t>(item / blocks), cached = a.rows.base[g];
    const int64_t first = item % blocks * kKeyBlock, end = int64_t{cached} + a.limit;
    if (first >= end) return;
    for (int32_t h = g * group; h < (g + 1) * group; ++h) {
      ColumnSumsArgs t{};
      t.q = Raw(a.q) + int64_t{h} * d;
      t.q_stride = int64_t{a.n_heads} * d;
      t.k = KeysOf(kv, g);
      t.lse = Raw(a.lse) + h * a.lse_stride;
      t.sums = Raw(a.into) + g * kv.capacity;
      t.n_q = a.rows.n, t.first_visible = cached + a.rows.offset;
      t.key_begin = static_cast<int32_t>(first),
      t.key_end = static_cast<int32_t>(std::min(first + kKeyBlock, end));
      t.d = d, t.scale = a.power() * a.scale, t.cap = a.power() * a.cap, t.lse_factor = a.power();
      t.first_logit = a.power() * RestLogit(Raw(kv.positions)[g * kv.capacity]);
      t.weight = maxima ? 1 : 1.0f / static_cast<float>(group);
      t.seen = kv.has_seen ? Raw(kv.seen) + g * kv.capacity : nullptr, t.seen_bit = SeenBit(h % group);
      (maxima ? kernels_.column_maxima : kernels_.column_sums)(t);
    }
  });
  return {};
}

int64_t CpuDevice::AttendAndFoldScratchBytes(int32_t n_rows, int32_t n_heads, int64_t n_entries) const {
  if (n_entries > kMostKept) return 0;
  const int64_t lines = int64_t{QueryBlocks(n_rows)} * n_heads;
  return int64_t{4} * KeptStride(n_entries) * (int64_t{pool_->n_threads()} * kQueryBlock + lines);
}

// Of largest probabilities and of squares, where the logits of a block of rows are few enough to be kept
// until the sums of their rows are known. A block has its own line, of the largest logits less lse or of the
// sums; those meet at the end, in the same order whatever the threads.
Status CpuDevice::AttendAndFold(Stream* s, const AttendAndFoldArgs& args) {
  const PromptAttentionArgs& a = args.attend;
  const ColumnArgs& fold = args.fold;
  const int32_t heads = a.layer.n_kv_heads, group = a.n_heads / heads, blocks = QueryBlocks(a.rows.n),
                most = *std::max_element(a.rows.base, a.rows.base + heads) + fold.limit;
  if (fold.fold == ColumnFold::kSums || args.scratch_entries > kMostKept)
    return Device::AttendAndFold(s, args);
  const bool squares = fold.fold == ColumnFold::kSquares;
  const int64_t stride = KeptStride(most);
  float *kept = reinterpret_cast<float*>(Raw(args.scratch)),
        *lines = kept + pool_->n_threads() * kQueryBlock * stride;
  pool_->ParallelFor(int64_t{blocks} * a.n_heads, [&](int64_t item, int thread) {
    const int32_t block = blocks - 1 - static_cast<int32_t>(item / a.n_heads),
                  h = static_cast<int32_t>(item % a.n_heads), n = a.rows.base[h / group] + fold.limit;
    PrefillAttentionArgs t = BlockOf(a, block * kQueryBlock, h, 1);
    t.kept = kept + thread * kQueryBlock * stride, t.kept_stride = stride, t.n_kept = n;
    kernels_.prefill_attention(t);
    float* line = lines + (int64_t{h} * blocks + block) * stride;
    std::fill(line, line + n, squares ? 0 : -std::numeric_limits<float>::infinity());
    for (int32_t i = 0; i < t.n_q; ++i)
      (squares ? kernels_.add_squares : kernels_.raise)(t.kept + i * stride, t.lse[i], n, line);
  });
  pool_->ParallelFor(heads, [&](int64_t g, int) {
    const int32_t n = a.rows.base[g] + fold.limit;
    float *line = lines + g * group * blocks * stride, *into = Raw(fold.into) + g * fold.layer.capacity;
    if (squares) {
      for (int32_t i = 0; i < group * blocks; ++i)
        kernels_.axpy(1.0f / static_cast<float>(group), line + i * stride, n, into);
      return;
    }
    for (int32_t i = 1; i < group * blocks; ++i) kernels_.raise(line + i * stride, 0, n, line);
    kernels_.weights(0, 1, n, line);
    kernels_.raise(line, 0, n, into);
  });
  return {};
}

}  // namespace kvc::cpu
