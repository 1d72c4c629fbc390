// Score programs (lib/ops/score_ops.h) over one layer. What recorded rows see is score_rows.h; where it is
// pooled row by row before it is summed, sum_pooled_rows does that, a tile of entries with its neighbours at
// a time. The rest passes over lines, a block a KV head.
#include <algorithm>

#include "cuda/block.h"
#include "cuda/history.h"
#include "cuda/launch.h"
#include "cuda/layer_params.h"
#include "cuda/score_keys.h"
#include "cuda/score_rows.h"
#include "cuda/weights.h"

namespace kvc::cuda {
namespace {

constexpr int kRegisters = 4;

struct ScoreParams : RowScores {
  ScoreProgram program;
  int32_t n_new;
  const float *sums, *maxima;
  float *scores, *registers;  // registers 1 .. 3: [G, 3, stride]
  int32_t first, end;         // instructions of this launch
};

KVC_DEVICE float LogitOf(const ScoreParams& p, const float* q, int64_t entry) {
  const LayerNumbers k = p.layer.Key(entry);
  float z = 0;
  for (int32_t j = 0; j < p.layer.d; ++j) z += q[j] * k[j];
  return z;
}

KVC_DEVICE const float* QueryOf(const ScoreParams& p, int32_t h, int32_t i) {
  return p.queries + (static_cast<int64_t>(i) * p.n_heads + h) * p.layer.d;
}

// Probability of entry t for row i; 0 where it is not seen.
KVC_DEVICE float ProbabilityOf(const ScoreParams& p, int32_t h, int32_t g, int32_t i, int32_t t,
                               const float* q, float gain) {
  const int64_t entry = g * p.layer.capacity + t, row = static_cast<int64_t>(h) * p.n + i;
  if (t < 0 || t >= p.Visible(g, i)) return 0;
  if (!p.layer.Sees(entry, SeenBit(h, p.n_heads / p.layer.n_heads))) return 0;
  const float rest = t == 0 ? LogitOfRest(p.layer.positions[entry]) : 0.0f,
              z = gain * Capped(p.scale * LogitOf(p, q, entry), p.cap) + rest, l = p.row_sum[row];
  return l > 0 ? __fdiv_rn(expf(z - p.row_max[row]), l) : 0.0f;
}

KVC_DEVICE float PoolAround(const Pooling& pool, const float* x, int32_t n, int32_t t) {
  const int32_t kernel = min(max(pool.kernel, 1), kMaxPoolKernel), half = (kernel - 1) / 2;
  const int32_t first = max(t - half, 0), last = min(t + half, n - 1);
  if (pool.kind == PoolKind::kMax) {
    float best = -Infinity();
    for (int32_t i = first; i <= last; ++i) best = x[i] > best ? x[i] : best;
    return best;
  }
  double sum = 0;
  for (int32_t i = first; i <= last; ++i) sum += static_cast<double>(x[i]);
  return static_cast<float>(sum / (pool.shrink_edges ? last - first + 1 : kernel));
}

// Block (tile, h): the weighted sum of the rows' probabilities, pooled row by row, of 128 entries. Shared
// memory: a row of queries, and probabilities of the entries with their neighbours.
__global__ void sum_pooled_rows(const ScoreParams p) {
  KVC_SHARED(float, q);
  float* line = q + p.layer.d;
  const int32_t h = static_cast<int32_t>(blockIdx.y), g = h / (p.n_heads / p.layer.n_heads),
                n = p.layer.len[g];
  const RowRule& rule = p.program.rows;
  const int32_t t0 = static_cast<int32_t>(blockIdx.x) * kBlock, half = (rule.pool.kernel - 1) / 2;
  if (t0 >= n) return;
  const int32_t columns = max(n - rule.n_pool_tail, 0), first = t0 - half, width = kBlock + 2 * half;
  const int32_t t = t0 + ThreadOfBlock();
  float sum = 0;
  for (int32_t i = 0; i < p.n; ++i) {
    __syncthreads();
    for (int32_t j = ThreadOfBlock(); j < p.layer.d; j += BlockThreads()) q[j] = QueryOf(p, h, i)[j];
    __syncthreads();
    for (int32_t x = ThreadOfBlock(); x < width; x += BlockThreads())
      line[x] = first + x < n ? ProbabilityOf(p, h, g, i, first + x, q, p.GainOf(g, i)) : 0.0f;
    __syncthreads();
    if (t < columns) {
      const int32_t shift = max(first, 0);  // what lies before the first entry is not there
      sum += p.weight[i] * PoolAround(rule.pool, line + (shift - first), columns - shift, t - shift);
    }
  }
  if (t < n) p.per_head[h * p.stride + t] = sum;
}

cudaError_t SumPooledRows(const ScoreParams& p, CudaStream& stream) {
  const dim3 grid(static_cast<unsigned>((p.longest + kBlock - 1) / kBlock), static_cast<unsigned>(p.n_heads));
  const int32_t width = kBlock + 2 * ((p.program.rows.pool.kernel - 1) / 2);
  return KVC_LAUNCH(sum_pooled_rows, grid, dim3(kBlock),
                    static_cast<size_t>(p.layer.d + width) * sizeof(float), stream, p);
}

// In their order, 16 bytes of f16 at a time where they lie so.
KVC_DEVICE float SumOfSquares(const LayerNumbers& x, bool half, int32_t n) {
  const bool whole = half && reinterpret_cast<uintptr_t>(x.at()) % sizeof(uint4) == 0;
  float sum = 0;
  int32_t j = 0;
  for (; whole && j + 8 <= n; j += 8) {
    const uint4 eight = static_cast<const uint4*>(x.at())[j / 8];
    KVC_UNROLL
    for (int i = 0; i < 2; ++i) {
      float y[4];
      UnpackFour<WeightType::kF16>(eight, i, y);
      KVC_UNROLL
      for (int k = 0; k < 4; ++k) sum += y[k] * y[k];
    }
  }
  for (; j < n; ++j) sum += x[j] * x[j];
  return sum;
}

class Lines {
 public:
  KVC_DEVICE Lines(const ScoreParams& p, int32_t g, BlockSpace* s)
      : p_(p), g_(g), n_(p.layer.len[g]), group_(p.n_heads / p.layer.n_heads), s_(s) {}

