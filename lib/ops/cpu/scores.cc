// Score programs over one layer. Flops: 2 * rows * entries * D per query head for the rows, keys read once
// per kRowTile rows; everything else passes over lines.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/layer.h"
#include "lib/ops/cpu/line_ops.h"
#include "lib/ops/cpu/raw.h"
#include "lib/ops/cpu/score_keys.h"

namespace kvc::cpu {
namespace {

constexpr int32_t kRowTile = 8, kRegisters = 4;

// Lines of scratch: registers 1 .. 3 of every KV head, rows and two more of every thread, weights of rows.
struct Lines {
  float *registers, *rows, *pair, *weight;
  static int64_t Floats(int64_t n_kv_heads, int64_t threads, int64_t stride) {
    return stride * (n_kv_heads * (kRegisters - 1) + threads * (kRowTile + 2) + 1);
  }
  Lines(float* at, int64_t n_kv_heads, int64_t threads, int64_t stride)
      : registers(at),
        rows(registers + stride * n_kv_heads * (kRegisters - 1)),
        pair(rows + stride * threads * kRowTile),
        weight(pair + stride * threads * 2) {}
};

class Program {
 public:
  Program(const KernelTable& kernels, ThreadPool* pool, const ScoreArgs& a)
      : kernels_(kernels),
        pool_(pool),
        a_(a),
        kv_(a.layer),
        group_(a.n_heads / a.layer.n_kv_heads),
        lines_(reinterpret_cast<float*>(Raw(a.scratch)), a.layer.n_kv_heads, pool->n_threads(), a.stride) {}

  void Run() {
    const ScoreProgram& p = *a_.program;
    for (int32_t at = 0; at < p.n;) {
      if (OverAllHeads(p.code[at].op)) {
        p.code[at].op == ScoreOp::kRows ? SumRows() : Expect(p.code[at]);
        ++at;
        continue;
      }
      int32_t end = at + 1;  // up to the next instruction that is over all heads, or needs what all have done
      while (end < p.n && !OverAllHeads(p.code[end].op) && !WaitsForAllHeads(p.code[at].op, p.code[end].op))
        ++end;
      pool_->ParallelFor(kv_.n_kv_heads, [&](int64_t g, int thread) {
        for (int32_t i = at; i < end; ++i) Do(p.code[i], static_cast<int32_t>(g), thread);
      });
      at = end;
    }
  }

 private:
  static bool OverAllHeads(ScoreOp op) { return op == ScoreOp::kRows || op == ScoreOp::kExpected; }
  int32_t Len(int32_t g) const { return kv_.len[g]; }
  float* Register(int r, int32_t g) const {
    return r == 0 ? Raw(a_.scores) + g * a_.stride
                  : lines_.registers + (int64_t{g} * (kRegisters - 1) + r - 1) * a_.stride;
  }
  float* Query(int32_t h) const { return Raw(a_.per_head) + h * a_.stride; }
  float* Aux(int a, int32_t g) const {
    return Raw(kv_.aux) + (int64_t{a} * kv_.n_kv_heads + g) * kv_.capacity;
  }
  const int32_t* Positions(int32_t g) const { return Raw(kv_.positions) + g * kv_.capacity; }
  int32_t Total(int32_t g) const { return Positions(g)[Len(g) - 1] + 1; }  // tokens of the sequence
  int32_t RowsUsed() const { return std::min(a_.program->rows.n_rows, a_.observed.n_rows); }

  const float* Sink(int32_t h) const { return a_.sinks ? Raw(a_.sinks) + h : nullptr; }

