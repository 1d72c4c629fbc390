// What a method does to one head after a step's attention (methods.md 1.6, steps 3 and 4): side values,
// reduction, the limit of a full context, entries that leave the ring. A block a head; passes over the
// entries where they lie, sorting only for reductions by more than one. As lib/ops/cpu/step_update.cc.
#include "cuda/attention_shares.h"
#include "cuda/history.h"
#include "cuda/launch.h"
#include "cuda/step_params.h"

namespace kvc::cuda {
namespace {

// Of a block: as many entries as most budgets have are found at once.
constexpr int kThreads = 256, kEntriesAhead = 4;

// Lines of one head, each as long as the longest head has slots.
struct UpdateLines {
  uint64_t* keys;
  float *scores, *sums, *counts;
  int32_t *positions, *links;
  uint8_t *marks, *gone;
  HeadRoom room;
};

KVC_DEVICE UpdateLines LinesAt(const UpdateRoom& u, int64_t head) {
  uint8_t* at = u.at + head * u.bytes;
  UpdateLines l;
  l.keys = reinterpret_cast<uint64_t*>(at),
  at += 16 * u.sort_stride;  // the order, and what is sorted beside it
  float* f = reinterpret_cast<float*>(at);
  l.scores = f, l.sums = f + u.stride, l.counts = f + 2 * u.stride;
  l.positions = reinterpret_cast<int32_t*>(f + 3 * u.stride);
  l.links = l.positions + u.stride;  // two lines and one more
  l.room.holes = l.links, l.room.movers = l.links + u.stride;
  l.room.gone_ranks = l.links + 2 * u.stride + 4;
  at += 4 * (7 * u.stride + 4);
  l.marks = at, l.gone = at + u.stride;
  at += (2 * u.stride + 15) / 16 * 16;
  l.room.settle = at;
  return l;
}

class HeadUpdate {
 public:
  // shared: 2 vectors, then shares of query heads.
  KVC_DEVICE HeadUpdate(const StepParams& p, int32_t r, int32_t g, float* shared, BlockSpace* s)
      : p_(p),
        r_(r),
        row_(p.rows[r]),
        g_(g),
        pages_(row_.cache, g),
        mean_(p.mean == nullptr ? nullptr : p.mean + (static_cast<int64_t>(r) * p.n_kv_heads + g) * p.stride),
        value_(p.v + (static_cast<int64_t>(r) * p.n_kv_heads + g) * p.d),
        l_(LinesAt(p.update, static_cast<int64_t>(r) * p.n_kv_heads + g)),
        s_(s) {
    l_.room.vectors = shared;
  }

  KVC_DEVICE void Run() {
    if (row_.needs_attention) FindMean();
    Observe();
    const int32_t cap = row_.caps == nullptr ? 0 : row_.caps[g_];
    if (row_.evicts && pages_.len() > cap) Reduce(cap);
    if (!row_.ends_later) End();
  }
  KVC_DEVICE void End() {
    if (row_.held != nullptr && pages_.len() > row_.held[g_]) HoldLength();
    BlockSettle(pages_, l_.room, s_);
  }

 private:
  // f(x, slot, load(x, slot)) for all entries, x: the physical index. An entry is found by way of a page's
  // number and its place, so that what is known of several is asked for together.
  template <typename Load, typename F>
  KVC_DEVICE void EachLoadedEntry(Load load, F f) const {
    struct Entry {
      int32_t x;
      Slot s;
      decltype(load(0, Slot{})) value;
    };
    EachOfFew<kEntriesAhead>(
        ThreadOfBlock(), pages_.len(), BlockThreads(),
        [&](int32_t i) {
          const int32_t x = pages_.Physical(i);
          const Slot s = pages_.At(x);
          return Entry{x, s, load(x, s)};
        },
        [&](int32_t, const Entry& e) { f(e.x, e.s, e.value); });
  }
  template <typename F>
  KVC_DEVICE void Each(F f) const {
    EachLoadedEntry([](int32_t, const Slot&) { return 0; }, [&](int32_t x, const Slot& s, int) { f(x, s); });
    __syncthreads();
  }

  // The mean of the attention over the query heads of the group, or of the layer, whose heads have the same
  // entries in the same places then.
  KVC_DEVICE void FindMean() const {
    const int32_t group = p_.n_heads / p_.n_kv_heads, first = row_.one_set ? 0 : g_ * group,
                  end = row_.one_set ? p_.n_heads : first + group;
    auto* shares = reinterpret_cast<AttentionShares*>(l_.room.vectors + 2 * p_.d);
    BlockFindShares(p_, r_, pages_, first, end, row_.gain, s_, shares);
    const float* logits = LogitsOf(p_, r_, first);
    const auto sum_of = [&](int32_t i) {
      const int32_t x = pages_.Physical(i);
      float sum = shares[0].Of(logits[x]);
      for (int32_t h = 1; h < end - first; ++h) sum += shares[h].Of(logits[h * p_.stride + x]);
      return sum;
    };
    EachOfLine(pages_.len(), sum_of, [&](int32_t i, float sum) {
      mean_[pages_.Physical(i)] = __fdiv_rn(sum, static_cast<float>(end - first));
    });
    __syncthreads();
  }