  KVC_DEVICE void Do(const ScoreInstr& i) {
    float* dst = i.op == ScoreOp::kStore ? Aux(i.dst) : Register(i.dst);
    const float* src = Register(i.src);
    const int32_t columns = max(n_ - i.tail, 0);
    // Every op by name, here and in One: one that has no case must not compile (host compilers see to it).
    switch (i.op) {
      case ScoreOp::kRows:
      case ScoreOp::kKeyCosine:
      case ScoreOp::kLag:
      case ScoreOp::kExpected:
        break;  // kernels of their own
      case ScoreOp::kMeanQ:
      case ScoreOp::kDivideQ:
      case ScoreOp::kDivideQByRemaining:
        DoQuery(i);
        break;
      case ScoreOp::kPoolQ:
        // By way of a register that nothing uses: the line of the program's own that comes last.
        for (int32_t h = g_ * group_; h < (g_ + 1) * group_; ++h) {
          float* line = Register(kRegisters);
          Each(columns, [&](int32_t t) { line[t] = PoolAround(i.pool, Query(h), columns, t); });
          Each(columns, [&](int32_t t) { Query(h)[t] = line[t]; });
        }
        break;
      case ScoreOp::kGroup:
        Each(columns, [&](int32_t t) { dst[t] = Group(i.group, t); });
        break;
      case ScoreOp::kLayerMean:
        Each(n_, [&](int32_t t) { dst[t] = Mean(0, p_.n_heads, t); });
        break;
      case ScoreOp::kGroupMean:
        Each(n_, [&](int32_t t) { dst[t] = Mean(g_ * group_, (g_ + 1) * group_, t); });
        break;
      case ScoreOp::kHistory:
        History();
        break;
      case ScoreOp::kShare: {
        double sum = 0;
        for (int32_t t = ThreadOfBlock(); t < columns; t += BlockThreads())
          sum += static_cast<double>(dst[t]);
        sum = BlockSum(sum, s_->doubles);
        const float factor = sum > 0 ? static_cast<float>(static_cast<double>(i.x) / sum) : 0.0f;
        Each(columns, [&](int32_t t) { dst[t] *= factor; });
        break;
      }
      case ScoreOp::kByMax: {
        const float most = Most(dst), inverse = most > 0 ? 1.0f / most : 0.0f;
        Each(n_, [&](int32_t t) { dst[t] *= inverse; });
        break;
      }
      case ScoreOp::kSpreadMax: {
        const float most = Most(src);
        Each(n_, [&](int32_t t) { dst[t] = most; });
        break;
      }
      case ScoreOp::kSums:
      case ScoreOp::kMaxima:
      case ScoreOp::kLoad:
      case ScoreOp::kStore:
      case ScoreOp::kAdd:
      case ScoreOp::kMax:
      case ScoreOp::kMul:
      case ScoreOp::kDiv:
      case ScoreOp::kScale:
      case ScoreOp::kCopy:
      case ScoreOp::kRowsThatSaw:
      case ScoreOp::kAge:
      case ScoreOp::kPool:
      case ScoreOp::kValueNorms:
      case ScoreOp::kInfinite:
      case ScoreOp::kIndex:
      case ScoreOp::kKeyNorms:
      case ScoreOp::kSqrt:
      case ScoreOp::kRestLast:
        Each(n_, [&](int32_t t) { One(i, columns, t, dst, src); });
        break;
    }
  }