  // Probabilities of n recorded rows from `first`, oldest = 0, of query head h: p [n, stride]. gains: the
  // rule that sharpens them, or null.
  void Rows(int32_t first, int32_t n, int32_t h, const RowRule* gains, float* p) const {
    const int32_t d = kv_.head_dim, g = h / group_;
    int32_t visible[kRowTile];
    float gain[kRowTile];
    for (int32_t i = 0; i < n; ++i) {
      visible[i] = Len(g) - a_.observed.n_rows + 1 + first + i;
      gain[i] = gains != nullptr ? GainOf(*gains, visible[i], d) : 1;
    }
    ScoreRowsArgs args{};
    args.q = Raw(a_.observed.queries) + (int64_t{first} * a_.n_heads + h) * d;
    args.q_stride = int64_t{a_.n_heads} * d;
    args.k = KeysOf(kv_, g);
    args.visible = visible;
    args.gain = gains != nullptr ? gain : nullptr;
    args.seen = kv_.has_seen ? Raw(kv_.seen) + g * kv_.capacity : nullptr,
    args.seen_bit = SeenBit(h % group_);
    args.p = p, args.p_stride = a_.stride;
    args.n_q = n, args.n_keys = Len(g), args.d = d, args.scale = a_.scale, args.cap = a_.cap;
    args.sink = Sink(h), args.first_logit = RestLogit(*Positions(g));
    kernels_.score_rows(args);
  }

  void SumRows() {
    const RowRule& rule = a_.program->rows;
    const int32_t n_rows = RowsUsed(), first = a_.observed.n_rows - n_rows;
    const RowRule* gains = rule.gain == RowGain::kNone ? nullptr : &rule;
    FillRowWeights(rule, n_rows, lines_.weight);
    pool_->ParallelFor(a_.n_heads, [&](int64_t h, int thread) {
      const int32_t n_keys = Len(static_cast<int32_t>(h) / group_), columns = n_keys - rule.n_pool_tail;
      float *rows = lines_.rows + thread * kRowTile * a_.stride, *line = lines_.pair + thread * 2 * a_.stride;
      float* sum = Query(static_cast<int32_t>(h));
      std::fill(sum, sum + n_keys, 0.0f);
      for (int32_t r = 0; r < n_rows; r += kRowTile) {
        const int32_t n = std::min(kRowTile, n_rows - r);
        Rows(first + r, n, static_cast<int32_t>(h), gains, rows);
        for (int32_t i = 0; i < n; ++i) {
          const float* p = rows + i * a_.stride;
          if (rule.pool.kernel > 1) {
            Pool(p, columns, rule.pool, line);
            p = line;
          }
          kernels_.axpy(lines_.weight[r + i], p, rule.pool.kernel > 1 ? std::max(columns, 0) : n_keys, sum);
        }
      }
    });
  }

  void Expect(const ScoreInstr& i) {
    pool_->ParallelFor(a_.n_heads, [&](int64_t head, int thread) {
      const int32_t h = static_cast<int32_t>(head), g = h / group_;
      ExpectedArgs e{};
      e.queries = Raw(a_.observed.queries) + int64_t{h} * kv_.head_dim;
      e.query_stride = int64_t{a_.n_heads} * kv_.head_dim;
      e.n_rows = a_.observed.n_rows;
      e.keys = KeysOf(kv_, g), e.positions = Positions(g);
      e.n_keys = Len(g), e.d = kv_.head_dim, e.n_sink = i.head, e.n_future = i.size, e.scale = a_.scale;
      e.turning = a_.turning, e.spread = lines_.pair + thread * 2 * a_.stride, e.out = Query(h);
      e.sink = Sink(h);
      ExpectedAttention(kernels_, e);
    });
  }

  // The query heads of a group at columns [0, n): mean, max or sum.
  void Group(int32_t g, int32_t n, GroupKind kind, float* out) const {
    const float* first = Query(g * group_);
    std::copy_n(first, n, out);
    for (int32_t j = 1; j < group_; ++j) {
      const float* other = first + j * a_.stride;
      for (int32_t t = 0; t < n; ++t)
        out[t] = kind == GroupKind::kMax ? std::max(out[t], other[t]) : out[t] + other[t];
    }
    if (kind != GroupKind::kMean || group_ == 1) return;
    const float inverse = 1.0f / static_cast<float>(group_);
    for (int32_t t = 0; t < n; ++t) out[t] *= inverse;
  }

  void Mean(int32_t first, int32_t end, int32_t n, float* out) const {
    std::fill(out, out + n, 0.0f);
    for (int32_t h = first; h < end; ++h) kernels_.add(Query(h), n, out);
    for (int32_t t = 0; t < n; ++t) out[t] /= static_cast<float>(end - first);
  }

