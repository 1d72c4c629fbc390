// Tokens from logits, a block a row: nothing is sorted, nothing but the tokens leaves the device. Weights
// are summed as whole numbers of 2^-40, so that sums do not depend on who came first. Bytes: logits and
// weights are read nine times from the second-level cache, as block.h has lines read (five without top_k);
// with top_p three times more, or nineteen where the distribution is so flat that thousands of tokens are
// likely. As lib/ops/cpu/sample.cc.
#include <algorithm>

#include "cuda/block.h"
#include "cuda/cuda_device.h"
#include "cuda/launch.h"
#include "lib/base/philox.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = kLineThreads;
constexpr double kUnit = 1099511627776.0;  // 2^40
constexpr int32_t kListed = 2048;          // tokens that top_p chooses from in shared memory

struct Choice {
  float *logits, *weights;
  int32_t n, n_repeated, n_biases;
  const int32_t* repeated;
  const TokenBias* biases;
  const uint32_t* allowed;
  float repeat_penalty, temperature, top_p, min_p;
  int32_t top_k;
  uint64_t seed;
  int64_t draw;
};
struct SampleParams {
  Choice one;
  const Choice* rows;  // null: there is one, which needs no packet
  int32_t* tokens;     // on the host: written there it need not be copied
};

KVC_DEVICE float FiniteOrNever(float x) { return x - x == 0.0f ? x : -Infinity(); }
KVC_DEVICE uint64_t Whole(float weight) { return static_cast<uint64_t>(static_cast<double>(weight) * kUnit); }

// Who needs something of the choice takes a copy: registers have it no longer than that, where the whole of
// it would push out what loops need.
struct SampleSpace {
  Choice choice;
  BlockSpace block;
  unsigned long long longs[kWarp];
  int32_t token;
  uint32_t keys[kListed];
  unsigned long long wholes[kListed];
};

KVC_DEVICE uint32_t KeyOf(float logit) { return NumberBits(FiniteOrNever(logit)); }

// f(i, key) of all tokens, in no order.
template <typename F>
KVC_DEVICE void EachKey(const Choice p, F f) {
  EachOfFloats(
      p.logits, p.n,
      [&](int32_t i, const float4& x) {
        f(i, KeyOf(x.x)), f(i + 1, KeyOf(x.y)), f(i + 2, KeyOf(x.z)), f(i + 3, KeyOf(x.w));
      },
      [&](int32_t i, float x) { f(i, KeyOf(x)); });
}

// Keeps the weights of tokens above `key`, and of the first n_equal at it, or all; the others become 0.
KVC_DEVICE void Cut(const Choice p, uint32_t key, bool all_equal, int64_t n_equal, SampleSpace* s) {
  if (all_equal) {
    EachKey(p, [&](int32_t i, uint32_t k) {
      if (k < key) p.weights[i] = 0;
    });
    __syncthreads();
    return;
  }
  BlockRankLoaded(
      p.n, &s->block, [&](int32_t i) { return KeyOf(p.logits[i]); }, [&](uint32_t k) { return k == key; },
      [&](int32_t i, uint32_t k, bool equal, int32_t place) {
        if (equal ? place >= n_equal : k < key) p.weights[i] = 0;
      });
}

KVC_DEVICE void CutToBest(const Choice p, SampleSpace* s) {
  const Threshold least = BlockThreshold([&](auto f) { EachKey(p, f); }, p.top_k, &s->block);
  Cut(p, least.bits, least.above + least.equal == p.top_k, p.top_k - least.above, s);
}

// f(key, whole weight) of all tokens that have one.
template <typename F>
KVC_DEVICE void EachWeight(const Choice p, F f) {
  EachOfLine(
      p.n,
      [&](int32_t i) {
        return float2{p.logits[i], p.weights[i]};
      },
      [&](int32_t, const float2& x) {
        if (const unsigned long long w = Whole(x.y); w > 0) f(KeyOf(x.x), w);
      });
}

