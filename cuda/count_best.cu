// The best candidates of a layer, counted by head, without a word to the host in between: the threshold score
// is found eight bits at a time, each time by one kernel over the heads and one over their counts
// (methods.md 2.11).
#include "cuda/block.h"
#include "cuda/launch.h"
#include "cuda/layer_params.h"

namespace kvc::cuda {
namespace {

constexpr int kValues = 256;  // of eight bits

struct CountParams {
  LayerParams layer;
  Protected protect;
  const float* scores;
  int64_t stride, total, locked;
  int32_t average;
  bool concentrated;
  double* factor;      // [G]
  int64_t* counts;     // [G] candidates above the range that is still open
  int32_t* histogram;  // [G, kValues]
  uint32_t* prefix;
  int shift;
};

KVC_DEVICE int32_t Candidates(const CountParams& p, int32_t h) {
  return max(p.layer.len[h] - p.protect.n_sink - p.protect.n_recent, 0);
}
KVC_DEVICE const float* ScoresOf(const CountParams& p, int32_t h) {
  return p.scores + h * p.stride + p.protect.n_sink;
}
KVC_DEVICE int64_t Locked(const CountParams& p, int32_t h) {
  const int64_t n = Candidates(p, h);
  return p.locked < n ? p.locked : n;
}

// Share of the `average` best scores of a head in its total.
__global__ void __launch_bounds__(kLineThreads) concentrate(const CountParams p) {
  __shared__ BlockSpace space;
  const int32_t h = static_cast<int32_t>(blockIdx.x), m = Candidates(p, h), best_n = min(p.average, m);
  const float* scores = ScoresOf(p, h);
  const auto value = [&](int32_t t) {
    return static_cast<double>(isnan(scores[t]) ? -Infinity() : scores[t]);
  };
  const auto bits = [&](int32_t t) { return ScoreBits(scores[t]); };
  double best = 0, all = 0;
  if (best_n > 0 && best_n < m) {
    const Threshold least = BlockThreshold(bits, m, best_n, &space);
    const float tie =
        __uint_as_float((least.bits & 0x80000000u) != 0 ? least.bits & 0x7fffffffu : ~least.bits);
    for (int32_t t = ThreadOfBlock(); t < m; t += BlockThreads())
      best += bits(t) > least.bits ? value(t) : 0.0;
    best =
        BlockSum(best, space.doubles) + static_cast<double>(best_n - least.above) * static_cast<double>(tie);
  }
  for (int32_t t = ThreadOfBlock(); t < m; t += BlockThreads()) all += value(t);
  all = BlockSum(all, space.doubles);
  if (best_n == m) best = all;
  if (ThreadOfBlock() != 0) return;
  const double share = best / all;
  p.factor[h] = all > 0 && share - share == 0 ? share : 1.0;
}

__global__ void __launch_bounds__(kLineThreads) count_range(const CountParams p) {
  const int32_t h = static_cast<int32_t>(blockIdx.x), m = Candidates(p, h);
  const float* scores = ScoresOf(p, h);
  int32_t* histogram = p.histogram + h * kValues;
  __shared__ int32_t shared[kValues];
  for (int i = ThreadOfBlock(); i < kValues; i += BlockThreads()) shared[i] = 0;
  __syncthreads();
  const uint32_t prefix = *p.prefix, fixed = p.shift == 24 ? 0 : 0xFFFFFFFFu << (p.shift + 8);
  const double factor = p.concentrated ? p.factor[h] : 1.0;
  EachOfLine(
      m, [&](int32_t t) { return scores[t]; },
      [&](int32_t, float score) {
        const uint32_t bits =
            ScoreBits(p.concentrated ? static_cast<float>(static_cast<double>(score) * factor) : score);
        if ((bits & fixed) == prefix) atomicAdd(&shared[bits >> p.shift & 255], 1);
      });
  __syncthreads();
  for (int i = ThreadOfBlock(); i < kValues; i += BlockThreads()) histogram[i] = shared[i];
}

// One block, a thread for each value that the next eight bits of the threshold may have, from above: with how
// many entries heads go on if that is the threshold's, and the highest that is too many is it. Behind the
// last bits, what every head holds.
__global__ void __launch_bounds__(kValues) close_range(const CountParams p) {
  __shared__ int32_t ints[kWarp];
  const int32_t n_heads = p.layer.n_heads, own = kValues - 1 - ThreadOfBlock();
  int32_t all = 0;
  int64_t with = 0;
  for (int32_t h = 0; h < n_heads; ++h) {
    const int32_t count = p.histogram[h * kValues + own];
    const int64_t held = p.counts[h] + BlockPrefix(count, ints, &all) + count, locked = Locked(p, h);
    with += held > locked ? held : locked;
  }
  const int32_t n_too_high = BlockSum(with <= p.total ? 1 : 0, ints),
                value = max(kValues - 1 - n_too_high, 0);
  for (int32_t h = 0; h < n_heads; ++h) {
    const int32_t above = BlockPrefix(p.histogram[h * kValues + own], ints, &all);
    if (own == value) p.counts[h] += above;
  }
  __syncthreads();
  if (ThreadOfBlock() != 0) return;
  *p.prefix |= static_cast<uint32_t>(value) << p.shift;
  if (p.shift != 0) return;
  // Candidates equal to the threshold go to the lower heads first.
  int64_t left = p.total;
  for (int32_t h = 0; h < n_heads; ++h) {
    const int64_t locked = Locked(p, h);
    left -= p.counts[h] > locked ? p.counts[h] : locked;
  }
  for (int32_t h = 0; h < n_heads; ++h) {
    const int64_t locked = Locked(p, h), held = p.counts[h] > locked ? p.counts[h] : locked,
                  ties = p.counts[h] + p.histogram[h * kValues + value] - held, most = left > 0 ? left : 0;
    const int64_t more = ties < 0 ? 0 : ties < most ? ties : most;
    p.counts[h] = held + more;
    left -= more;
  }
}

}  // namespace

void AddCountBestKernels(KernelLoader* loader) {
  KVC_ADD(loader, concentrate, 0);
  KVC_ADD(loader, count_range, 0);
  KVC_ADD(loader, close_range, 0);
}

Status CudaDevice::CountBest(Stream* s, const CountBestArgs& a) {
  KVC_ENTER();
  const int32_t heads = a.layer.n_kv_heads;
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, LayerBytes(a.layer)));
  CountParams p{};
  p.layer = LayerOf(a.layer, &packet);
  p.protect = a.protect, p.scores = At(a.scores), p.stride = a.stride, p.total = a.total, p.locked = a.locked;
  p.average = a.average, p.concentrated = a.concentrated;
  Scratch scratch(At(a.scratch), SelectScratchBytes(heads, a.stride));
  p.factor = scratch.Take<double>(heads);
  p.counts = scratch.Take<int64_t>(heads);
  p.histogram = scratch.Take<int32_t>(int64_t{heads} * kValues);
  p.prefix = scratch.Take<uint32_t>(1);
  KVC_RETURN_IF_ERROR(scratch.Check());
  KVC_RETURN_IF_ERROR(packet.Send());
  CudaStream& stream = StreamOf(s);
  const dim3 grid(static_cast<unsigned>(heads)), block = BlockOf(a.layer);
  KVC_RETURN_IF_ERROR(stream.Clear(p.counts, int64_t{8} * heads, "selection"));
  KVC_RETURN_IF_ERROR(stream.Clear(p.prefix, 4, "selection"));
  if (a.concentrated)
    KVC_RETURN_IF_ERROR(Check(KVC_LAUNCH(concentrate, grid, block, 0, stream, p), "selection"));
  for (p.shift = 24; p.shift >= 0; p.shift -= 8) {
    KVC_RETURN_IF_ERROR(Check(KVC_LAUNCH(count_range, grid, block, 0, stream, p), "selection"));
    KVC_RETURN_IF_ERROR(Check(KVC_LAUNCH(close_range, dim3(1), dim3(kValues), 0, stream, p), "selection"));
  }
  return StreamOf(s).Fetch(p.counts, a.counts, int64_t{8} * heads);
}

}  // namespace kvc::cuda
