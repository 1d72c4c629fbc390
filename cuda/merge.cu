// Merging in a layer at full length: of CaM a block a head, of the others parts of heads beside each other.
// Sums are of f32, whatever the layer is of.
#include "cuda/merge_dropped.h"

#include "cuda/launch.h"
#include "cuda/layer_params.h"

namespace kvc::cuda {
namespace {

struct MergeParams {
  LayerParams layer;
  MergeRule rule;
  int32_t first_head;
  const uint8_t* marks;
  int64_t stride;
  int32_t* links;  // [G, stride]
};

// A side value of a head's entries.
KVC_DEVICE const float* SideLine(const MergeParams& p, int32_t aux, int32_t g) {
  return p.layer.aux + (static_cast<int64_t>(aux) * p.layer.n_heads + g) * p.layer.capacity;
}

// f(i, j): a lane's i-th number of a vector of d, which is the vector's j-th.
constexpr int kOfLane = kMostHeadSize / kWarp;
template <typename F>
KVC_DEVICE void EachOfLane(int32_t d, F f) {
  KVC_UNROLL
  for (int i = 0; i < kOfLane; ++i) {
    const int32_t j = i * kWarp + Lane();
    if (j < d) f(i, j);
  }
}

// Block g. First what each dropped entry gives and to which of those that stay: the next ones. Then every one
// of these, a warp's, takes what it gets in ascending order and is rounded once: what is dropped gives what
// it had. Byte model: values of what is dropped, once for each of their targets, and of these twice.
__global__ void __launch_bounds__(kBlock) spread_values(const MergeParams p) {
  __shared__ BlockSpace space;
  const int32_t g = static_cast<int32_t>(blockIdx.x), n = p.layer.len[g], d = p.layer.d;
  const uint8_t* marks = p.marks + g * p.stride;
  int32_t* kept = p.links + g * p.stride;
  const auto stays = [&](int32_t e) { return marks[e] != 0; };
  const int32_t n_kept = BlockCompact(n, &space, stays, [&](int32_t e, int32_t place) { kept[place] = e; });
  float* shares = reinterpret_cast<float*>(kept + n_kept);  // of what is dropped, in order
  const float* sums = SideLine(p, p.rule.sums, g);
  const int32_t *positions = p.layer.positions + g * p.layer.capacity, most = p.rule.n_targets;
  BlockRank(n, &space, stays, [&](int32_t e, bool yes, int32_t place) {
    if (yes) return;
    shares[e - place] = SpreadShare(p.rule, sums[e], sums, kept + place, min(most, n_kept - place),
                                    static_cast<uint32_t>(p.first_head + g), positions[e]);
  });
  const LayerNumbers values = p.layer.Value(g * p.layer.capacity);
  const auto of = [&](int32_t e) { return values + static_cast<int64_t>(e) * d; };
  for (int32_t r = WarpOfBlock(); r < n_kept; r += kBlock / kWarp) {
    float sum[kOfLane];
    EachOfLane(d, [&](int i, int32_t j) { sum[i] = of(kept[r])[j]; });
    for (int32_t gap = max(r - most + 1, 0); gap <= r; ++gap) {  // what is dropped in front of kept[gap]
      for (int32_t e = gap > 0 ? kept[gap - 1] + 1 : 0; e < kept[gap]; ++e) {
        const float share = shares[e - gap];
        if (share != 0.0f) EachOfLane(d, [&](int i, int32_t j) { sum[i] += share * of(e)[j]; });
      }
    }
    EachOfLane(d, [&](int i, int32_t j) { of(kept[r]).Set(j, sum[i]); });
  }
}

// ---- into the next one (methods.md 2.15) ----
//
// The lowest average goes first, each into its right neighbour that is still there. So what lies between two
// entries that stay ends in the second of them, whatever happens elsewhere: a run, a warp's. And of a run, an
// entry goes into the first one behind it that goes later; who goes into the same one is in its turn the
// nearer the earlier. That is the order in which a stack of averages that fall from bottom to top gives them
// back: no sort, every entry once. Lanes have dimensions of their own and wait for nobody; what an entry
// takes it takes while it is the newest, in registers, so its values are rounded when it stays, or when
// others come on top of it. Byte model: values of what is dropped once, of what they go into once more.

constexpr int kRunWarps = 8;
constexpr int32_t kRunPart = 256;  // entries of a block; those that stay have a warp for what is in front

class Run {
 public:
  KVC_DEVICE Run(const MergeParams& p, int32_t g)
      : values_(p.layer.Value(g * p.layer.capacity)),
        d_(p.layer.d),
        sums_(SideLine(p, p.rule.sums, g)),
        counts_(SideLine(p, p.rule.counts, g)),
        stack_(p.links + g * p.stride) {}