// Lists the tokens whose probability is no less than the greatest of 2^-6, 2^-10, ... for which they add up
// to `limit`: a part of the likeliest ones, in which the fewest that do are all found. How many; 0: no such
// part is short enough. Weights add up to 1.
KVC_DEVICE int32_t ListLikely(const Choice p, unsigned long long limit, SampleSpace* s) {
  constexpr int kPowers = 4;
  constexpr float kFirst = 1.0f / 64;
  float sums[kPowers] = {};
  int32_t counts[kPowers] = {};
  const auto weight = [&](int32_t i) { return p.weights[i]; };
  EachOfLine(p.n, weight, [&](int32_t, float w) {
    float least = kFirst;
    KVC_UNROLL
    for (int c = 0; c < kPowers; ++c, least /= 16) {
      if (w >= least) sums[c] += w, ++counts[c];
    }
  });
  float least = 0, of_power = kFirst;
  KVC_UNROLL
  for (int c = 0; c < kPowers; ++c, of_power /= 16) {
    const float sum = BlockSum(sums[c], s->block.floats);
    const int32_t count = BlockSum(counts[c], s->block.ints);
    if (least == 0 && count <= kListed && sum >= p.top_p) least = of_power;
  }
  if (least == 0) return 0;
  if (ThreadOfBlock() == 0) s->block.told = 0;
  __syncthreads();
  EachOfLine(p.n, weight, [&](int32_t i, float w) {
    if (w < least) return;
    const int32_t place = atomicAdd(&s->block.told, 1);  // in no order
    s->keys[place] = KeyOf(p.logits[i]), s->wholes[place] = Whole(w);
  });
  __syncthreads();
  const int32_t n = s->block.told;
  unsigned long long all = 0;  // floats only said that it is likely
  for (int32_t i = ThreadOfBlock(); i < n; i += BlockThreads()) all += s->wholes[i];
  return BlockSum(all, s->longs) >= limit ? n : 0;
}

// The fewest likeliest tokens whose weights add up to `limit`: the greatest key that with all above it has as
// much, two bits at a time. each_weight(f): f(key, whole weight) of all, or of those of ListLikely. Sums are
// in registers: on one counter of shared memory, where many tokens have nearly the same logit, all threads
// would wait for each other.
template <typename Each>
KVC_DEVICE void CutWhere(const Choice p, unsigned long long limit, SampleSpace* s, Each each_weight) {
  uint32_t key = 0;
  for (int shift = 30; shift >= 0; shift -= 2) {
    unsigned long long from[3] = {0, 0, 0};  // weights of keys that are no less, with 1, 2 and 3 there
    each_weight([&](uint32_t k, unsigned long long w) {
      KVC_UNROLL
      for (uint32_t c = 0; c < 3; ++c) from[c] += k >= (key | (c + 1) << shift) ? w : 0;
    });
    uint32_t bits = 0;
    KVC_UNROLL
    for (uint32_t c = 0; c < 3; ++c) bits = BlockSum(from[c], s->longs) >= limit ? c + 1 : bits;
    key |= bits << shift;
  }
  // Equal logits have equal weights.
  unsigned long long above = 0, each = 0;
  int32_t there = 0;
  each_weight([&](uint32_t k, unsigned long long w) {
    if (k > key) above += w;
    if (k == key) each = w, ++there;
  });
  above = BlockSum(above, s->longs);
  each = BlockMax(static_cast<uint64_t>(each), s->block.longs);
  there = BlockSum(there, s->block.ints);
  const int64_t n_equal =
      each > 0 && limit > above ? static_cast<int64_t>((limit - above + each - 1) / each) : 0;
  Cut(p, key, there > 0 && n_equal >= there, n_equal, s);
}

KVC_DEVICE void CutByWeight(const Choice p, unsigned long long limit, SampleSpace* s) {
  const int32_t n = ListLikely(p, limit, s);
  if (n == 0) {
    CutWhere(p, limit, s, [&](auto f) { EachWeight(p, f); });
    return;
  }
  CutWhere(p, limit, s, [&](auto f) {
    for (int32_t i = ThreadOfBlock(); i < n; i += BlockThreads()) f(s->keys[i], s->wholes[i]);
  });
}

