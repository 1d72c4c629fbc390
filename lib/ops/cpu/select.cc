#include "lib/ops/cpu/select.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/base/philox.h"
#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/layer.h"
#include "lib/ops/cpu/layer_math.h"
#include "lib/ops/cpu/line_ops.h"
#include "lib/ops/cpu/merge_entries.h"
#include "lib/ops/cpu/raw.h"

namespace kvc::cpu {
namespace {

void Draw(const SelectLine& in) {
  const int32_t n_random = DrawnCount(in.rule, in.count), n_top = in.count - n_random;
  const int32_t first = in.rule.protect.n_sink, n_free = in.n - first - in.rule.protect.n_recent;
  MarkTop(in.scores + first, n_free, n_top, in.keys, in.mark + first);
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  constexpr float kLeast = -std::numeric_limits<float>::max();
  for (int32_t t = 0; t < n_free; ++t) {
    const double u = Uniform(
        Philox(in.head, static_cast<uint32_t>(in.positions[first + t]), 0, kSelectDraw, in.rule.seed)[0]);
    const double gumbel = u > 0 ? -std::log(-std::log(u)) : kNever;
    // What the first part took goes below everything that is left, whatever that is: a score that is no
    // number counts as the least one there is.
    const float drawn = static_cast<float>(static_cast<double>(in.scores[first + t]) + gumbel);
    in.line[t] = in.mark[first + t] != 0 ? -std::numeric_limits<float>::infinity()
                 : drawn > kLeast        ? drawn
                                         : kLeast;
  }
  uint8_t* drawn = reinterpret_cast<uint8_t*>(in.keys + in.n);
  MarkTop(in.line, n_free, std::min(n_random, n_free - n_top), in.keys, drawn);
  for (int32_t t = 0; t < n_free; ++t) in.mark[first + t] |= drawn[t];
}

// Scratch of one thread: keys [2 n], a line [n].
struct Scratch {
  uint64_t* keys;
  float* line;
  static int64_t Bytes(int64_t stride) { return Align(20 * stride); }
  Scratch(DeviceBytes at, int64_t stride, int thread)
      : keys(reinterpret_cast<uint64_t*>(Raw(at) + thread * Bytes(stride))),
        line(reinterpret_cast<float*>(keys + 2 * stride)) {}
};

}  // namespace

void SelectEntries(const SelectLine& in) {
  std::fill(in.mark, in.mark + in.n, uint8_t{1});
  const int32_t fixed = in.rule.protect.n_sink + in.rule.protect.n_recent;
  if (in.n <= fixed + in.count) return;
  switch (in.rule.kind) {
    case SelectKind::kDraw:
      return Draw(in);
    case SelectKind::kLowest: {
      const int32_t n_free = in.n - in.rule.protect.n_recent,
                    drop = in.n - KeptCount(in.rule, in.n, in.count);
      return MarkTop(in.scores, n_free, n_free - drop, in.keys, in.mark);
    }
    case SelectKind::kTop:
      return MarkTop(in.scores + in.rule.protect.n_sink, in.n - fixed, in.count, in.keys,
                     in.mark + in.rule.protect.n_sink);
  }
}

int64_t CpuDevice::SelectScratchBytes(int32_t, int64_t stride) const {
  return pool_->n_threads() * Scratch::Bytes(stride);
}

Status CpuDevice::Select(Stream*, const SelectArgs& a) {
  const int32_t n_heads = a.layer.n_kv_heads;
  pool_->ParallelFor(n_heads, [&](int64_t g, int thread) {
    const Scratch scratch(a.scratch, a.stride, thread);
    SelectEntries({a.rule, Raw(a.scores) + g * a.stride, Raw(a.layer.positions) + g * a.layer.capacity,
                   a.layer.len[g], a.counts[g], static_cast<uint32_t>(a.layer_index * n_heads + g),
                   scratch.keys, scratch.line, Raw(a.marks) + g * a.stride});
  });
  return {};
}

Status CpuDevice::SelectByQueryHead(Stream*, const SelectByQueryHeadArgs& a) {
  const int32_t group = a.n_heads / a.layer.n_kv_heads;
  pool_->ParallelFor(a.layer.n_kv_heads, [&](int64_t head, int thread) {
    const int32_t g = static_cast<int32_t>(head), n = a.layer.len[g], m = std::max(n - a.n_recent, 0),
                  count = a.counts[g];
    const Scratch scratch(a.scratch, a.stride, thread);
    uint8_t *mark = Raw(a.marks) + g * a.stride, *own = reinterpret_cast<uint8_t*>(scratch.line);
    uint32_t* seen = Raw(a.seen) + g * a.stride;
    const uint32_t* before = a.layer.has_seen ? Raw(a.layer.seen) + g * a.layer.capacity : nullptr;
    std::fill(mark, mark + n, uint8_t{0});
    std::fill(seen, seen + n, 0u);
    for (int32_t j = 0; j < group; ++j) {
      const auto sees = [&](int32_t t) { return before == nullptr || (before[t] >> j & 1) != 0; };
      std::fill(own, own + n, uint8_t{1});
      if (count < m) {
        float* scores = Raw(a.per_head) + (int64_t{g} * group + j) * a.stride;
        for (int32_t t = 0; t < m; ++t)
          if (!sees(t)) scores[t] = -std::numeric_limits<float>::infinity();
        MarkTop(scores, m, count, scratch.keys, own);
      }
      for (int32_t t = 0; t < n; ++t) {
        const bool kept = own[t] != 0 && sees(t);
        mark[t] |= static_cast<uint8_t>(kept);
        seen[t] |= static_cast<uint32_t>(kept) << j;
      }
    }
    a.kept[g] = static_cast<int32_t>(std::count(mark, mark + n, uint8_t{1}));
  });
  return {};
}

Status CpuDevice::Unmark(Stream*, const UnmarkArgs& a) {
  for (int32_t g = 0; g < a.layer.n_kv_heads; ++g) {
    uint8_t* mark = Raw(a.marks) + g * a.stride;
    const int32_t n = a.layer.len[g], held = a.held[g], first = std::min(a.n_sink, held - 1);
    int32_t over = static_cast<int32_t>(std::count(mark, mark + n, uint8_t{1})) - held;
    for (int32_t i = 0, seen = 0; i < n && over > 0; ++i) {
      if (mark[i] == 0 || seen++ < first) continue;
      mark[i] = 0;
      --over;
    }
  }
  return {};
}

// ---- merging ----

float SpreadFactor(const MergeRule& rule, float a, const float* target_sums, int32_t n, uint32_t head,
                   int32_t position) {
  if (n <= 0) return 0.0f;
  double base = 0;
  for (int32_t i = 0; i < n; ++i) {
    base = rule.by_maximum ? std::max(base, static_cast<double>(target_sums[i]))
                           : base + static_cast<double>(target_sums[i]);
  }
  if (!rule.by_maximum) base /= n;
  const double probability =
      base > 0 ? std::min(std::max(static_cast<double>(a) / base, 0.0), 1.0) : (a > 0 ? 1.0 : 0.0);
  double share = probability;
  if (!rule.expected) {
    const auto words = Philox(rule.sequence, head, static_cast<uint32_t>(position), kSpreadDraw, rule.seed);
    share = Uniform(words[0]) < probability ? 1.0 : 0.0;
  }
  return static_cast<float>(share / n);
}

void MixInto(float a_gone, const float* v_gone, float a_next, int32_t d, float* v_next) {
  const float sum = a_gone + a_next;
  if (!(sum > 0)) return;
  for (int32_t i = 0; i < d; ++i) v_next[i] = (a_gone * v_gone[i] + a_next * v_next[i]) / sum;
}

namespace {

// Values of one head of a layer at full length.
struct LayerValues {
  const KernelTable& kernels;
  float* values;
  int32_t d;
  float* At(int32_t i) const { return values + int64_t{i} * d; }
  const float* Get(int32_t i) const { return At(i); }
  void Add(int32_t i, float factor, const float* v) { kernels.axpy(factor, v, d, At(i)); }
  void Mix(int32_t i, float a_gone, const float* v_gone, float a_next) {
    MixInto(a_gone, v_gone, a_next, d, At(i));
  }
};

// All that head g drops becomes one entry, the mean of the tokens (methods.md 2.25), in slot 0; what lies
// before the first that is dropped moves on by one.
void MergeIntoRest(const LayerView& kv, int32_t g, uint8_t* mark) {
  const int32_t n = kv.len[g], d = kv.head_dim,
                first = static_cast<int32_t>(std::find(mark, mark + n, uint8_t{0}) - mark);
  if (first == n) return;
  int32_t* positions = Raw(kv.positions) + g * kv.capacity;
  int32_t tokens = 0;
  for (int32_t e = first; e < n; ++e) tokens += mark[e] == 0 ? TokensOf(positions[e]) : 0;
  for (float* x : {KeysOf(kv, g), ValuesOf(kv, g)}) {
    double sum[kMaxHeadSize] = {};
    for (int32_t e = first; e < n; ++e) {
      for (int32_t j = 0; j < d && mark[e] == 0; ++j)
        sum[j] += double{x[int64_t{e} * d + j]} * TokensOf(positions[e]);
    }
    std::copy_backward(x, x + int64_t{first} * d, x + int64_t{first + 1} * d);
    for (int32_t j = 0; j < d; ++j) x[j] = static_cast<float>(sum[j] / tokens);
  }
  const auto insert = [first](auto* line, auto value) {
    std::copy_backward(line, line + first, line + first + 1);
    line[0] = value;
  };
  insert(positions, -tokens);
  for (int32_t a = 0; a < kv.n_aux; ++a)
    insert(Raw(kv.aux) + (int64_t{a} * kv.n_kv_heads + g) * kv.capacity, 0.0f);
  mark[first] = 1;
}

}  // namespace

Status CpuDevice::Merge(Stream*, const MergeArgs& a) {
  const LayerView& kv = a.layer;
  if (a.rule.kind == MergeKind::kIntoRest) {
    pool_->ParallelFor(kv.n_kv_heads, [&](int64_t g, int) {
      MergeIntoRest(kv, static_cast<int32_t>(g), Raw(a.marks) + g * a.stride);
    });
    return {};
  }
  pool_->ParallelFor(kv.n_kv_heads, [&](int64_t head, int thread) {
    const int32_t g = static_cast<int32_t>(head);
    const auto aux = [&](int32_t x) {
      return x < 0 ? nullptr : Raw(kv.aux) + (int64_t{x} * kv.n_kv_heads + g) * kv.capacity;
    };
    const Scratch scratch(a.scratch, a.stride, thread);
    LayerValues values{kernels_, ValuesOf(kv, g), kv.head_dim};
    MergeDropped({a.rule, Raw(a.marks) + g * a.stride, aux(a.rule.sums), aux(a.rule.counts),
                  Raw(kv.positions) + g * kv.capacity, kv.len[g],
                  static_cast<uint32_t>(a.layer_index * kv.n_kv_heads + g),
                  reinterpret_cast<int32_t*>(scratch.keys), scratch.line},
                 values);
  });
  return {};
}

}  // namespace kvc::cpu