 private:
  KVC_DEVICE float* Register(int r) const {
    return r == 0 ? p_.scores + g_ * p_.stride
                  : p_.registers + (static_cast<int64_t>(g_) * kRegisters + r - 1) * p_.stride;
  }
  KVC_DEVICE float* Query(int32_t h) const { return p_.per_head + h * p_.stride; }
  KVC_DEVICE float* Aux(int a) const {
    return p_.layer.aux + (static_cast<int64_t>(a) * p_.layer.n_heads + g_) * p_.layer.capacity;
  }
  template <typename F>
  KVC_DEVICE void Each(int32_t n, F f) const {
    for (int32_t t = ThreadOfBlock(); t < n; t += BlockThreads()) f(t);
    __syncthreads();
  }
  KVC_DEVICE float Most(const float* x) const {
    float most = -Infinity();
    for (int32_t t = ThreadOfBlock(); t < n_; t += BlockThreads()) most = fmaxf(most, x[t]);
    return BlockMax(most, s_->floats);
  }
  KVC_DEVICE float Group(GroupKind kind, int32_t t) const {
    float sum = Query(g_ * group_)[t];
    for (int32_t j = 1; j < group_; ++j) {
      const float other = Query(g_ * group_ + j)[t];
      sum = kind == GroupKind::kMax ? (sum < other ? other : sum) : sum + other;
    }
    return kind == GroupKind::kMean && group_ > 1 ? sum * (1.0f / static_cast<float>(group_)) : sum;
  }
  KVC_DEVICE float Mean(int32_t first, int32_t end, int32_t t) const {
    float sum = 0;
    for (int32_t h = first; h < end; ++h) sum += Query(h)[t];
    return __fdiv_rn(sum, static_cast<float>(end - first));
  }
  KVC_DEVICE void DoQuery(const ScoreInstr& i) const {
    const float rows = static_cast<float>(p_.n), inverse = __fdiv_rn(1.0f, rows);
    for (int32_t h = g_ * group_; h < (g_ + 1) * group_; ++h) {
      float* q = Query(h);
      Each(n_, [&](int32_t t) {
        q[t] = i.op == ScoreOp::kMeanQ
                   ? q[t] * inverse
                   : __fdiv_rn(q[t], i.op == ScoreOp::kDivideQ ? rows : static_cast<float>(n_ - t));
      });
    }
  }
  KVC_DEVICE void History() const {
    Each(n_, [&](int32_t t) {
      for (int32_t i = 0; i < p_.n; ++i) {
        const int32_t visible = p_.Visible(g_, i);
        if (t >= visible) continue;
        float mean = 0;
        for (int32_t h = g_ * group_; h < (g_ + 1) * group_; ++h)
          mean += ProbabilityOf(p_, h, g_, i, t, QueryOf(p_, h, i), 1.0f);
        PushHistory(
            p_.program.history, [&](int32_t a) -> float& { return Aux(a)[t]; },
            __fdiv_rn(mean, static_cast<float>(group_)), __fdiv_rn(1.0f, static_cast<float>(visible)),
            p_.sinks != nullptr);
      }
    });
  }
  KVC_DEVICE void One(const ScoreInstr& i, int32_t columns, int32_t t, float* dst, const float* src) const {
    const int64_t entry = g_ * p_.layer.capacity + t;
    const int32_t* positions = p_.layer.positions + g_ * p_.layer.capacity;
    const int32_t age = positions[n_ - 1] + 1 - positions[t];
    switch (i.op) {
      case ScoreOp::kSums:
        dst[t] = p_.sums[entry];
        break;
      case ScoreOp::kMaxima:
        dst[t] = p_.maxima[entry];
        break;
      case ScoreOp::kLoad:
        dst[t] = Aux(i.src)[t];
        break;
      case ScoreOp::kIndex:
        dst[t] = static_cast<float>(t);
        break;
      case ScoreOp::kAge:
        dst[t] = static_cast<float>(age);
        break;
      case ScoreOp::kRowsThatSaw:
        dst[t] = static_cast<float>(min(age, p_.n_new));
        break;
      case ScoreOp::kRestLast: {
        constexpr float kLeast = -3.402823466e+38f;
        dst[t] = positions[t] < 0 ? -Infinity() : dst[t] > kLeast ? dst[t] : kLeast;
        break;
      }
      case ScoreOp::kSqrt:
        dst[t] = __fsqrt_rn(dst[t]);
        break;
      case ScoreOp::kKeyNorms:
      case ScoreOp::kValueNorms: {
        dst[t] = SumOfSquares(i.op == ScoreOp::kKeyNorms ? p_.layer.Key(entry) : p_.layer.Value(entry),
                              p_.layer.half, p_.layer.d);
        break;
      }
      case ScoreOp::kAdd:
        if (t < columns) dst[t] += src[t];
        break;
      case ScoreOp::kMax:
        dst[t] = dst[t] < src[t] ? src[t] : dst[t];
        break;
      case ScoreOp::kMul:
        dst[t] *= src[t];
        break;
      case ScoreOp::kDiv:
        dst[t] = __fdiv_rn(dst[t], src[t]);
        break;
      case ScoreOp::kScale:
        dst[t] *= i.x;
        break;
      case ScoreOp::kPool:
        if (t < columns) dst[t] = PoolAround(i.pool, src, columns, t);
        break;
      case ScoreOp::kInfinite:
        if (t < i.head || t >= columns) dst[t] = Infinity();
        break;
      case ScoreOp::kStore:
      case ScoreOp::kCopy:
        dst[t] = src[t];
        break;
      case ScoreOp::kRows:
      case ScoreOp::kMeanQ:
      case ScoreOp::kDivideQ:
      case ScoreOp::kDivideQByRemaining:
      case ScoreOp::kPoolQ:
      case ScoreOp::kGroup:
      case ScoreOp::kLayerMean:
      case ScoreOp::kGroupMean:
      case ScoreOp::kShare:
      case ScoreOp::kByMax:
      case ScoreOp::kSpreadMax:
      case ScoreOp::kHistory:
      case ScoreOp::kKeyCosine:
      case ScoreOp::kLag:
      case ScoreOp::kExpected:
        break;  // of whole lines
    }
  }