// Token `first` + the one at `target` when the weights of n tokens are laid end to end by id; -1: none is.
KVC_DEVICE int32_t TokenAt(const float* weights, int32_t first, int32_t n, unsigned long long target,
                           SampleSpace* s) {
  const int32_t per = (n + BlockThreads() - 1) / BlockThreads(), begin = min(ThreadOfBlock() * per, n),
                end = min(begin + per, n);
  unsigned long long own = 0;
  for (int32_t i = begin; i < end; ++i) own += Whole(weights[first + i]);
  unsigned long long sum = own;
  for (int i = 1; i < kWarp; i *= 2) {
    const unsigned long long other = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(i));
    if (Lane() >= i) sum += other;
  }
  if (Lane() == kWarp - 1) s->longs[WarpOfBlock()] = sum;
  if (ThreadOfBlock() == 0) s->token = -1;
  __syncthreads();
  unsigned long long before = sum - own;
  for (int i = 0; i < WarpOfBlock(); ++i) before += s->longs[i];
  if (target >= before && target < before + own) {
    for (int32_t i = begin; i < end; ++i) {
      const unsigned long long w = Whole(weights[first + i]);
      if (target < before + w) {
        s->token = first + i;
        break;
      }
      before += w;
    }
  }
  __syncthreads();
  return s->token;
}
// The token at u of all weights; -1: rounding left none. Each warp adds up a part of them, so that its lanes
// read beside each other, and only the part where the token lies is read once more.
KVC_DEVICE int32_t DrawnToken(const Choice p, double u, SampleSpace* s) {
  const WarpPart part = PartOfWarp(p.n);
  unsigned long long own = 0;
  EachLoaded(
      part.begin + Lane(), part.end, kWarp, [&](int32_t i) { return p.weights[i]; },
      [&](int32_t, float w) { own += Whole(w); });
  own = WarpSum(own);
  if (Lane() == 0) s->longs[WarpOfBlock()] = own;
  __syncthreads();
  const int32_t n_warps = BlockThreads() / kWarp;
  unsigned long long all = 0, before = 0;
  for (int32_t w = 0; w < n_warps; ++w) all += s->longs[w];
  const auto target = static_cast<unsigned long long>(u * static_cast<double>(all));
  int32_t warp = 0;
  for (; warp < n_warps && target >= before + s->longs[warp]; ++warp) before += s->longs[warp];
  __syncthreads();
  if (warp == n_warps) return -1;
  const WarpPart there = PartOf(warp, p.n);
  return TokenAt(p.weights, there.begin, there.end - there.begin, target - before, s);
}

// Penalties (each token once), biases and the mask.
KVC_DEVICE void ChangeLogits(const Choice p) {
  for (int32_t i = ThreadOfBlock(); i < p.n_repeated; i += BlockThreads()) {
    float* x = p.logits + p.repeated[i];
    *x = *x > 0 ? __fdiv_rn(*x, p.repeat_penalty) : *x * p.repeat_penalty;
  }
  __syncthreads();
  for (int32_t i = ThreadOfBlock(); i < p.n_biases; i += BlockThreads()) {
    const int32_t token = p.biases[i].token;  // in order of tokens: the first of one's adds them all
    for (int32_t j = i;
         (i == 0 || p.biases[i - 1].token != token) && j < p.n_biases && p.biases[j].token == token; ++j)
      p.logits[token] += p.biases[j].bias;
  }
  __syncthreads();
  for (int32_t i = ThreadOfBlock(); p.allowed != nullptr && i < p.n; i += BlockThreads()) {
    if ((p.allowed[i / 32] >> (i % 32) & 1) == 0) p.logits[i] = -Infinity();
  }
  __syncthreads();
}

// Of the logits that a thread looks at.
KVC_DEVICE uint64_t BestKey(const Choice p) {
  uint64_t best = 0;
  const auto look = [&](int32_t i, float logit) {
    const uint64_t key = SelectionKeyOf(FiniteOrNever(logit), static_cast<uint32_t>(i));
    best = key > best ? key : best;
  };
  EachOfFloats(
      p.logits, p.n,
      [&](int32_t i, const float4& x) { look(i, x.x), look(i + 1, x.y), look(i + 2, x.z), look(i + 3, x.w); },
      look);
  return best;
}

// Weights of the logits against the highest.
KVC_DEVICE void Weigh(const Choice p, float top) {
  EachOfLine(
      p.n, [&](int32_t i) { return p.logits[i]; },
      [&](int32_t i, float logit) {
        p.weights[i] = expf(__fdiv_rn(FiniteOrNever(logit) - top, p.temperature));
      });
  __syncthreads();
}

// Weights that add up to 1; their sum as whole numbers.
KVC_DEVICE unsigned long long Normalise(const Choice p, SampleSpace* s) {
  const auto weight = [&](int32_t i) { return p.weights[i]; };
  float sum = 0;
  EachOfLine(p.n, weight, [&](int32_t, float w) { sum += w; });
  sum = BlockSum(sum, s->block.floats);
  unsigned long long whole = 0;
  EachOfLine(p.n, weight, [&](int32_t i, float w) {
    w = __fdiv_rn(w, sum);
    p.weights[i] = w, whole += Whole(w);
  });
  return BlockSum(whole, s->longs);
}

KVC_DEVICE void CutBelow(const Choice p, float least) {
  EachOfLine(
      p.n, [&](int32_t i) { return p.weights[i]; },
      [&](int32_t i, float w) {
        if (w < least) p.weights[i] = 0;
      });
  __syncthreads();
}