  KVC_DEVICE void Observe() const {
    const float average = __fdiv_rn(1.0f, static_cast<float>(pages_.len()));
    for (int32_t i = 0; i < row_.n_instrs; ++i) {
      const StepInstr instr = row_.instrs[i];
      switch (instr.op) {
        case StepOp::kAddPrior:
          AddPrior();
          break;
        case StepOp::kHistory:
          Each([&](int32_t x, const Slot& s) {
            PushHistory(
                row_.history, [&](int a) -> float& { return s.aux(a); }, mean_[x], average,
                p_.sinks != nullptr);
          });
          break;
        case StepOp::kAddAttention:
        case StepOp::kAddOne:
          EachLoadedEntry(
              [&](int32_t x, const Slot& s) {
                return s.aux(instr.dst) + (instr.op == StepOp::kAddAttention ? mean_[x] : 1.0f);
              },
              [&](int32_t, const Slot& s, float sum) { s.aux(instr.dst) = sum; });
          __syncthreads();
          break;
      }
    }
  }

  // methods.md 2.14.
  KVC_DEVICE void AddPrior() const {
    float norm = 0, most = 0;
    for (int32_t x = 0; x < p_.d; ++x) norm += value_[x] * value_[x];
    EachLoadedEntry([&](int32_t, const Slot& s) { return s.position() == row_.position ? norm : s.aux(2); },
                    [&](int32_t, const Slot&, float x) { most = most < x ? x : most; });
    most = BlockMax(most, s_->floats);
    Each([&](int32_t x, const Slot& s) {
      if (s.position() == row_.position) s.aux(1) = most > 0 ? __fdiv_rn(norm, most) : 0.0f, s.aux(2) = most;
      s.aux(0) += __fmul_rn(mean_[x], s.aux(1));
    });
  }

  KVC_DEVICE float Rank(const Slot& s, int32_t x) const {
    switch (row_.rank) {
      case RankBy::kAux:
        return s.aux(0);
      case RankBy::kNegatedAux:
        return -1.0f * s.aux(0);
      case RankBy::kRatio:
        return __fdiv_rn(s.aux(0), s.aux(1));
      case RankBy::kAttention:
        return mean_[x];
      case RankBy::kPosition:
        return static_cast<float>(s.position() - row_.position);
    }
    return 0;
  }

  KVC_DEVICE void Reduce(int32_t cap) {
    if (row_.in_cache) BlockDropRotation(pages_, p_.turn, l_.room.vectors);
    if (!ReduceByOne(cap)) ReduceMany(cap);
    if (row_.n_cleared == 0) return;
    Each([&](int32_t, const Slot& s) {
      for (int a = 0; a < row_.n_cleared; ++a) s.aux(a) = 0.0f;
    });
  }

  KVC_DEVICE int32_t Count(int32_t cap) const {
    return max(cap - row_.select.protect.n_sink - row_.select.protect.n_recent, 0);
  }

  // One entry too many, and the newest n_recent are just the last tokens; the oldest n_sink lie in the first
  // slots.
  KVC_DEVICE bool ReduceByOne(int32_t cap) {
    const Protected& part = row_.select.protect;
    const int32_t n = pages_.len();
    const bool sinks_move = row_.held != nullptr && part.n_sink > row_.n_sinks;
    if (row_.select.kind != SelectKind::kTop || KeptCount(row_.select, n, Count(cap)) != n - 1 ||
        row_.merge.kind == MergeKind::kSpread || sinks_move || pages_.main_len() < part.n_sink)
      return false;
    const int32_t oldest_recent = row_.position - part.n_recent + 1;
    // The lowest rank, among equals the newest, as the largest key; its place is found again by the key.
    uint64_t best = 0;
    int32_t n_recent = 0;
    EachLoadedEntry(
        [&](int32_t x, const Slot& s) {
          return static_cast<uint64_t>(~ScoreBits(Rank(s, x))) << 32 |
                 (static_cast<uint32_t>(s.position()) + 1u);
        },
        [&](int32_t x, const Slot&, uint64_t key) {
          if (static_cast<int32_t>(static_cast<uint32_t>(key) - 1u) >= oldest_recent) {
            ++n_recent;
          } else if (x >= part.n_sink) {
            best = key > best ? key : best;
          }
        });
    n_recent = BlockSum(n_recent, s_->ints);
    best = BlockMax(best, s_->longs);
    if (n_recent != part.n_recent || best == 0) return false;
    const int32_t position = static_cast<int32_t>(static_cast<uint32_t>(best) - 1u);
    EachLoadedEntry([](int32_t, const Slot& s) { return s.position(); },
                    [&](int32_t x, const Slot&, int32_t at) {
                      if (at == position) s_->told = x;
                    });
    __syncthreads();
    const int32_t victim = s_->told;
    __syncthreads();
    if (row_.merge.kind == MergeKind::kIntoNext) MergeOne(victim);
    BlockRemove(
        pages_, [&](int32_t x) { return x == victim; }, l_.room, s_);
    return true;
  }

