// As lib/ops/cpu/score_keys.cc. Sums over entries and rows are in double, of parts in an order that does not
// depend on the device.
#include "cuda/score_keys.h"

#include "cuda/block.h"
#include "cuda/launch.h"

namespace kvc::cuda {
namespace {

constexpr int32_t kTile = 32, kWarps = kBlock / kWarp;
constexpr int kRowThreads = 256;
static_assert(kRowThreads >= kMostHeadSize, "a thread has a dimension");

template <typename A, typename B>
KVC_DEVICE double Product(const A& a, const B& b, int32_t d) {
  double sum = 0;
  for (int32_t j = 0; j < d; ++j) sum += static_cast<double>(a[j]) * static_cast<double>(b[j]);
  return sum;
}
constexpr int32_t Parts(int32_t n, int32_t size) { return (n + size - 1) / size; }

// ---- directions of keys ----

// Block (part, g): the sum of the directions of 128 keys.
__global__ void __launch_bounds__(kBlock) sum_directions(const KeyScores k) {
  __shared__ float inverse[kBlock];
  const int32_t part = static_cast<int32_t>(blockIdx.x), g = static_cast<int32_t>(blockIdx.y), d = k.layer.d,
                first = part * kBlock, n = min(kBlock, k.layer.len[g] - first);
  const LayerNumbers keys = k.layer.Key(g * k.layer.capacity + first);
  if (ThreadOfBlock() < n) {
    const double square = Product(keys + static_cast<int64_t>(ThreadOfBlock()) * d,
                                  keys + static_cast<int64_t>(ThreadOfBlock()) * d, d);
    inverse[ThreadOfBlock()] = square > 0 ? static_cast<float>(1 / sqrt(square)) : 0.0f;
  }
  __syncthreads();
  double* to = k.sums + (static_cast<int64_t>(g) * Parts(k.longest, kBlock) + part) * d;
  for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads()) {
    double sum = 0;
    for (int32_t t = 0; t < n; ++t)
      sum += static_cast<double>(keys[static_cast<int64_t>(t) * d + j]) * static_cast<double>(inverse[t]);
    to[j] = sum;
  }
}

// Block (part, g): the cosine of 128 keys and that mean.
__global__ void __launch_bounds__(kBlock) cosines(const KeyScores k) {
  KVC_SHARED(float, mean);
  __shared__ double shared[kWarps];
  const int32_t g = static_cast<int32_t>(blockIdx.y), n = k.layer.len[g], d = k.layer.d;
  const double* sums = k.sums + static_cast<int64_t>(g) * Parts(k.longest, kBlock) * d;
  double square = 0;
  for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads()) {
    double sum = 0;
    for (int32_t part = 0; part < Parts(n, kBlock); ++part) sum += sums[static_cast<int64_t>(part) * d + j];
    mean[j] = static_cast<float>(sum);
    square += sum * sum;
  }
  const double length = sqrt(BlockSum(square, shared));
  const int32_t t = static_cast<int32_t>(blockIdx.x) * kBlock + ThreadOfBlock();
  if (t >= n) return;
  const LayerNumbers key = k.layer.Key(g * k.layer.capacity + t);
  const double both = sqrt(Product(key, key, d)) * length;
  k.out[g * k.out_step + t] = both > 0 ? static_cast<float>(Product(key, mean, d) / both) : 0.0f;
}

// ---- spread within a part, in the range of the next ----

// Adds half the softmax over a part to `sum`: of the standard deviation of every vector, each dimension
// scaled by its range in the part behind. spread: scratch.
KVC_DEVICE void AddSpread(const LayerNumbers& x, int32_t size, int32_t d, float* low, float* inverse,
                          float* spread, float* sum, BlockSpace* s) {
  const LayerNumbers next = x + static_cast<int64_t>(size) * d;
  for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads()) {
    float least = next[j], most = next[j];
    for (int32_t i = 1; i < size; ++i) {
      const float v = next[static_cast<int64_t>(i) * d + j];
      least = v < least ? v : least, most = most < v ? v : most;
    }
    low[j] = least, inverse[j] = most > least ? __fdiv_rn(1.0f, most - least) : 0.0f;
  }
  __syncthreads();
  float most = -Infinity();
  for (int32_t i = ThreadOfBlock(); i < size; i += BlockThreads()) {
    const LayerNumbers v = x + static_cast<int64_t>(i) * d;
    const auto scaled = [&](int32_t j) { return static_cast<double>((v[j] - low[j]) * inverse[j]); };
    double total = 0, squares = 0;
    for (int32_t j = 0; j < d; ++j) total += scaled(j);
    const double mean = total / d;
    for (int32_t j = 0; j < d; ++j) squares += (scaled(j) - mean) * (scaled(j) - mean);
    spread[i] = static_cast<float>(sqrt(squares / max(d - 1, 1)));
    most = fmaxf(most, spread[i]);
  }
  most = BlockMax(most, s->floats);
  double total = 0;
  for (int32_t i = ThreadOfBlock(); i < size; i += BlockThreads())
    total += exp(static_cast<double>(spread[i] - most));
  total = BlockSum(total, s->doubles);
  for (int32_t i = ThreadOfBlock(); i < size; i += BlockThreads())
    sum[i] += static_cast<float>(0.5 * exp(static_cast<double>(spread[i] - most)) / total);
  __syncthreads();
}