KVC_DEVICE int32_t TokenOf(SampleSpace* s) {
  const Choice& p = s->choice;
  ChangeLogits(p);
  const uint64_t key = BlockMax(BestKey(p), s->block.longs);
  const int32_t best = static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(key));
  const float top = p.n > 0 ? FiniteOrNever(p.logits[best]) : -Infinity();
  if (top == -Infinity()) return -1;
  if (p.weights == nullptr) return best;
  Weigh(p, top);
  if (p.top_k > 0 && p.top_k < p.n) CutToBest(p, s);
  const unsigned long long whole = Normalise(p, s);
  if (p.top_p > 0 && p.top_p < 1) {
    const double limit = static_cast<double>(p.top_p) * static_cast<double>(whole);
    CutByWeight(p, static_cast<unsigned long long>(limit), s);
  }
  if (p.min_p > 0) {
    const float least = p.min_p * p.weights[best];
    __syncthreads();
    CutBelow(p, least);
  }
  const double u = Uniform(
      Philox(static_cast<uint32_t>(p.draw), static_cast<uint32_t>(p.draw >> 32), 0, kSampleDraw, p.seed)[0]);
  const int32_t token = DrawnToken(p, u, s);
  return token < 0 ? best : token;
}

__global__ void __launch_bounds__(kThreads) sample(const SampleParams p) {
  LetNextBegin();
  WaitForEarlier();
  __shared__ SampleSpace s;
  if (ThreadOfBlock() == 0) s.choice = p.rows != nullptr ? p.rows[blockIdx.x] : p.one;
  __syncthreads();
  const int32_t token = TokenOf(&s);
  if (ThreadOfBlock() == 0) p.tokens[blockIdx.x] = token;
}

// Of a packet: the lists of a row.
int64_t ListBytes(const SampleRow& row, int32_t n) {
  return Packet::Size<int32_t>(static_cast<int64_t>(row.repeated.size())) +
         Packet::Size<TokenBias>(static_cast<int64_t>(row.biases.size())) +
         (row.allowed == nullptr ? 0 : Packet::Size<uint32_t>((n + 31) / 32));
}

// *weights: of the next row that draws.
Choice ChoiceOf(const SampleRow& row, int32_t n, float** weights, Packet* packet) {
  Choice c{};
  c.logits = At(row.logits), c.n = n;
  if (row.draws()) c.weights = *weights, *weights += n;
  c.n_repeated = static_cast<int32_t>(row.repeated.size());
  c.repeated = packet->Copy(row.repeated.data(), c.n_repeated);
  c.n_biases = static_cast<int32_t>(row.biases.size());
  c.biases = packet->Copy(row.biases.data(), c.n_biases);
  if (row.allowed != nullptr) c.allowed = packet->Copy(row.allowed, (n + 31) / 32);
  c.repeat_penalty = row.repeat_penalty, c.temperature = row.temperature, c.top_p = row.top_p;
  c.min_p = row.min_p, c.top_k = row.top_k, c.seed = row.seed, c.draw = row.draw;
  return c;
}

}  // namespace

void AddSampleKernels(KernelLoader* loader) { KVC_ADD_STEP(loader, sample, 0); }

Status CudaDevice::Sample(Stream* s, const SampleArgs& a) {
  KVC_ENTER();
  const int64_t n_rows = static_cast<int64_t>(a.rows.size());
  if (n_rows == 0) return {};
  int64_t bytes = n_rows > 1 ? Packet::Size<Choice>(n_rows) : 0;
  for (const SampleRow& row : a.rows) bytes += ListBytes(row, a.n);
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, bytes, Packet::Size<int32_t>(n_rows)));
  SampleParams p{};
  float* weights = At(a.weights);
  Choice* const rows = n_rows > 1 ? packet.Add<Choice>(n_rows, &p.rows) : &p.one;
  for (int64_t i = 0; i < n_rows; ++i)
    rows[i] = ChoiceOf(a.rows[static_cast<size_t>(i)], a.n, &weights, &packet);
  p.tokens = packet.Answers<int32_t>(n_rows);
  KVC_RETURN_IF_ERROR(packet.Send());
  KVC_RETURN_IF_ERROR(
      Check(KVC_LAUNCH_EARLY(sample, dim3(static_cast<unsigned>(n_rows)), dim3(kThreads), 0, StreamOf(s), p),
            "sampling"));
  KVC_RETURN_IF_ERROR(StreamOf(s).Wait("sampling"));
  std::copy(p.tokens, p.tokens + n_rows, a.tokens);
  return {};
}

}  // namespace kvc::cuda