  // What is dropped in [begin, end) goes into `end`.
  KVC_DEVICE void Merge(int32_t begin, int32_t end) {
    int32_t depth = 0;
    Entry top{};
    for (int32_t e = begin; e <= end; ++e) {
      Entry next = At(e);
      if (e == end) next.key = ~static_cast<uint64_t>(0);
      while (depth > 0 && top.key < next.key) {
        Mix(top, &next);
        if (--depth > 0) top = At(stack_[begin + depth - 1]);
      }
      if (e == end) return Write(next);
      if (depth > 0) Write(top);
      __syncwarp();
      if (Lane() == 0) stack_[begin + depth] = e;
      __syncwarp();
      ++depth, top = next;
    }
  }

 private:
  struct Entry {
    int32_t at;
    bool changed;
    float average;
    uint64_t key;  // the lowest goes first, among equals the newest
    float own[kOfLane];
  };
  KVC_DEVICE LayerNumbers Values(const Entry& e) const { return values_ + static_cast<int64_t>(e.at) * d_; }
  KVC_DEVICE Entry At(int32_t at) const {
    Entry e{};
    e.at = at, e.average = __fdiv_rn(sums_[at], counts_[at]);
    e.key = SelectionKeyOf(e.average, static_cast<uint32_t>(at));
    const LayerNumbers values = Values(e);
    EachOfLane(d_, [&](int i, int32_t j) { e.own[i] = values[j]; });
    return e;
  }
  KVC_DEVICE void Mix(const Entry& gone, Entry* next) const {
    next->changed = true;
    EachOfLane(d_, [&](int i, int32_t) {
      next->own[i] = MixOf(gone.average, gone.own[i], next->average, next->own[i]);
    });
  }
  KVC_DEVICE void Write(const Entry& e) const {
    if (!e.changed) return;
    const LayerNumbers values = Values(e);
    EachOfLane(d_, [&](int i, int32_t j) { values.Set(j, e.own[i]); });
  }