  // WeightedKV: the value goes into that of the next token that is still there.
  KVC_DEVICE void MergeOne(int32_t victim) {
    const Slot gone = pages_.At(victim);
    uint64_t best = 0;
    const int32_t before = gone.position();
    EachLoadedEntry([](int32_t, const Slot& s) { return s.position(); },
                    [&](int32_t x, const Slot&, int32_t position) {
                      const uint64_t key = static_cast<uint64_t>(~static_cast<uint32_t>(position)) << 32 |
                                           (static_cast<uint32_t>(x) + 1u);
                      if (position > before) best = key > best ? key : best;
                    });
    best = BlockMax(best, s_->longs);
    if (best == 0) return;
    const Slot next = pages_.At(static_cast<int32_t>(static_cast<uint32_t>(best) - 1u));
    const float a_gone = __fdiv_rn(gone.aux(row_.merge.sums), gone.aux(row_.merge.counts)),
                a_next = __fdiv_rn(next.aux(row_.merge.sums), next.aux(row_.merge.counts));
    MixEntries(gone, a_gone, next, a_next);
  }

  KVC_DEVICE void MixEntries(const Slot& gone, float a_gone, const Slot& next, float a_next) const {
    float* v = l_.room.vectors;
    for (int32_t j = ThreadOfBlock(); j < p_.d; j += BlockThreads())
      v[j] = MixOf(a_gone, pages_.Element(gone, 1, j), a_next, pages_.Element(next, 1, j));
    __syncthreads();
    WriteValue(next, v, ThreadOfBlock(), BlockThreads());
    __syncthreads();
  }

  KVC_DEVICE void RemoveGone() {
    const uint8_t* gone = l_.gone;
    BlockRemove(
        pages_, [&](int32_t x) { return gone[x] != 0; }, l_.room, s_);
  }

  // Values where they lie, by ascending position.
  struct PageValues {
    const HeadUpdate& u;
    KVC_DEVICE Slot At(int32_t i) const {
      return u.pages_.At(static_cast<int32_t>(u.l_.keys[i] & 0xffffffffu));
    }
    KVC_DEVICE void Add(int32_t to, float factor, int32_t from) const {
      float* v = u.l_.room.vectors;
      const Slot target = At(to), source = At(from);
      for (int32_t j = ThreadOfBlock(); j < u.p_.d; j += BlockThreads())
        v[j] = u.pages_.Element(target, 1, j) + factor * u.pages_.Element(source, 1, j);
      __syncthreads();
      WriteValue(target, v, ThreadOfBlock(), BlockThreads());
      __syncthreads();
    }
    KVC_DEVICE void Mix(int32_t gone, float a_gone, int32_t next, float a_next) const {
      u.MixEntries(At(gone), a_gone, At(next), a_next);
    }
  };

  KVC_DEVICE void ReduceMany(int32_t cap) {
    const int32_t n = pages_.len(), head = row_.cache.first_head + g_;
    BlockOrder(pages_, l_.keys, s_);
    for (int32_t i = ThreadOfBlock(); i < n; i += BlockThreads()) {
      const int32_t x = static_cast<int32_t>(l_.keys[i] & 0xffffffffu);
      const Slot s = pages_.At(x);
      l_.scores[i] = Rank(s, x);
      l_.positions[i] = s.position();
      if (row_.merge.kind == MergeKind::kNone) continue;
      l_.sums[i] = s.aux(row_.merge.sums);
      l_.counts[i] = row_.merge.counts < 0 ? 0.0f : s.aux(row_.merge.counts);
    }
    __syncthreads();
    BlockSelectEntries({row_.select, nullptr, l_.scores, l_.positions, n, Count(cap),
                        static_cast<uint32_t>(head), nullptr, l_.marks},
                       s_, nullptr);
    for (int32_t i = ThreadOfBlock(); i < n; i += BlockThreads())
      l_.gone[static_cast<int32_t>(l_.keys[i] & 0xffffffffu)] = l_.marks[i] == 0 ? 1 : 0;
    __syncthreads();
    if (row_.merge.kind != MergeKind::kNone) {
      // The order is what values are found by: victims are sorted beside it.
      const DroppedLine line{row_.merge,
                             l_.marks,
                             l_.sums,
                             l_.counts,
                             l_.positions,
                             n,
                             p_.d,
                             static_cast<uint32_t>(head),
                             l_.links,
                             l_.scores,
                             l_.keys + p_.update.sort_stride};
      const PageValues values{*this};
      switch (row_.merge.kind) {
        case MergeKind::kSpread:
          BlockSpread(line, values, s_);
          break;
        case MergeKind::kIntoNext:
          BlockMergeInOrder(line, values, s_);
          break;
        case MergeKind::kNone:
        case MergeKind::kIntoRest:  // of whole prompts
          break;
      }
    }
    RemoveGone();
  }

