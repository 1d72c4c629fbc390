// What every head of a layer keeps, a block a head.
#include "cuda/select_line.h"

#include "cuda/launch.h"
#include "cuda/layer_params.h"

namespace kvc::cuda {
namespace {

struct SelectParams {
  LayerParams layer;
  SelectRule rule;
  int32_t first_head;
  const int32_t *counts, *n_random;  // [G]
  const float* scores;
  float* lines;
  uint8_t* marks;
  int64_t stride;
};

__global__ void __launch_bounds__(kLineThreads) select_topk(const SelectParams p) {
  __shared__ BlockSpace space;
  __shared__ int32_t list[kListed];
  const int32_t g = static_cast<int32_t>(blockIdx.x);
  BlockSelectEntries(
      {p.rule, p.n_random + g, p.scores + g * p.stride, p.layer.positions + g * p.layer.capacity,
       p.layer.len[g], p.counts[g], static_cast<uint32_t>(p.first_head + g), p.lines + g * p.stride,
       p.marks + g * p.stride},
      &space, list);
}

struct QuerySelectParams {
  LayerParams layer;
  int32_t group, n_recent;
  const int32_t* counts;
  float* per_head;
  uint8_t* marks;
  uint32_t* seen;
  int32_t* kept;
  int64_t stride;
};

__global__ void __launch_bounds__(kLineThreads) select_by_query_head(const QuerySelectParams p) {
  __shared__ BlockSpace space;
  const int32_t g = static_cast<int32_t>(blockIdx.x), n = p.layer.len[g], m = max(n - p.n_recent, 0),
                count = p.counts[g];
  uint8_t* mark = p.marks + g * p.stride;
  uint32_t* seen = p.seen + g * p.stride;
  const uint32_t* before = p.layer.has_seen ? p.layer.seen + g * p.layer.capacity : nullptr;
  for (int32_t t = ThreadOfBlock(); t < n; t += BlockThreads()) seen[t] = 0;
  __syncthreads();
  for (int32_t j = 0; j < p.group; ++j) {
    const float* scores = p.per_head + (static_cast<int64_t>(g) * p.group + j) * p.stride;
    const auto sees = [&](int32_t t) { return before == nullptr || (before[t] >> j & 1) != 0; };
    const auto keep = [&](int32_t t, bool yes) {
      if (yes && sees(t)) seen[t] |= 1u << j;
    };
    if (count < m) {
      BlockMarkTop([&](int32_t t) { return ScoreBits(sees(t) ? scores[t] : -Infinity()); }, m, count, &space,
                   keep);
    } else {
      for (int32_t t = ThreadOfBlock(); t < m; t += BlockThreads()) keep(t, true);
    }
    for (int32_t t = m + ThreadOfBlock(); t < n; t += BlockThreads()) keep(t, true);
    __syncthreads();
  }
  int32_t kept = 0;
  for (int32_t t = ThreadOfBlock(); t < n; t += BlockThreads()) {
    mark[t] = seen[t] != 0 ? 1 : 0;
    kept += mark[t];
  }
  kept = BlockSum(kept, space.ints);
  if (ThreadOfBlock() == 0) p.kept[g] = kept;
}

struct UnmarkParams {
  const int32_t *len, *held;
  int32_t n_sink;
  uint8_t* marks;
  int64_t stride;
};

__global__ void __launch_bounds__(kLineThreads) unmark(const UnmarkParams p) {
  __shared__ BlockSpace space;
  const int32_t g = static_cast<int32_t>(blockIdx.x), n = p.len[g], held = p.held[g],
                first = min(p.n_sink, held - 1);
  uint8_t* mark = p.marks + g * p.stride;
  int32_t marked = 0;
  for (int32_t t = ThreadOfBlock(); t < n; t += BlockThreads()) marked += mark[t] == 1 ? 1 : 0;
  const int32_t over = BlockSum(marked, space.ints) - held;
  if (over <= 0) return;
  BlockCompact(
      n, &space, [&](int32_t t) { return mark[t] != 0; },
      [&](int32_t t, int32_t place) {
        if (place >= first && place < first + over) mark[t] = 0;
      });
}

}  // namespace

void AddSelectKernels(KernelLoader* loader) {
  KVC_ADD(loader, select_topk, 0);
  KVC_ADD(loader, select_by_query_head, 0);
  KVC_ADD(loader, unmark, 0);
}

int64_t CudaDevice::SelectScratchBytes(int32_t n_kv_heads, int64_t stride) const {
  const int64_t heads = n_kv_heads;
  const int64_t merge = Packet::Size<int32_t>(heads * stride), draw = Packet::Size<float>(heads * stride),
                count = Packet::Size<double>(heads) + Packet::Size<int64_t>(heads) +
                        Packet::Size<int32_t>(heads * 256) + Packet::Size<uint32_t>(1);
  return std::max({merge, draw, count, RestScratchBytes(n_kv_heads, stride)});
}

Status CudaDevice::Select(Stream* s, const SelectArgs& a) {
  KVC_ENTER();
  const int32_t heads = a.layer.n_kv_heads;
  const bool draws = a.rule.kind == SelectKind::kDraw;
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, LayerBytes(a.layer) + 2 * Packet::Size<int32_t>(heads)));
  SelectParams p{};
  p.layer = LayerOf(a.layer, &packet);
  p.rule = a.rule, p.first_head = a.layer_index * heads;
  p.counts = packet.Copy(a.counts, heads);
  int32_t* n_random = packet.Add<int32_t>(heads, &p.n_random);
  for (int32_t g = 0; g < heads; ++g) n_random[g] = DrawnCount(a.rule, a.counts[g]);
  p.scores = At(a.scores), p.marks = At(a.marks), p.stride = a.stride;
  Scratch scratch(At(a.scratch), SelectScratchBytes(heads, a.stride));
  if (draws) p.lines = scratch.Take<float>(heads * a.stride);
  KVC_RETURN_IF_ERROR(scratch.Check());
  KVC_RETURN_IF_ERROR(packet.Send());
  return Check(
      KVC_LAUNCH(select_topk, dim3(static_cast<unsigned>(heads)), BlockOf(a.layer), 0, StreamOf(s), p),
      "selection");
}