  const LayerNumbers values_;
  const int32_t d_;
  const float *sums_, *counts_;
  int32_t* stack_;  // [stride], a run's where it lies
};

// The first of the dropped entries that end in front of `end`; by a warp.
KVC_DEVICE int32_t RunBegin(const uint8_t* marks, int32_t end) {
  for (int32_t base = end;; base -= kWarp) {
    const int32_t i = base - 1 - Lane();
    const uint32_t stay = LanesWhere(i < 0 || marks[i] != 0);
    if (stay != 0) return base - CountBits((stay & (~stay + 1)) - 1);
  }
}

// Block (part, g).
__global__ void __launch_bounds__(kRunWarps* kWarp) merge_into_next(const MergeParams p) {
  const int32_t g = static_cast<int32_t>(blockIdx.y), first = static_cast<int32_t>(blockIdx.x) * kRunPart,
                n = min(first + kRunPart, p.layer.len[g]);
  const uint8_t* marks = p.marks + g * p.stride;
  Run run(p, g);
  for (int32_t e = max(first, 1) + WarpOfBlock(); e < n; e += kRunWarps) {
    if (marks[e] == 0 || marks[e - 1] != 0) continue;
    run.Merge(RunBegin(marks, e), e);
  }
}

// ---- one entry for the rest (methods.md 2.25) ----

constexpr int32_t kRestPart = 512;  // entries of a block that adds

constexpr int64_t RestParts(int64_t stride) { return (stride + kRestPart - 1) / kRestPart; }

struct RestParams {
  LayerParams layer;
  uint8_t* marks;
  int64_t stride;
  int32_t n_parts;
  double* sums;  // [G, n_parts, 2 D + 1]: keys and values times the tokens they stand for, and the tokens
};

// Block (part, g). Byte model: keys and values of what is dropped, once.
__global__ void __launch_bounds__(kBlock) sum_dropped(const RestParams p) {
  __shared__ BlockSpace space;
  const int32_t g = static_cast<int32_t>(blockIdx.y), part = static_cast<int32_t>(blockIdx.x), d = p.layer.d,
                begin = part * kRestPart, end = min(begin + kRestPart, p.layer.len[g]);
  const uint8_t* marks = p.marks + g * p.stride;
  const int64_t head = g * p.layer.capacity;
  const int32_t* positions = p.layer.positions + head;
  double* out = p.sums + (static_cast<int64_t>(g) * p.n_parts + part) * (2 * d + 1);
  double tokens = 0;
  for (int32_t e = begin + ThreadOfBlock(); e < end; e += kBlock)
    tokens += marks[e] == 0 ? static_cast<double>(TokensOf(positions[e])) : 0.0;
  tokens = BlockSum(tokens, space.doubles);
  if (ThreadOfBlock() == 0) out[2 * d] = tokens;
  for (int32_t i = ThreadOfBlock(); i < 2 * d; i += kBlock) {
    const LayerNumbers x = (i < d ? p.layer.Key(head) : p.layer.Value(head)) + i % d;
    double sum = 0;
    for (int32_t e = begin; e < end; ++e) {
      if (marks[e] == 0) sum += static_cast<double>(x[static_cast<int64_t>(e) * d]) * TokensOf(positions[e]);
    }
    out[i] = sum;
  }
}

// Block g: the mean of what is dropped becomes slot 0, and what was before the first that is dropped moves on
// by one, each number by the thread that has its dimension.
__global__ void __launch_bounds__(kBlock) form_rest(const RestParams p) {
  __shared__ int32_t ints[kWarp], found;
  const int32_t g = static_cast<int32_t>(blockIdx.x), d = p.layer.d, n = p.layer.len[g];
  uint8_t* marks = p.marks + g * p.stride;
  if (ThreadOfBlock() == 0) found = n;
  __syncthreads();
  for (int32_t base = 0; base < n; base += kBlock) {
    const int32_t e = base + ThreadOfBlock();
    const bool yes = e < n && marks[e] == 0;
    int32_t total = 0;
    const int32_t place = BlockPrefix(yes ? 1 : 0, ints, &total);
    if (yes && place == 0) found = e;
    if (total > 0) break;
  }
  __syncthreads();
  const int32_t first = found;
  if (first == n) return;
  const double* sums = p.sums + static_cast<int64_t>(g) * p.n_parts * (2 * d + 1);
  const auto all = [&](int32_t i) {
    double sum = 0;
    for (int32_t part = 0; part < p.n_parts; ++part)
      sum += sums[static_cast<int64_t>(part) * (2 * d + 1) + i];
    return sum;
  };
  const double tokens = all(2 * d);
  const int64_t head = g * p.layer.capacity;
  for (int32_t i = ThreadOfBlock(); i < 2 * d; i += kBlock) {
    const LayerNumbers x = (i < d ? p.layer.Key(head) : p.layer.Value(head)) + i % d;
    for (int32_t e = first; e > 0; --e)
      x.Set(static_cast<int64_t>(e) * d, x[static_cast<int64_t>(e - 1) * d]);
    x.Set(0, static_cast<float>(all(i) / tokens));
  }
  if (ThreadOfBlock() != 0) return;
  int32_t* positions = p.layer.positions + head;
  for (int32_t e = first; e > 0; --e) positions[e] = positions[e - 1];
  positions[0] = -static_cast<int32_t>(tokens);
  for (int32_t a = 0; a < p.layer.n_aux; ++a) {
    float* aux = p.layer.aux + (static_cast<int64_t>(a) * p.layer.n_heads + g) * p.layer.capacity;
    for (int32_t e = first; e > 0; --e) aux[e] = aux[e - 1];
    aux[0] = 0;
  }
  marks[first] = 1;
}

Status FormRest(CudaStream& stream, const MergeArgs& a, uint8_t* scratch_at, int64_t scratch_bytes) {
  const unsigned heads = static_cast<unsigned>(a.layer.n_kv_heads);
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(&stream, LayerBytes(a.layer)));
  RestParams p{};
  p.layer = LayerOf(a.layer, &packet);
  p.marks = At(a.marks), p.stride = a.stride;
  p.n_parts = static_cast<int32_t>(RestParts(LongestOf(a.layer)));
  if (p.n_parts == 0) return {};
  Scratch scratch(scratch_at, scratch_bytes);
  p.sums = scratch.Take<double>(int64_t{heads} * p.n_parts * (2 * a.layer.head_dim + 1));
  KVC_RETURN_IF_ERROR(scratch.Check());
  KVC_RETURN_IF_ERROR(packet.Send());
  KVC_RETURN_IF_ERROR(Check(
      KVC_LAUNCH(sum_dropped, dim3(static_cast<unsigned>(p.n_parts), heads), dim3(kBlock), 0, stream, p),
      "merging"));
  return Check(KVC_LAUNCH(form_rest, dim3(heads), dim3(kBlock), 0, stream, p), "merging");
}

}  // namespace

