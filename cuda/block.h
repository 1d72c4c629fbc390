// What a block does together over a line of values: the best of them, their order, who comes where.
//
// A line is read a few times, by a block that alone works on it: what counts is that enough of it is on its
// way. Threads ask for eight values before they look at the first, and blocks have up to 1,024 (LineThreads):
// 32 KiB, where a multiprocessor of an H200 gets some 38 KiB from the second cache in the time that one read
// takes. The threshold of 131,072 values takes three reads and the marks one: 2 MiB, 33,000 clocks at 64
// bytes each.
#pragma once
#include "cuda/gpu.h"

namespace kvc::cuda {

constexpr int kBlock = 128;         // threads of the kernels that work on one head
constexpr int kLineThreads = 1024;  // the most of those that pass over lines

// Threads for lines of up to so many values.
inline unsigned LineThreads(int64_t longest) {
  int64_t threads = kBlock;
  while (threads < kLineThreads && 8 * threads < longest) threads *= 2;
  return static_cast<unsigned>(threads);
}

constexpr int kMostBuckets = 2048;

// Shared memory of the functions below.
struct BlockSpace {
  int32_t histogram[kMostBuckets];
  int32_t ints[kWarp];
  float floats[kWarp];
  double doubles[kWarp];
  uint64_t longs[kWarp];
  int32_t bucket, above, equal;
  int32_t told;  // by one thread to all
};

// look(i, load(i)) for all i in [first, end), `step` apart, kAhead at a time on their way.
template <int kAhead = 8, typename Load, typename Look>
KVC_DEVICE void EachLoaded(int32_t first, int32_t end, int32_t step, Load load, Look look) {
  for (int32_t base = first; base < end; base += kAhead * step) {
    decltype(load(0)) x[kAhead] = {};
    KVC_UNROLL
    for (int u = 0; u < kAhead; ++u) {
      if (base + u * step < end) x[u] = load(base + u * step);
    }
    KVC_UNROLL
    for (int u = 0; u < kAhead; ++u) {
      if (base + u * step < end) look(base + u * step, x[u]);
    }
  }
}
template <typename Load, typename Look>
KVC_DEVICE void EachOfLine(int32_t n, Load load, Look look) {
  EachLoaded(ThreadOfBlock(), n, BlockThreads(), load, look);
}

// The bucket in which the count-th value from above lies, where `above` lie in none of them, and how many lie
// over it and in it: s->bucket, above, equal. The histogram is complete.
KVC_DEVICE void BlockFindBucket(int32_t n_buckets, int32_t count, int32_t above, BlockSpace* s) {
  const int32_t each = (n_buckets + BlockThreads() - 1) / BlockThreads(),
                top = n_buckets - 1 - ThreadOfBlock() * each;  // the highest of this thread's
  int32_t mine = 0, total = 0;
  for (int32_t i = 0; i < each && i <= top; ++i) mine += s->histogram[top - i];
  above += BlockPrefix(mine, s->ints, &total);
  if (above < count && above + mine >= count) {
    int32_t bucket = top;
    while (above + s->histogram[bucket] < count) above += s->histogram[bucket--];
    s->bucket = bucket, s->above = above, s->equal = s->histogram[bucket];
  }
  __syncthreads();
}

struct Threshold {
  uint32_t bits;         // of the count-th best value
  int32_t above, equal;  // values that are better, and that are as good
};

// Of n values by their ScoreBits, 0 < count <= n; 11, 11 and 10 bits a pass.
template <typename Bits>
KVC_DEVICE Threshold BlockThreshold(Bits bits, int32_t n, int32_t count, BlockSpace* s) {
  Threshold t{0, 0, 0};
  uint32_t fixed = 0;
  for (int shift = 21; shift >= 0; shift = shift == 21 ? 10 : shift - 10) {
    const int32_t n_buckets = shift == 0 ? 1024 : 2048;
    for (int32_t i = ThreadOfBlock(); i < n_buckets; i += BlockThreads()) s->histogram[i] = 0;
    __syncthreads();
    const uint32_t last = static_cast<uint32_t>(n_buckets - 1);
    EachOfLine(n, bits, [&](int32_t, uint32_t b) {
      if ((b & fixed) == t.bits) atomicAdd(&s->histogram[b >> shift & last], 1);
    });
    __syncthreads();
    BlockFindBucket(n_buckets, count, t.above, s);
    t.above = s->above, t.equal = s->equal;
    t.bits |= static_cast<uint32_t>(s->bucket) << shift;
    fixed |= last << shift;
    __syncthreads();
  }
  return t;
}

// A warp's part of [0, n): whole groups of lanes behind each other.
struct WarpPart {
  int32_t begin, end;
};
KVC_DEVICE WarpPart PartOfWarp(int32_t n) {
  const int32_t each = (n + BlockThreads() - 1) / BlockThreads() * kWarp, begin = WarpOfBlock() * each;
  return {min(begin, n), min(begin + each, n)};
}

// f(i, yes, place) for all i in [0, n), place counting those with pred before it; by lanes in step. pred is
// asked again where a lane has more than one, and may not change meanwhile. Returns how many there are.
template <typename Pred, typename F>
KVC_DEVICE int32_t BlockRank(int32_t n, BlockSpace* s, Pred pred, F f) {
  const WarpPart part = PartOfWarp(n);
  const bool once = n <= BlockThreads();
  bool yes = false;
  int32_t mine = 0;
  if (once) {
    yes = part.begin + Lane() < part.end && pred(part.begin + Lane());
    mine = yes ? 1 : 0;
  } else {
    EachLoaded(part.begin + Lane(), part.end, kWarp, pred,
               [&](int32_t, bool counts) { mine += counts ? 1 : 0; });
  }
  mine = WarpSum(mine);
  if (Lane() == 0) s->ints[WarpOfBlock()] = mine;
  __syncthreads();
  int32_t before = 0, all = 0;
  for (int32_t w = 0; w < BlockThreads() / kWarp; ++w) {
    if (w < WarpOfBlock()) before += s->ints[w];
    all += s->ints[w];
  }
  const uint32_t lower = (1u << Lane()) - 1;
  for (int32_t base = part.begin; base < part.end; base += kWarp) {
    const int32_t i = base + Lane();
    const bool there = i < part.end;
    if (!once) yes = there && pred(i);
    const uint32_t lanes = LanesWhere(yes);
    if (there) f(i, yes, before + CountBits(lanes & lower));
    before += CountBits(lanes);
  }
  __syncthreads();
  return all;
}

// f(i, place) for i in [0, n) with pred(i), place counting those before i. Returns how many there are.
template <typename Pred, typename F>
KVC_DEVICE int32_t BlockCompact(int32_t n, BlockSpace* s, Pred pred, F f) {
  return BlockRank(n, s, pred, [&](int32_t i, bool yes, int32_t place) {
    if (yes) f(i, place);
  });
}

// mark(i, chosen) for the `count` best of n values, equal ones by the lower index.
template <typename Bits, typename Mark>
KVC_DEVICE void BlockMarkTop(Bits bits, int32_t n, int32_t count, BlockSpace* s, Mark mark) {
  if (count <= 0 || count >= n) {
    for (int32_t i = ThreadOfBlock(); i < n; i += BlockThreads()) mark(i, count > 0);
    __syncthreads();
    return;
  }
  const Threshold t = BlockThreshold(bits, n, count, s);
  if (t.above + t.equal == count) {  // all that are as good as the last one
    EachOfLine(n, bits, [&](int32_t i, uint32_t b) { mark(i, b >= t.bits); });
    __syncthreads();
    return;
  }
  BlockRank(
      n, s, [&](int32_t i) { return bits(i) == t.bits; },
      [&](int32_t i, bool equal, int32_t place) {
        mark(i, equal ? place < count - t.above : bits(i) > t.bits);
      });
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