// Block (part, g): ranks of the entries of a part that has a next one; the first block of a head also says of
// the other entries that they stay.
__global__ void __launch_bounds__(kBlock) lag_ranks(const KeyScores k, int32_t n_sink, int32_t size) {
  KVC_SHARED(float, low);
  __shared__ BlockSpace space;
  const int32_t part = static_cast<int32_t>(blockIdx.x), g = static_cast<int32_t>(blockIdx.y), d = k.layer.d,
                n = k.layer.len[g], ranked = n > n_sink ? max((n - n_sink) / size - 1, 0) : 0,
                first = n_sink + part * size;
  float *out = k.out + g * k.out_step, *sum = k.line + g * k.line_step + first;
  for (int32_t t = ThreadOfBlock(); part == 0 && t < n; t += BlockThreads()) {
    if (t < n_sink || t >= n_sink + ranked * size) out[t] = 2.0f + static_cast<float>(t);
  }
  if (part >= ranked) return;
  for (int32_t i = ThreadOfBlock(); i < size; i += BlockThreads()) sum[i] = 0;
  const int64_t entry = g * k.layer.capacity + first;
  AddSpread(k.layer.Key(entry), size, d, low, low + d, out + first, sum, &space);
  AddSpread(k.layer.Value(entry), size, d, low, low + d, out + first, sum, &space);
  for (int32_t i = ThreadOfBlock(); i < size; i += BlockThreads()) {
    int32_t below = 0;
    for (int32_t j = 0; j < size; ++j) below += sum[j] < sum[i] || (sum[j] == sum[i] && j < i) ? 1 : 0;
    out[first + i] = __fdiv_rn(static_cast<float>(below), static_cast<float>(size));
  }
}

// ---- the attention of queries to come ----

// What is known of them, in the room: mean rotation [G, D]; of every query head the mean query [D] and the
// covariance of the queries [D, D]; before those the sums of parts [H, parts, D + 1], the last of a part how
// many rows it has.
struct Queries {
  float *turned, *mean, *covariance;
  double* sums;
};
KVC_DEVICE Queries QueriesOf(const KeyScores& k) {
  Queries q;
  q.sums = k.sums;
  q.turned = reinterpret_cast<float*>(q.sums + static_cast<int64_t>(k.n_heads) * Parts(k.n_rows, kBlock) *
                                                   (k.layer.d + 1));
  q.mean = q.turned + k.layer.n_heads * k.layer.d;
  q.covariance = q.mean + static_cast<int64_t>(k.n_heads) * k.layer.d;
  return q;
}

// Block (g): the mean of the rotations to come.
__global__ void __launch_bounds__(kBlock) mean_rotation(const KeyScores k, int32_t n_future) {
  const int32_t g = static_cast<int32_t>(blockIdx.x), half = k.layer.d / 2, n = k.layer.len[g];
  const int64_t total = static_cast<int64_t>(k.layer.positions[g * k.layer.capacity + n - 1]) + 1;
  float* turned = QueriesOf(k).turned + g * k.layer.d;
  for (int32_t j = ThreadOfBlock(); j < half; j += BlockThreads()) {
    float cos = 0, sin = 0;
    for (int32_t f = 0; f < n_future; ++f) {
      float c, s;
      AngleOf(k.turn, total + f, j, k.turn.factor, &c, &s);
      cos += c, sin += s;
    }
    turned[j] = __fdiv_rn(cos, static_cast<float>(n_future));
    turned[half + j] = __fdiv_rn(sin, static_cast<float>(n_future));
  }
}