  void History(int32_t g, int thread) const {
    const HistoryRule& rule = a_.program->history;
    float* aux[kMaxAux];
    for (int32_t a = 0; a < 1 + rule.words(); ++a) aux[a] = Aux(a, g);
    float *mean = lines_.pair + thread * 2 * a_.stride, *row = mean + a_.stride;
    const int32_t n = Len(g);
    for (int32_t r = a_.observed.n_rows - RowsUsed(); r < a_.observed.n_rows; ++r) {
      std::fill(mean, mean + n, 0.0f);
      for (int32_t h = g * group_; h < (g + 1) * group_; ++h) {
        Rows(r, 1, h, nullptr, row);
        kernels_.add(row, n, mean);
      }
      const int32_t visible = n - a_.observed.n_rows + 1 + r;
      for (int32_t t = 0; t < visible; ++t) mean[t] /= static_cast<float>(group_);
      PushHistory(rule, aux, mean, visible, 1.0f / static_cast<float>(visible));
    }
  }

  void DoQuery(const ScoreInstr& i, int32_t g, int thread) const {
    const int32_t n = Len(g), columns = std::max(n - i.tail, 0);
    for (int32_t h = g * group_; h < (g + 1) * group_; ++h) {
      float* q = Query(h);
      if (i.op == ScoreOp::kPoolQ) {
        float* line = lines_.pair + thread * 2 * a_.stride;
        Pool(q, columns, i.pool, line);
        std::copy_n(line, columns, q);
        continue;
      }
      const float rows = static_cast<float>(RowsUsed()), inverse = 1.0f / rows;
      for (int32_t t = 0; t < n; ++t) {
        q[t] = i.op == ScoreOp::kMeanQ
                   ? q[t] * inverse
                   : q[t] / (i.op == ScoreOp::kDivideQ ? rows : static_cast<float>(n - t));
      }
    }
  }

  // Lines that come from outside the registers.
  void DoSource(const ScoreInstr& i, int32_t g, int thread, float* dst) const {
    const int32_t n = Len(g);
    const float* from = nullptr;
    if (i.op == ScoreOp::kSums) from = Raw(a_.observed.sums) + g * kv_.capacity;
    if (i.op == ScoreOp::kMaxima) from = Raw(a_.observed.maxima) + g * kv_.capacity;
    if (i.op == ScoreOp::kLoad) from = Aux(i.src, g);
    if (from != nullptr) {
      std::copy_n(from, n, dst);
      return;
    }
    const int32_t total = Total(g), d = kv_.head_dim;
    const float *v = ValuesOf(kv_, g), *k = KeysOf(kv_, g);
    if (i.op == ScoreOp::kKeyCosine) return CosineToMean(kernels_, k, n, d, dst);
    if (i.op == ScoreOp::kLag)
      return LagRanks(k, v, n, d, i.head, i.size, lines_.pair + thread * 2 * a_.stride, dst);
    for (int32_t t = 0; t < n; ++t) {
      const int32_t age = total - Positions(g)[t];
      if (i.op == ScoreOp::kIndex) dst[t] = static_cast<float>(t);
      if (i.op == ScoreOp::kAge) dst[t] = static_cast<float>(age);
      if (i.op == ScoreOp::kRowsThatSaw) dst[t] = static_cast<float>(std::min(age, a_.observed.n_new));
      if (i.op == ScoreOp::kKeyNorms) dst[t] = kernels_.dot(k + int64_t{t} * d, k + int64_t{t} * d, d);
      if (i.op == ScoreOp::kValueNorms) dst[t] = kernels_.dot(v + int64_t{t} * d, v + int64_t{t} * d, d);
    }
  }

  void RestLast(int32_t g, float* dst) const {
    constexpr float kLeast = std::numeric_limits<float>::lowest();
    for (int32_t t = 0; t < Len(g); ++t) {
      if (!(dst[t] > kLeast)) dst[t] = kLeast;
      if (Positions(g)[t] < 0) dst[t] = -std::numeric_limits<float>::infinity();
    }
  }

  void Share(const ScoreInstr& i, int32_t columns, float* dst) const {
    const double sum = std::accumulate(dst, dst + columns, 0.0);
    const float factor = sum > 0 ? static_cast<float>(static_cast<double>(i.x) / sum) : 0.0f;
    for (int32_t t = 0; t < columns; ++t) dst[t] *= factor;
  }

