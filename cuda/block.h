// What a block does together over a line of values: the best of them, their order, who comes where.
#pragma once
#include "cuda/gpu.h"

namespace kvc::cuda {

constexpr int kBlock = 128;  // threads of the kernels that work on one head

// Shared memory of the functions below.
struct BlockSpace {
  int32_t histogram[256];
  int32_t ints[kWarp];
  float floats[kWarp];
  double doubles[kWarp];
  uint64_t longs[kWarp];
  int32_t left, bucket;
};

// The ScoreBits of the count-th best of n values (0 < count <= n): eight bits a pass. *n_above: how many are
// better.
template <typename Bits>
KVC_DEVICE uint32_t BlockThreshold(Bits bits, int32_t n, int32_t count, BlockSpace* s, int32_t* n_above) {
  uint32_t prefix = 0, fixed = 0;
  int32_t above = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    for (int i = ThreadOfBlock(); i < 256; i += BlockThreads()) s->histogram[i] = 0;
    __syncthreads();
    for (int32_t i = ThreadOfBlock(); i < n; i += BlockThreads()) {
      const uint32_t b = bits(i);
      if ((b & fixed) == prefix) atomicAdd(&s->histogram[b >> shift & 255], 1);
    }
    __syncthreads();
    if (ThreadOfBlock() == 0) {
      int bucket = 255;
      int32_t sum = above;
      while (bucket > 0 && sum + s->histogram[bucket] < count) sum += s->histogram[bucket--];
      s->bucket = bucket, s->left = sum;
    }
    __syncthreads();
    above = s->left;
    prefix |= static_cast<uint32_t>(s->bucket) << shift;
    fixed |= 255u << shift;
    __syncthreads();
  }
  *n_above = above;
  return prefix;
}

// Calls f(i, place, yes) for i in [0, n) with pred(i), place counting those before i; all threads come along
// in step. Returns how many there are.
template <typename Pred, typename F>
KVC_DEVICE int32_t BlockCompact(int32_t n, BlockSpace* s, Pred pred, F f) {
  int32_t before = 0;
  for (int32_t base = 0; base < n; base += BlockThreads()) {
    const int32_t i = base + ThreadOfBlock();
    const bool yes = i < n && pred(i);
    int32_t total = 0;
    const int32_t place = before + BlockPrefix(yes ? 1 : 0, s->ints, &total);
    if (yes) f(i, place);
    before += total;
  }
  __syncthreads();
  return before;
}

// mark(i, chosen) for the `count` best of n values, equal ones by the lower index.
template <typename Bits, typename Mark>
KVC_DEVICE void BlockMarkTop(Bits bits, int32_t n, int32_t count, BlockSpace* s, Mark mark) {
  if (count <= 0 || count >= n) {
    for (int32_t i = ThreadOfBlock(); i < n; i += BlockThreads()) mark(i, count > 0);
    __syncthreads();
    return;
  }
  int32_t above = 0;
  const uint32_t threshold = BlockThreshold(bits, n, count, s, &above);
  const int32_t ties = count - above;
  int32_t before = 0;
  for (int32_t base = 0; base < n; base += BlockThreads()) {
    const int32_t i = base + ThreadOfBlock();
    const uint32_t b = i < n ? bits(i) : 0;
    int32_t total = 0;
    const int32_t place = before + BlockPrefix(i < n && b == threshold ? 1 : 0, s->ints, &total);
    if (i < n) mark(i, b > threshold || (b == threshold && place < ties));
    before += total;
  }
  __syncthreads();
}

// keys [room for the next power of two] ascending.
KVC_DEVICE int32_t PowerOfTwo(int32_t n) {
  int32_t p = 1;
  while (p < n) p *= 2;
  return p;
}
KVC_DEVICE void BlockSort(uint64_t* keys, int32_t n) {
  const int32_t all = PowerOfTwo(n);
  for (int32_t i = n + ThreadOfBlock(); i < all; i += BlockThreads()) keys[i] = ~static_cast<uint64_t>(0);
  __syncthreads();
  for (int32_t size = 2; size <= all; size *= 2) {
    for (int32_t step = size / 2; step > 0; step /= 2) {
      for (int32_t i = ThreadOfBlock(); i < all / 2; i += BlockThreads()) {
        const int32_t a = i / step * 2 * step + i % step, b = a + step;
        const bool up = (a & size) == 0;
        const uint64_t x = keys[a], y = keys[b];
        if ((x > y) == up) keys[a] = y, keys[b] = x;
      }
      __syncthreads();
    }
  }
}

}  // namespace kvc::cuda