// The recorded queries of head h as they are expected in front of the mean rotation.
class Rows {
 public:
  KVC_DEVICE Rows(const KeyScores& k, int32_t h, int32_t n_sink)
      : k_(k),
        h_(h),
        n_sink_(n_sink),
        d_(k.layer.d),
        g_(h / (k.n_heads / k.layer.n_heads)),
        first_(k.layer.len[g_] - k.n_rows),
        positions_(k.layer.positions + g_ * k.layer.capacity),
        turned_(QueriesOf(k).turned + g_ * k.layer.d) {}
  KVC_DEVICE bool Counts(int32_t i) const { return positions_[first_ + i] >= n_sink_; }
  // Rows [r0, r0 + n) less `mean` into x [n, D], by the block; null: nothing less. Zeros where one does not
  // count.
  KVC_DEVICE void Load(int32_t r0, int32_t n, const float* mean, float* x) const {
    const int32_t half = d_ / 2;
    __syncthreads();
    for (int32_t e = ThreadOfBlock(); e < n * half; e += BlockThreads())
      TurnPairOf(r0 + e / half, e % half, x + e / half * d_);
    __syncthreads();
    for (int32_t e = ThreadOfBlock(); e < n * d_; e += BlockThreads())
      x[e] = Counts(r0 + e / d_) ? x[e] - (mean == nullptr ? 0.0f : mean[e % d_]) : 0.0f;
    __syncthreads();
  }

 private:
  KVC_DEVICE void TurnPairOf(int32_t i, int32_t j, float* x) const {
    float c, s;
    AngleOf(k_.turn, -static_cast<int64_t>(k_.turn.in_cache ? first_ + i : positions_[first_ + i]), j,
            1 / k_.turn.factor, &c, &s);
    TurnPair(k_.queries + (static_cast<int64_t>(i) * k_.n_heads + h_) * d_, d_, j, k_.turn.pairing, c, s, x);
    TurnPair(x, d_, j, k_.turn.pairing, turned_[j], turned_[d_ / 2 + j], x);
  }
  const KeyScores& k_;
  const int32_t h_, n_sink_, d_, g_, first_;
  const int32_t* positions_;
  const float* turned_;
};

// Block (part, h): the sum of 128 queries, and how many they are.
__global__ void __launch_bounds__(kRowThreads) sum_queries(const KeyScores k, int32_t n_sink) {
  KVC_SHARED(float, x);  // [tile, D]
  const int32_t part = static_cast<int32_t>(blockIdx.x), h = static_cast<int32_t>(blockIdx.y), d = k.layer.d,
                end = min((part + 1) * kBlock, k.n_rows);
  const Rows rows(k, h, n_sink);
  double sum = 0;
  int32_t counted = 0;
  for (int32_t r0 = part * kBlock; r0 < end; r0 += kTile) {
    const int32_t n = min(kTile, end - r0);
    rows.Load(r0, n, nullptr, x);
    for (int32_t i = 0; i < n; ++i) {
      counted += rows.Counts(r0 + i) ? 1 : 0;
      if (ThreadOfBlock() < d) sum += static_cast<double>(x[i * d + ThreadOfBlock()]);
    }
  }
  double* to = QueriesOf(k).sums + (static_cast<int64_t>(h) * Parts(k.n_rows, kBlock) + part) * (d + 1);
  if (ThreadOfBlock() < d) to[ThreadOfBlock()] = sum;
  if (ThreadOfBlock() == 0) to[d] = counted;
}