  void ByMax(int32_t n, float* dst) const {
    const float most = *std::max_element(dst, dst + n), inverse = most > 0 ? 1.0f / most : 0.0f;
    for (int32_t t = 0; t < n; ++t) dst[t] *= inverse;
  }

  void Infinite(const ScoreInstr& i, int32_t n, int32_t columns, float* dst) const {
    std::fill_n(dst, std::min(i.head, n), std::numeric_limits<float>::infinity());
    std::fill(dst + columns, dst + n, std::numeric_limits<float>::infinity());
  }

  // Every op by name: one that has no case here must not compile.
  void Do(const ScoreInstr& i, int32_t g, int thread) const {
    float* dst = i.op == ScoreOp::kStore ? Aux(i.dst, g) : Register(i.dst, g);
    const float* src = i.op == ScoreOp::kLoad ? nullptr : Register(i.src, g);
    const int32_t n = Len(g), columns = std::max(n - i.tail, 0);
    const auto each = [n](auto&& f) {
      for (int32_t t = 0; t < n; ++t) f(t);
    };
    switch (i.op) {
      case ScoreOp::kRows:
      case ScoreOp::kExpected:
        return;  // over all heads
      case ScoreOp::kMeanQ:
      case ScoreOp::kDivideQ:
      case ScoreOp::kDivideQByRemaining:
      case ScoreOp::kPoolQ:
        return DoQuery(i, g, thread);
      case ScoreOp::kGroup:
        return Group(g, columns, i.group, dst);
      case ScoreOp::kLayerMean:
        return Mean(0, a_.n_heads, n, dst);
      case ScoreOp::kGroupMean:
        return Mean(g * group_, (g + 1) * group_, n, dst);
      case ScoreOp::kHistory:
        return History(g, thread);
      case ScoreOp::kRestLast:
        return RestLast(g, dst);
      case ScoreOp::kSums:
      case ScoreOp::kMaxima:
      case ScoreOp::kLoad:
      case ScoreOp::kIndex:
      case ScoreOp::kAge:
      case ScoreOp::kRowsThatSaw:
      case ScoreOp::kKeyNorms:
      case ScoreOp::kKeyCosine:
      case ScoreOp::kLag:
      case ScoreOp::kValueNorms:
        return DoSource(i, g, thread, dst);
      case ScoreOp::kAdd:
        return kernels_.add(src, columns, dst);
      case ScoreOp::kMax:
        return each([&](int32_t t) { dst[t] = std::max(dst[t], src[t]); });
      case ScoreOp::kMul:
        return each([&](int32_t t) { dst[t] *= src[t]; });
      case ScoreOp::kDiv:
        return each([&](int32_t t) { dst[t] /= src[t]; });
      case ScoreOp::kSqrt:
        return each([&](int32_t t) { dst[t] = std::sqrt(dst[t]); });
      case ScoreOp::kScale:
        return each([&](int32_t t) { dst[t] *= i.x; });
      case ScoreOp::kPool:
        return Pool(src, columns, i.pool, dst);
      case ScoreOp::kShare:
        return Share(i, columns, dst);
      case ScoreOp::kByMax:
        return ByMax(n, dst);
      case ScoreOp::kSpreadMax:
        std::fill_n(dst, n, *std::max_element(src, src + n));
        return;
      case ScoreOp::kInfinite:
        return Infinite(i, n, columns, dst);
      case ScoreOp::kStore:
      case ScoreOp::kCopy:
        std::copy_n(src, n, dst);
        return;
    }
  }

  const KernelTable& kernels_;
  ThreadPool* pool_;
  const ScoreArgs& a_;
  const LayerView& kv_;
  const int32_t group_;
  const Lines lines_;
};

}  // namespace

int64_t CpuDevice::ScoreScratchBytes(const ScoreShape& shape) const {
  return 4 * Lines::Floats(shape.n_kv_heads, pool_->n_threads(), shape.stride);
}

Status CpuDevice::Score(Stream*, const ScoreArgs& args) {
  Program(kernels_, pool_.get(), args).Run();
  return {};
}

}  // namespace kvc::cpu