  // At the end of the context: the oldest entry behind the first ones leaves (methods.md 2.2).
  KVC_DEVICE void HoldLength() {
    if (row_.in_cache) BlockDropRotation(pages_, p_.turn, l_.room.vectors);
    const int32_t n = pages_.len(), over = n - row_.held[g_];
    if (over == 1 && HoldByOne(n)) return;
    const int32_t first = min(row_.n_sinks, n - 1 - over);  // with few left, the ones before the newest go
    const auto age = [&](int32_t i) {
      return ~static_cast<uint32_t>(pages_.At(pages_.Physical(i)).position());
    };
    BlockMarkTop(age, n, first + over, s_,
                 [&](int32_t i, bool old) { l_.gone[pages_.Physical(i)] = old ? 1 : 0; });
    BlockMarkTop(age, n, first, s_, [&](int32_t i, bool old) {
      if (old) l_.gone[pages_.Physical(i)] = 0;
    });
    RemoveGone();
  }

  // One entry too many, and the first ones lie in the first slots.
  KVC_DEVICE bool HoldByOne(int32_t n) {
    if (n - 2 < row_.n_sinks || pages_.main_len() < row_.n_sinks) return false;
    uint64_t first = 0, best = 0;  // the newest of those; the oldest behind them as the largest key
    EachLoadedEntry([](int32_t x, const Slot& s) { return OrderKey(s.position(), x); },
                    [&](int32_t x, const Slot&, uint64_t key) {
                      if (x < row_.n_sinks) {
                        first = key > first ? key : first;
                      } else {
                        best = ~key > best ? ~key : best;
                      }
                    });
    first = BlockMax(first, s_->longs);
    const uint64_t oldest = ~BlockMax(best, s_->longs);
    if (first > oldest) return false;
    const int32_t victim = static_cast<int32_t>(oldest & 0xffffffffu);
    BlockRemove(
        pages_, [&](int32_t x) { return x == victim; }, l_.room, s_);
    return true;
  }

  const StepParams& p_;
  const int32_t r_;
  const RowParams& row_;
  const int32_t g_;
  const Pages pages_;
  float* mean_;  // by physical index
  const float* value_;
  UpdateLines l_;
  BlockSpace* s_;
};

// Block (g, r), or (0, r) where the heads of a layer go one after the other.
__global__ void __launch_bounds__(kThreads) update_heads(const StepParams p, bool end_only, bool one) {
  LetNextBegin();
  WaitForEarlier();
  KVC_SHARED(float, vectors);
  __shared__ BlockSpace space;
  const int32_t r = static_cast<int32_t>(blockIdx.y), begin = one ? 0 : static_cast<int32_t>(blockIdx.x),
                end = one ? p.n_kv_heads : begin + 1;
  if (end_only && !p.rows[r].ends_later) return;
  for (int32_t g = begin; g < end; ++g) {
    HeadUpdate update(p, r, g, vectors, &space);
    if (end_only) {
      update.End();
    } else {
      update.Run();
    }
    __syncthreads();
  }
  // Books are the first head's, which the others add to.
  const RowParams& row = p.rows[r];
  if (row.report == nullptr) return;
  for (int32_t g = begin + ThreadOfBlock(); g < end; g += BlockThreads()) row.report[g] = row.cache.heads[g];
}

}  // namespace

void AddStepUpdateKernels(KernelLoader* loader) { KVC_ADD_STEP(loader, update_heads, 0); }

cudaError_t UpdateHeads(const StepParams& p, bool end_only, bool one, CudaStream& stream) {
  const dim3 grid(one ? 1u : static_cast<unsigned>(p.n_kv_heads), static_cast<unsigned>(p.n_rows));
  const size_t shared =
      2 * static_cast<size_t>(p.d) * sizeof(float) + static_cast<size_t>(p.n_heads) * sizeof(AttentionShares);
  return KVC_LAUNCH_EARLY(update_heads, grid, dim3(kThreads), shared, stream, p, end_only, one);
}

}  // namespace kvc::cuda
