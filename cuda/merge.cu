// Merging in a layer at full length, a block a head.
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
  int64_t stride, sort_stride;
  int32_t* links;
  float* lines;
  uint64_t* keys;
};

struct LayerValues {
  float* values;
  int32_t d;
  KVC_DEVICE void Add(int32_t to, float factor, int32_t from) const {
    for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads())
      values[static_cast<int64_t>(to) * d + j] += factor * values[static_cast<int64_t>(from) * d + j];
  }
  KVC_DEVICE void Mix(int32_t gone, float a_gone, int32_t next, float a_next) const {
    for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads()) {
      float* to = values + static_cast<int64_t>(next) * d + j;
      *to = MixOf(a_gone, values[static_cast<int64_t>(gone) * d + j], a_next, *to);
    }
  }
};

__global__ void __launch_bounds__(kBlock) merge_values(const MergeParams p) {
  __shared__ BlockSpace space;
  const int32_t g = static_cast<int32_t>(blockIdx.x);
  const auto aux = [&](int32_t x) -> const float* {
    return x < 0 ? nullptr : p.layer.aux + (static_cast<int64_t>(x) * p.layer.n_heads + g) * p.layer.capacity;
  };
  const LayerValues values{p.layer.values + g * p.layer.capacity * p.layer.d, p.layer.d};
  BlockMergeDropped({p.rule, p.marks + g * p.stride, aux(p.rule.sums), aux(p.rule.counts),
                     p.layer.positions + g * p.layer.capacity, p.layer.len[g], p.layer.d,
                     static_cast<uint32_t>(p.first_head + g), p.links + g * (2 * p.stride + 1),
                     p.lines + g * p.stride, p.keys + g * p.sort_stride},
                    values, &space);
}

}  // namespace

void AddMergeKernels(KernelLoader* loader) { KVC_ADD(loader, merge_values, 0); }

Status CudaDevice::Merge(Stream* s, const MergeArgs& a) {
  KVC_ENTER();
  const int64_t heads = a.layer.n_kv_heads;
  const int64_t sort_stride = PowerOfTwoFrom(a.stride);
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, LayerBytes(a.layer)));
  MergeParams p{};
  p.layer = LayerOf(a.layer, &packet);
  p.rule = a.rule, p.first_head = static_cast<int32_t>(a.layer_index * heads);
  p.marks = At(a.marks), p.stride = a.stride, p.sort_stride = sort_stride;
  Scratch scratch(At(a.scratch), SelectScratchBytes(a.layer.n_kv_heads, a.stride));
  p.links = scratch.Take<int32_t>(heads * (2 * a.stride + 1));
  p.lines = scratch.Take<float>(heads * a.stride);
  p.keys = scratch.Take<uint64_t>(heads * sort_stride);
  KVC_RETURN_IF_ERROR(scratch.Check());
  KVC_RETURN_IF_ERROR(packet.Send());
  return Check(KVC_LAUNCH(merge_values, dim3(static_cast<unsigned>(heads)), dim3(kBlock), 0, StreamOf(s), p),
               "merging");
}

}  // namespace kvc::cuda