Status CudaDevice::SelectByQueryHead(Stream* s, const SelectByQueryHeadArgs& a) {
  KVC_ENTER();
  const int32_t heads = a.layer.n_kv_heads;
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, LayerBytes(a.layer) + Packet::Size<int32_t>(heads)));
  QuerySelectParams p{};
  p.layer = LayerOf(a.layer, &packet);
  p.group = a.n_heads / heads, p.n_recent = a.n_recent;
  p.counts = packet.Copy(a.counts, heads);
  p.per_head = At(a.per_head), p.marks = At(a.marks), p.seen = At(a.seen), p.stride = a.stride;
  Scratch scratch(At(a.scratch), SelectScratchBytes(heads, a.stride));
  p.kept = scratch.Take<int32_t>(heads);
  KVC_RETURN_IF_ERROR(scratch.Check());
  KVC_RETURN_IF_ERROR(packet.Send());
  KVC_RETURN_IF_ERROR(Check(KVC_LAUNCH(select_by_query_head, dim3(static_cast<unsigned>(heads)),
                                       BlockOf(a.layer), 0, StreamOf(s), p),
                            "selection"));
  return StreamOf(s).Fetch(p.kept, a.kept, int64_t{4} * heads);
}

Status CudaDevice::Unmark(Stream* s, const UnmarkArgs& a) {
  KVC_ENTER();
  const int32_t heads = a.layer.n_kv_heads;
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, 2 * Packet::Size<int32_t>(heads)));
  const UnmarkParams p{packet.Copy(a.layer.len, heads), packet.Copy(a.held, heads), a.n_sink, At(a.marks),
                       a.stride};
  KVC_RETURN_IF_ERROR(packet.Send());
  return Check(KVC_LAUNCH(unmark, dim3(static_cast<unsigned>(heads)), BlockOf(a.layer), 0, StreamOf(s), p),
               "selection");
}

}  // namespace kvc::cuda
