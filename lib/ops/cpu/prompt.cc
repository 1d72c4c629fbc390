// Attention of prompts. Flops: 4 * rows * entries * D per query head, and the same again for columns; keys of
// a layer are read once per block of rows, by the heads of a group together.
#include <algorithm>
#include <cstring>

#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/raw.h"

namespace kvc::cpu {
namespace {

constexpr int32_t kQueryBlock = 64;  // query rows of one work item
constexpr int64_t kKeyBlock = 128;   // keys of one work item of columns
// Work items a thread at least, where there are heads to part: what a slow one leaves is for the others.
constexpr int64_t kItemsAThread = 8;

// Into how many items of about as many heads the query heads of a group go: the fewest that are enough for
// all threads. n_whole: items if they stayed together, 1 ...
int32_t PartsOfGroup(int32_t group, int64_t n_whole, int n_threads) {
  const int64_t wanted = (kItemsAThread * n_threads + n_whole - 1) / n_whole;
  return static_cast<int32_t>(std::clamp<int64_t>(wanted, 1, group));
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
      float* k = Raw(to.keys) + at * d;
      std::memcpy(k, Raw(a.k) + (i * heads + g) * d, static_cast<size_t>(d) * sizeof(float));
      kernels_.rope(k, cos, sin, d, a.turning.pairing);
      std::memcpy(Raw(to.values) + at * d, Raw(a.v) + (i * heads + g) * d,
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
  const int32_t d = kv.head_dim, group = a.n_heads / kv.n_kv_heads, n = a.rows.n,
                blocks = (n + kQueryBlock - 1) / kQueryBlock,
                parts = PartsOfGroup(group, std::max(int64_t{blocks} * kv.n_kv_heads, int64_t{1}),
                                     pool_->n_threads()),
                a_block = kv.n_kv_heads * parts;  // items
  pool_->ParallelFor(int64_t{blocks} * a_block, [&](int64_t item, int) {
    // Later blocks see more keys: they go first, so that threads end together.
    const int32_t block = blocks - 1 - static_cast<int32_t>(item / a_block), row = block * kQueryBlock,
                  g = static_cast<int32_t>(item % a_block) / parts, part = static_cast<int32_t>(item % parts),
                  first = group * part / parts, h = g * group + first;
    const int64_t at = (int64_t{row} * a.n_heads + h) * d;
    PrefillAttentionArgs t{};
    t.q = Raw(a.q) + at, t.out = a.out ? Raw(a.out) + at : nullptr;
    t.q_stride = t.out_stride = int64_t{a.n_heads} * d;
    t.k = Raw(kv.keys) + g * kv.capacity * d, t.v = Raw(kv.values) + g * kv.capacity * d;
    t.lse = a.lse ? Raw(a.lse) + h * a.lse_stride + row : nullptr, t.lse_stride = a.lse_stride;
    t.seen = kv.has_seen ? Raw(kv.seen) + g * kv.capacity : nullptr, t.seen_bit = SeenBit(first);
    t.n_q = std::min(kQueryBlock, n - row), t.n_heads = group * (part + 1) / parts - first;
    t.first_visible = a.rows.base[g] + a.rows.offset + row;
    t.d = d, t.window = a.window, t.scale = a.scale, t.cap = a.cap;
    t.sink = a.sinks ? Raw(a.sinks) + h : nullptr;
    kernels_.prefill_attention(t);
  });
  return {};
}

Status CpuDevice::FoldColumns(Stream*, const ColumnArgs& a) {
  const LayerView& kv = a.layer;
  const int32_t d = kv.head_dim, group = a.n_heads / kv.n_kv_heads;
  const int64_t blocks = (kv.capacity + kKeyBlock - 1) / kKeyBlock;
  pool_->ParallelFor(blocks * kv.n_kv_heads, [&](int64_t item, int) {
    const int32_t g = static_cast<int32_t>(item / blocks), cached = a.rows.base[g];
    const int64_t first = item % blocks * kKeyBlock, end = int64_t{cached} + a.limit;
    if (first >= end) return;
    for (int32_t h = g * group; h < (g + 1) * group; ++h) {
      ColumnSumsArgs t{};
      t.q = Raw(a.q) + int64_t{h} * d;
      t.q_stride = int64_t{a.n_heads} * d;
      t.k = Raw(kv.keys) + g * kv.capacity * d;
      t.lse = Raw(a.lse) + h * a.lse_stride;
      t.sums = Raw(a.into) + g * kv.capacity;
      t.n_q = a.rows.n, t.first_visible = cached + a.rows.offset;
      t.key_begin = static_cast<int32_t>(first),
      t.key_end = static_cast<int32_t>(std::min(first + kKeyBlock, end));
      t.d = d, t.scale = a.scale, t.cap = a.cap, t.weight = a.maxima ? 1 : 1.0f / static_cast<float>(group);
      (a.maxima ? kernels_.column_maxima : kernels_.column_sums)(t);
    }
  });
  return {};
}

}  // namespace kvc::cpu