  const ScoreParams& p_;
  const int32_t g_, n_, group_;
  BlockSpace* s_;
};

__global__ void __launch_bounds__(kLineThreads) score_lines(const ScoreParams p) {
  __shared__ BlockSpace space;
  Lines lines(p, static_cast<int32_t>(blockIdx.x), &space);
  for (int32_t i = p.first; i < p.end; ++i) lines.Do(p.program.code[i]);
}

// Needs a kernel of its own, or what one has left.
bool BeginsLaunch(ScoreOp op) { return op == ScoreOp::kRows || op == ScoreOp::kHistory || IsOfKeys(op); }

int32_t RowsUsed(const ScoreShape& s) { return std::min(s.program->rows.n_rows, s.n_rows); }

}  // namespace

void AddScoreKernels(KernelLoader* loader) {
  KVC_ADD(loader, sum_pooled_rows, 0);
  KVC_ADD(loader, score_lines, 0);
}

int64_t CudaDevice::ScoreScratchBytes(const ScoreShape& s) const {
  return Packet::Size<float>(int64_t{kRegisters} * s.n_kv_heads * s.stride) +
         2 * Packet::Size<float>(int64_t{s.n_heads} * s.n_rows) +
         Packet::Size<float>(RowPartialFloats(s.n_heads, RowsUsed(s), s.stride)) + KeyScoreBytes(s);
}

Status CudaDevice::Score(Stream* s, const ScoreArgs& a) {
  KVC_ENTER();
  const ScoreProgram& program = *a.program;
  KVC_RETURN_IF_ERROR(CheckHeadSize(a.layer.head_dim));
  const RowRule& rule = program.rows;
  const int32_t heads = a.layer.n_kv_heads, rows = std::min(rule.n_rows, a.observed.n_rows);
  const int32_t longest = LongestOf(a.layer), n_gains = rule.gain == RowGain::kNone ? 0 : heads * rows;
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, LayerBytes(a.layer) + Packet::Size<float>(rows) +
                                          Packet::Size<float>(n_gains) + TurnBytes(a.turning.rope)));
  ScoreParams p{};
  p.layer = LayerOf(a.layer, &packet);
  p.program = program;
  p.n_heads = a.n_heads, p.n = rows, p.longest = longest, p.n_new = a.observed.n_new;
  p.scale = a.scale, p.cap = a.cap, p.sinks = At(a.sinks);
  const float* queries = At(a.observed.queries);
  p.queries = queries + static_cast<int64_t>(a.observed.n_rows - rows) * a.n_heads * a.layer.head_dim;
  p.sums = At(a.observed.sums), p.maxima = At(a.observed.maxima);
  p.scores = At(a.scores), p.per_head = At(a.per_head);
  const ScoreShape shape{&program, a.n_heads, heads, a.layer.head_dim, a.observed.n_rows, a.stride};
  Scratch scratch(At(a.scratch), ScoreScratchBytes(shape));
  p.registers = scratch.Take<float>(int64_t{kRegisters} * heads * a.stride);
  p.stride = a.stride;
  float* weight = packet.Add<float>(rows, &p.weight);
  float* gain = packet.Add<float>(n_gains, &p.gain);
  FillRowWeights(rule, rows, weight);
  for (int32_t i = 0; i < n_gains; ++i)
    gain[i] = GainOf(rule, a.layer.len[i / rows] - rows + 1 + i % rows, a.layer.head_dim);
  if (n_gains == 0) p.gain = nullptr;
  p.row_max = scratch.Take<float>(int64_t{a.n_heads} * rows);
  p.row_sum = scratch.Take<float>(int64_t{a.n_heads} * rows);
  p.partial = scratch.Take<float>(RowPartialFloats(a.n_heads, rows, a.stride));
  KeyScores keys{};
  keys.layer = p.layer, keys.turn = TurnOf(a.turning, &packet), keys.longest = longest;
  keys.n_heads = a.n_heads, keys.n_rows = a.observed.n_rows, keys.scale = a.scale, keys.queries = queries;
  keys.sinks = p.sinks;
  keys.per_head = p.per_head, keys.stride = a.stride;
  keys.line = p.registers + (kRegisters - 1) * a.stride, keys.line_step = kRegisters * a.stride;
  keys.sums = reinterpret_cast<double*>(scratch.Take<uint8_t>(KeyScoreBytes(shape)));
  KVC_RETURN_IF_ERROR(scratch.Check());
  KVC_RETURN_IF_ERROR(packet.Send());
  CudaStream& stream = StreamOf(s);
  const dim3 block(LineThreads(longest));
  for (int32_t at = 0; at < program.n;) {
    const ScoreInstr& instr = program.code[at];
    const ScoreOp op = instr.op;
    if (IsOfKeys(op)) {
      keys.out = instr.dst == 0 ? p.scores : p.registers + (instr.dst - 1) * a.stride;
      keys.out_step = instr.dst == 0 ? a.stride : kRegisters * a.stride;
      KVC_RETURN_IF_ERROR(Check(ScoreKeys(keys, instr, stream), "scores"));
      ++at;
      continue;
    }
    if (op == ScoreOp::kRows) {
      KVC_RETURN_IF_ERROR(Check(NormaliseRows(p, stream), "scores"));
      KVC_RETURN_IF_ERROR(
          Check(rule.pool.kernel > 1 ? SumPooledRows(p, stream) : SumRows(p, stream), "scores"));
      ++at;
      continue;
    }
    if (op == ScoreOp::kHistory) {
      RowScores plain = p;
      plain.gain = nullptr;
      KVC_RETURN_IF_ERROR(Check(NormaliseRows(plain, stream), "scores"));
    }
    int32_t end = at + 1;
    while (end < program.n && !BeginsLaunch(program.code[end].op) &&
           !WaitsForAllHeads(op, program.code[end].op))
      ++end;
    p.first = at, p.end = end;
    KVC_RETURN_IF_ERROR(
        Check(KVC_LAUNCH(score_lines, dim3(static_cast<unsigned>(heads)), block, 0, stream, p), "scores"));
    at = end;
  }
  return {};
}

}  // namespace kvc::cuda
