// What a block does together over a line of values: the best of them, their order, who comes where.
//
// A line is read a few times, by a block that alone works on it: what counts is that enough of it is on its
// way, and that little is done for each value. Threads ask for eight values before they look at the first, or
// for four times four, and blocks have up to 1,024 (LineThreads): 32 KiB and more, where a multiprocessor of
// an H200 gets some 38 KiB from the second cache in the time that one read takes. 131,072 scores are 8,200
// clocks a read at 64 bytes each, and as many for 8 operations a value, of which four make bits of it.
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

// look(i, load(i)) for i = first, first + step, ... below end, kAhead of them and then those `round` further
// on; the loads of a round are on their way together. Only those of the last one are asked whether they are
// there: a question for each would be most of what a pass costs.
template <int kAhead, typename Load, typename Look>
KVC_DEVICE void EachOfRounds(int32_t first, int32_t end, int32_t step, int32_t round, Load load, Look look) {
  int32_t base = first;
  for (; base + (kAhead - 1) * step < end; base += round) {
    decltype(load(0)) x[kAhead];
    KVC_UNROLL
    for (int u = 0; u < kAhead; ++u) x[u] = load(base + u * step);
    KVC_UNROLL
    for (int u = 0; u < kAhead; ++u) look(base + u * step, x[u]);
  }
  if (base >= end) return;
  decltype(load(0)) x[kAhead] = {};
  KVC_UNROLL
  for (int u = 0; u < kAhead - 1; ++u) {
    if (base + u * step < end) x[u] = load(base + u * step);
  }
  KVC_UNROLL
  for (int u = 0; u < kAhead - 1; ++u) {
    if (base + u * step < end) look(base + u * step, x[u]);
  }
}
// For all i in [first, end), `step` apart, in their order.
template <int kAhead = 8, typename Load, typename Look>
KVC_DEVICE void EachLoaded(int32_t first, int32_t end, int32_t step, Load load, Look look) {
  EachOfRounds<kAhead>(first, end, step, kAhead * step, load, look);
}
// The same, every one asked whether it is there: in kernels that are large already.
template <int kAhead, typename Load, typename Look>
KVC_DEVICE void EachOfFew(int32_t first, int32_t end, int32_t step, Load load, Look look) {
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

// How many of the floats at x lie in front of the first whose address 16 bytes divide.
KVC_DEVICE int32_t FrontOf(const float* x) {
  return static_cast<int32_t>((0 - reinterpret_cast<uintptr_t>(x) / sizeof(float)) & 3);
}
// Of n floats behind each other, in no order: four(i, x) of four from such a one on, one(i, x) of those in
// front of the first of them and behind the last.
template <typename Four, typename One>
KVC_DEVICE void EachOfFloats(const float* x, int32_t n, Four four, One one) {
  constexpr int kAhead = 4;
  const int32_t front = min(n, FrontOf(x)), fours = (n - front) / 4, i = ThreadOfBlock(),
                back = front + 4 * fours + i;
  if (i < front) one(i, x[i]);
  if (back < n) one(back, x[back]);
  const auto* first = reinterpret_cast<const float4*>(x + front);
  EachOfRounds<kAhead>(
      WarpOfBlock() * kAhead * kWarp + Lane(), fours, kWarp, kAhead * BlockThreads(),
      [&](int32_t at) { return first[at]; }, [&](int32_t at, const float4& v) { four(front + 4 * at, v); });
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

// Bits of the threshold that a pass finds, from the highest on: 11, 11 and 10.
KVC_DEVICE constexpr int ShiftOfPass(int pass) { return pass == 0 ? 21 : pass == 1 ? 10 : 0; }

// Pass 0, 1 or 2 over values by their ScoreBits. each(f): f(i, bits) of all, or of those that have the bits
// of the passes before.
template <typename Each>
KVC_DEVICE void BlockNarrow(int pass, Each each, int32_t count, Threshold* t, BlockSpace* s) {
  const int shift = ShiftOfPass(pass);
  const int32_t n_buckets = pass == 2 ? 1024 : 2048;
  const uint32_t last = static_cast<uint32_t>(n_buckets - 1),
                 fixed = pass == 0 ? 0 : ~0u << ShiftOfPass(pass - 1), found = t->bits;
  for (int32_t i = ThreadOfBlock(); i < n_buckets; i += BlockThreads()) s->histogram[i] = 0;
  __syncthreads();
  each([&](int32_t, uint32_t b) {
    CountIf(pass == 0 || ((b ^ found) & fixed) == 0, &s->histogram[b >> shift & last]);
  });
  __syncthreads();
  BlockFindBucket(n_buckets, count, t->above, s);
  t->above = s->above, t->equal = s->equal;
  t->bits |= static_cast<uint32_t>(s->bucket) << shift;
  __syncthreads();
}

// 0 < count <= the number of values.
template <typename Each>
KVC_DEVICE Threshold BlockThreshold(Each each, int32_t count, BlockSpace* s) {
  Threshold t{0, 0, 0};
  KVC_UNROLL
  for (int pass = 0; pass < 3; ++pass) BlockNarrow(pass, each, count, &t, s);
  return t;
}
template <typename Bits>
KVC_DEVICE Threshold BlockThreshold(Bits bits, int32_t n, int32_t count, BlockSpace* s) {
  Threshold t{0, 0, 0};
  KVC_UNROLL_BY(1)  // it has few values, or is in a kernel that is large already
  for (int pass = 0; pass < 3; ++pass) {
    BlockNarrow(
        pass, [&](auto f) { EachOfLine(n, bits, f); }, count, &t, s);
  }
  return t;
}

// A warp's part of [0, n): whole groups of lanes behind each other.
struct WarpPart {
  int32_t begin, end;
};
KVC_DEVICE WarpPart PartOf(int32_t warp, int32_t n) {
  const int32_t each = (n + BlockThreads() - 1) / BlockThreads() * kWarp, begin = warp * each;
  return {min(begin, n), min(begin + each, n)};
}
KVC_DEVICE WarpPart PartOfWarp(int32_t n) { return PartOf(WarpOfBlock(), n); }

// f(i, x, yes, place) for all i in [0, n), x = load(i), yes = pred(x), place counting those before it with
// yes; by lanes in step. Values are loaded again where a lane has more than one, kRanked at a time, and f may
// not change what pred says of another one. Returns how many there are.
template <int kRanked = 8, typename Load, typename Pred, typename F>
KVC_DEVICE int32_t BlockRankLoaded(int32_t n, BlockSpace* s, Load load, Pred pred, F f) {
  const WarpPart part = PartOfWarp(n);
  const bool once = n <= BlockThreads();
  decltype(load(0)) x = {};
  int32_t mine = 0;
  if (once) {
    if (part.begin + Lane() < part.end) x = load(part.begin + Lane()), mine = pred(x) ? 1 : 0;
  } else {
    EachLoaded(part.begin + Lane(), part.end, kWarp, load,
               [&](int32_t, const auto& value) { mine += pred(value) ? 1 : 0; });
  }
  const int32_t of_warp = WarpSum(mine);
  if (Lane() == 0) s->ints[WarpOfBlock()] = of_warp;
  __syncthreads();
  int32_t before = 0, all = 0;
  for (int32_t w = 0; w < BlockThreads() / kWarp; ++w) {
    if (w < WarpOfBlock()) before += s->ints[w];
    all += s->ints[w];
  }
  const uint32_t lower = (1u << Lane()) - 1;
  const auto look = [&](int32_t i, const auto& value, bool there, bool yes) {
    const uint32_t lanes = LanesWhere(yes);
    if (there) f(i, value, yes, before + CountBits(lanes & lower));
    before += CountBits(lanes);
  };
  int32_t base = part.begin;
  for (; kRanked > 1 && !once && base + kRanked * kWarp <= part.end; base += kRanked * kWarp) {
    decltype(load(0)) values[kRanked];
    KVC_UNROLL
    for (int u = 0; u < kRanked; ++u) values[u] = load(base + u * kWarp + Lane());
    KVC_UNROLL
    for (int u = 0; u < kRanked; ++u) look(base + u * kWarp + Lane(), values[u], true, pred(values[u]));
  }
  for (; base < part.end; base += kWarp) {
    const int32_t i = base + Lane();
    const bool there = i < part.end;
    if (!once && there) x = load(i);
    look(i, x, there, there && pred(x));
  }
  __syncthreads();
  return all;
}
// f(i, yes, place), of a predicate of the index; one at a time, as what f does takes the registers.
template <typename Pred, typename F>
KVC_DEVICE int32_t BlockRank(int32_t n, BlockSpace* s, Pred pred, F f) {
  return BlockRankLoaded<1>(
      n, s, pred, [](bool yes) { return yes; },
      [&](int32_t i, bool, bool yes, int32_t place) { f(i, yes, place); });
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
  BlockRankLoaded(
      n, s, bits, [&](uint32_t b) { return b == t.bits; },
      [&](int32_t i, uint32_t b, bool equal, int32_t place) {
        mark(i, equal ? place < count - t.above : b > t.bits);
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