// Block (tile, h): 32 rows of the covariance of the queries of head h, whose mean it makes first.
__global__ void __launch_bounds__(kRowThreads) covariances(const KeyScores k, int32_t n_sink) {
  KVC_SHARED(float, shared);
  __shared__ double n_counted;
  const int32_t h = static_cast<int32_t>(blockIdx.y), d = k.layer.d,
                first = static_cast<int32_t>(blockIdx.x) * kTile, height = min(kTile, d - first),
                parts = Parts(k.n_rows, kBlock);
  float *mean = shared, *x = shared + d;  // [D], [tile, D]
  const Queries q = QueriesOf(k);
  const double* sums = q.sums + static_cast<int64_t>(h) * parts * (d + 1);
  if (ThreadOfBlock() == 0) {
    n_counted = 0;
    for (int32_t part = 0; part < parts; ++part) n_counted += sums[static_cast<int64_t>(part) * (d + 1) + d];
  }
  __syncthreads();
  const double n = n_counted;
  for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads()) {
    double sum = 0;
    for (int32_t part = 0; part < parts; ++part) sum += sums[static_cast<int64_t>(part) * (d + 1) + j];
    mean[j] = n > 0 ? static_cast<float>(sum / n) : 0.0f;
    if (first == 0) q.mean[static_cast<int64_t>(h) * d + j] = mean[j];
  }
  // Element e of the tile is that of row first + e / D and column e % D; a thread has every 256th.
  constexpr int kMine = kTile * kMostHeadSize / kRowThreads;
  double all[kMine] = {};
  const Rows rows(k, h, n_sink);
  for (int32_t r0 = 0; r0 < k.n_rows; r0 += kTile) {
    const int32_t n_rows = min(kTile, k.n_rows - r0);
    rows.Load(r0, n_rows, mean, x);
    for (int m = 0; m < kMine; ++m) {
      const int32_t e = ThreadOfBlock() + m * kRowThreads;
      float sum = 0;
      for (int32_t i = 0; i < n_rows && e < height * d; ++i)
        sum += x[i * d + first + e / d] * x[i * d + e % d];
      all[m] += static_cast<double>(sum);
    }
  }
  float* to = q.covariance + (static_cast<int64_t>(h) * d + first) * d;
  for (int m = 0; m < kMine; ++m) {
    const int32_t e = ThreadOfBlock() + m * kRowThreads;
    if (e < height * d) to[e] = n > 0 ? static_cast<float>(all[m] / n) : 0.0f;
  }
}

// Block (tile, h): logits of 32 entries; products of logits with a key are taken for normal, so the expected
// exponential is that of mean + variance / 2. A lane has a key, a warp every fourth row of the covariance.
__global__ void __launch_bounds__(kBlock) expected_logits(const KeyScores k) {
  KVC_SHARED(float, keys);  // [tile, D + 1]
  __shared__ double shared[kWarps][kTile];
  const int32_t h = static_cast<int32_t>(blockIdx.y), g = h / (k.n_heads / k.layer.n_heads), d = k.layer.d,
                t0 = static_cast<int32_t>(blockIdx.x) * kTile, n = min(kTile, k.layer.len[g] - t0);
  if (n <= 0) return;
  const Queries q = QueriesOf(k);
  for (int32_t e = ThreadOfBlock(); e < n * d; e += BlockThreads())
    keys[e / d * (d + 1) + e % d] = k.layer.Key(g * k.layer.capacity + t0)[e];
  __syncthreads();
  const float* key = keys + min(Lane(), n - 1) * (d + 1);
  double variance = 0;
  for (int32_t i = WarpOfBlock(); i < d; i += kWarps) {
    const float* row = q.covariance + (static_cast<int64_t>(h) * d + i) * d;
    float sum = 0;
    for (int32_t j = 0; j < d; ++j) sum += row[j] * key[j];
    variance += static_cast<double>(sum) * static_cast<double>(key[i]);
  }
  shared[WarpOfBlock()][Lane()] = variance;
  __syncthreads();
  if (ThreadOfBlock() >= n) return;
  variance = 0;
  for (int w = 0; w < kWarps; ++w) variance += shared[w][ThreadOfBlock()];
  const double mean = Product(q.mean + static_cast<int64_t>(h) * d, key, d),
               scale = static_cast<double>(k.scale);
  k.per_head[h * k.stride + t0 + ThreadOfBlock()] =
      static_cast<float>(scale * mean + 0.5 * scale * scale * variance);
}

// Block (h): probabilities over the entries behind the first n_sink, 0 for those.
__global__ void __launch_bounds__(kLineThreads) probabilities(const KeyScores k, int32_t n_sink) {
  __shared__ BlockSpace space;
  const int32_t h = static_cast<int32_t>(blockIdx.x), n = k.layer.len[h / (k.n_heads / k.layer.n_heads)];
  float* p = k.per_head + h * k.stride;
  const auto value = [&](int32_t t) { return p[t]; };
  float most = -Infinity();
  EachOfLine(n, value, [&](int32_t t, float x) {
    if (t >= n_sink) most = fmaxf(most, x);
  });
  const float sink = k.sinks != nullptr ? k.sinks[h] : -Infinity();
  most = fmaxf(BlockMax(most, space.floats), sink);
  double sum = 0;
  EachOfLine(n, value, [&](int32_t t, float x) {
    const float e = t < n_sink ? 0.0f : expf(x - most);
    p[t] = e, sum += static_cast<double>(e);
  });
  sum = BlockSum(sum, space.doubles);
  if (sink != -Infinity()) sum += static_cast<double>(expf(sink - most));
  EachOfLine(n, value, [&](int32_t t, float x) {
    p[t] = sum > 0 ? static_cast<float>(static_cast<double>(x) / sum) : 0.0f;
  });
}