int64_t RestScratchBytes(int32_t n_kv_heads, int64_t stride) {
  return Packet::Size<double>(n_kv_heads * RestParts(stride) * (2 * kMostHeadSize + 1));
}

void AddMergeKernels(KernelLoader* loader) {
  KVC_ADD(loader, spread_values, 0);
  KVC_ADD(loader, merge_into_next, 0);
  KVC_ADD(loader, sum_dropped, 0);
  KVC_ADD(loader, form_rest, 0);
}

Status CudaDevice::Merge(Stream* s, const MergeArgs& a) {
  KVC_ENTER();
  if (a.rule.kind == MergeKind::kNone) return {};
  if (a.rule.kind == MergeKind::kIntoRest)
    return FormRest(StreamOf(s), a, At(a.scratch), SelectScratchBytes(a.layer.n_kv_heads, a.stride));
  const int64_t heads = a.layer.n_kv_heads;
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, LayerBytes(a.layer)));
  MergeParams p{};
  p.layer = LayerOf(a.layer, &packet);
  p.rule = a.rule, p.first_head = static_cast<int32_t>(a.layer_index * heads);
  p.marks = At(a.marks), p.stride = a.stride;
  Scratch scratch(At(a.scratch), SelectScratchBytes(a.layer.n_kv_heads, a.stride));
  p.links = scratch.Take<int32_t>(heads * a.stride);
  KVC_RETURN_IF_ERROR(scratch.Check());
  KVC_RETURN_IF_ERROR(packet.Send());
  switch (a.rule.kind) {
    case MergeKind::kIntoNext: {
      const dim3 grid(static_cast<unsigned>((LongestOf(a.layer) + kRunPart - 1) / kRunPart),
                      static_cast<unsigned>(heads));
      if (grid.x == 0) return {};
      return Check(KVC_LAUNCH(merge_into_next, grid, dim3(kRunWarps * kWarp), 0, StreamOf(s), p), "merging");
    }
    case MergeKind::kSpread: {
      const dim3 grid(static_cast<unsigned>(heads));
      return Check(KVC_LAUNCH(spread_values, grid, dim3(kBlock), 0, StreamOf(s), p), "merging");
    }
    case MergeKind::kNone:
    case MergeKind::kIntoRest:
      break;  // above
  }
  return {};
}

}  // namespace kvc::cuda
