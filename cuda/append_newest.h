// The new entry of a head in a step: by step_append (step_append.cu) in front of what reads it, or by the
// block of the attention whose segment it is in.
#pragma once
#include "cuda/step_params.h"

namespace kvc::cuda {

// By a block, for KV head g of row r. shared: [2, D], in which cos and sin of where the entry's queries stand
// come first. kInCache: keys may lie without rotation, which is then that of a place in the cache.
template <bool kInCache>
KVC_DEVICE void AppendNewest(const StepParams& p, int32_t r, int32_t g, float* shared) {
  const int32_t d = p.d, half = d / 2, group = p.n_heads / p.n_kv_heads;
  const RowParams& row = p.rows[r];
  const Pages pages(row.cache, g);
  float *cos = shared, *sin = cos + half, *key = cos + d;
  const float* k = p.k + (static_cast<int64_t>(r) * p.n_kv_heads + g) * d;
  const float* v = p.v + (static_cast<int64_t>(r) * p.n_kv_heads + g) * d;
  const float* q = p.q + (static_cast<int64_t>(r) * p.n_heads + g * group) * d;
  const bool turns = kInCache && pages.head().rotated == 0;
  // First, while little has to be kept around a sine: keys that are turned when they are read need none here.
  if (turns && row.in_cache) {
    const int64_t at = pages.len() - 1;
    for (int32_t j = ThreadOfBlock(); j < half; j += BlockThreads())
      AngleOf(p.turn, at, j, p.turn.factor, cos + j, sin + j);
  } else {
    for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads()) cos[j] = row.angles[j];
  }
  for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads()) key[j] = k[j];
  __syncthreads();
  for (int32_t x = ThreadOfBlock(); row.query_ring != nullptr && x < group * half; x += BlockThreads()) {
    // Sessions that count in slots keep queries without rotation: their slot changes with every dropped
    // entry.
    const int32_t j = x % half;
    TurnPair(q + x / half * d, d, j, p.turn.pairing, row.in_cache ? 1.0f : cos[j],
             row.in_cache ? 0.0f : sin[j], row.query_ring + (static_cast<int64_t>(g) * group + x / half) * d);
  }
  if (!turns) {
    for (int32_t j = ThreadOfBlock(); j < half; j += BlockThreads())
      TurnPair(key, d, j, p.turn.pairing, cos[j], sin[j], key);
  }
  __syncthreads();
  BlockWriteNewest(pages, key, v, row.position);
}

// By all threads of a block of the attention, whose keys lie turned, before it reads entries of its item. The
// block that has the newest one appends it where nobody has (StepParams::turned). False: the block has to
// wait for what is in front of it before it reads anything else, or writes.
KVC_DEVICE bool WaitForEntries(const StepParams& p, const Segment& item, const Pages& pages, float* shared) {
  const int32_t newest = pages.Physical(pages.len() - 1);
  const bool appends = p.turned == nullptr && newest >= item.begin && newest < item.end;
  if (p.entries_lie && !appends) return false;
  WaitForEarlier();
  if (appends) AppendNewest<false>(p, item.row, item.head, shared);
  return true;
}

}  // namespace kvc::cuda