dim3 Grid(int32_t x, int32_t y) { return dim3(static_cast<unsigned>(x), static_cast<unsigned>(y)); }
size_t Floats(int64_t n) { return static_cast<size_t>(n) * sizeof(float); }

cudaError_t KeyCosines(const KeyScores& k, CudaStream& stream) {
  const dim3 grid = Grid(Parts(k.longest, kBlock), k.layer.n_heads);
  const cudaError_t e = KVC_LAUNCH(sum_directions, grid, dim3(kBlock), 0, stream, k);
  return e != cudaSuccess ? e : KVC_LAUNCH(cosines, grid, dim3(kBlock), Floats(k.layer.d), stream, k);
}

cudaError_t LagRanks(const KeyScores& k, const ScoreInstr& i, CudaStream& stream) {
  const int32_t ranked = std::max((k.longest - i.head) / i.size - 1, 1);
  return KVC_LAUNCH(lag_ranks, Grid(ranked, k.layer.n_heads), dim3(kBlock), Floats(2 * k.layer.d), stream, k,
                    i.head, i.size);
}

cudaError_t ExpectedAttention(const KeyScores& k, const ScoreInstr& i, CudaStream& stream) {
  const int32_t d = k.layer.d;
  cudaError_t e = KVC_LAUNCH(mean_rotation, Grid(k.layer.n_heads, 1), dim3(kBlock), 0, stream, k, i.size);
  if (e == cudaSuccess && k.n_rows > 0)
    e = KVC_LAUNCH(sum_queries, Grid(Parts(k.n_rows, kBlock), k.n_heads), dim3(kRowThreads),
                   Floats(kTile * d), stream, k, i.head);
  if (e == cudaSuccess)
    e = KVC_LAUNCH(covariances, Grid(Parts(d, kTile), k.n_heads), dim3(kRowThreads), Floats((1 + kTile) * d),
                   stream, k, i.head);
  if (e == cudaSuccess)
    e = KVC_LAUNCH(expected_logits, Grid(Parts(k.longest, kTile), k.n_heads), dim3(kBlock),
                   Floats(kTile * (d + 1)), stream, k);
  return e != cudaSuccess ? e
                          : KVC_LAUNCH(probabilities, Grid(k.n_heads, 1), dim3(LineThreads(k.longest)), 0,
                                       stream, k, i.head);
}

}  // namespace

void AddScoreKeysKernels(KernelLoader* loader) {
  KVC_ADD(loader, sum_directions, 0);
  KVC_ADD(loader, cosines, 0);
  KVC_ADD(loader, lag_ranks, 0);
  KVC_ADD(loader, mean_rotation, 0);
  KVC_ADD(loader, sum_queries, Floats(kTile * kMostHeadSize));
  KVC_ADD(loader, covariances, Floats((1 + kTile) * kMostHeadSize));
  KVC_ADD(loader, expected_logits, Floats(kTile * (kMostHeadSize + 1)));
  KVC_ADD(loader, probabilities, 0);
}

int64_t KeyScoreBytes(const ScoreShape& s) {
  const int64_t d = s.head_dim, heads = s.n_kv_heads, all = s.n_heads;
  int64_t bytes = 0;
  for (int32_t i = 0; i < s.program->n; ++i) {
    int64_t need = 0;
    if (s.program->code[i].op == ScoreOp::kKeyCosine)
      need = Packet::Size<double>(heads * Parts(s.stride, kBlock) * d);
    if (s.program->code[i].op == ScoreOp::kExpected)
      need = Packet::Size<double>(all * Parts(s.n_rows, kBlock) * (d + 1)) +
             Packet::Size<float>((heads + all + all * d) * d);
    bytes = std::max(bytes, need);
  }
  return bytes;
}

cudaError_t ScoreKeys(const KeyScores& k, const ScoreInstr& i, CudaStream& stream) {
  if (i.op == ScoreOp::kKeyCosine) return KeyCosines(k, stream);
  return i.op == ScoreOp::kLag ? LagRanks(k, i, stream) : ExpectedAttention(k, i, stream);
}

}  // namespace kvc::cuda
