// The rows of a chunk into the layer: queries and keys turned, entries behind what is there. Bytes: q, k and
// v once.
#include "cuda/launch.h"
#include "cuda/layer_params.h"

namespace kvc::cuda {
namespace {

struct PlaceParams {
  LayerParams layer;
  Turn turn;
  const int32_t* base;  // [G]
  int32_t offset, n_heads, first_position;
  float* q;
  const float *k, *v;
};

// Block (i, g): row i, KV head g and its query heads.
__global__ void place(const PlaceParams p) {
  KVC_SHARED(float, angles);
  const int32_t i = static_cast<int32_t>(blockIdx.x), g = static_cast<int32_t>(blockIdx.y), d = p.layer.d,
                half = d / 2, heads = p.layer.n_heads, group = p.n_heads / heads;
  float *cos = angles, *sin = angles + half;
  const int64_t slot = p.base[g] + p.offset + i, position = p.first_position + p.offset + i,
                at = g * p.layer.capacity + slot;
  for (int32_t j = ThreadOfBlock(); j < half; j += BlockThreads())
    AngleOf(p.turn, p.turn.in_cache ? slot : position, j, p.turn.factor, cos + j, sin + j);
  __syncthreads();
  float* q = p.q + (static_cast<int64_t>(i) * p.n_heads + g * group) * d;
  for (int32_t x = ThreadOfBlock(); x < group * half; x += BlockThreads()) {
    float* row = q + x / half * d;
    const int32_t j = x % half;
    TurnPair(row, d, j, p.turn.pairing, cos[j], sin[j], row);
  }
  const float *k = p.k + (static_cast<int64_t>(i) * heads + g) * d,
              *v = p.v + (static_cast<int64_t>(i) * heads + g) * d;
  const LayerNumbers key = p.layer.Key(at), value = p.layer.Value(at);
  for (int32_t j = ThreadOfBlock(); j < half; j += BlockThreads()) {
    const int32_t a = FirstOfPair(j, p.turn.pairing), b = SecondOfPair(d, j, p.turn.pairing);
    key.Set(a, Turned(k[a], -k[b], cos[j], sin[j]));
    key.Set(b, Turned(k[b], k[a], cos[j], sin[j]));
  }
  for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads()) value.Set(j, v[j]);
  if (ThreadOfBlock() != 0) return;
  p.layer.positions[at] = static_cast<int32_t>(position);
  for (int32_t x = 0; x < p.layer.n_aux; ++x)
    p.layer.aux[static_cast<int64_t>(x) * heads * p.layer.capacity + at] = 0.0f;
  if (p.layer.has_seen) p.layer.seen[at] = ~0u;
}

}  // namespace

void AddPlaceKernels(KernelLoader* loader) { KVC_ADD(loader, place, 0); }

int64_t CudaDevice::PlaceScratchBytes(int32_t, int32_t) const { return 0; }

Status CudaDevice::Place(Stream* s, const PlaceArgs& a) {
  KVC_ENTER();
  const int32_t heads = a.layer.n_kv_heads;
  Packet packet;
  KVC_RETURN_IF_ERROR(
      packet.Begin(s, LayerBytes(a.layer) + Packet::Size<int32_t>(heads) + TurnBytes(a.turning.rope)));
  const LayerParams layer = LayerOf(a.layer, &packet);
  const PlaceParams p{layer,
                      TurnOf(a.turning, &packet),
                      packet.Copy(a.rows.base, heads),
                      a.rows.offset,
                      a.n_heads,
                      a.first_position,
                      At(a.q),
                      At(a.k),
                      At(a.v)};
  KVC_RETURN_IF_ERROR(packet.Send());
  const dim3 grid(static_cast<unsigned>(a.rows.n), static_cast<unsigned>(heads));
  KVC_RETURN_IF_ERROR(
      Check(KVC_LAUNCH(place, grid, dim3(128), static_cast<size_t>(layer.d) * sizeof(float), StreamOf(s), p),
            "placing rows"));
  for (int32_t g = 0; g < heads; ++g) a.layer.len[g] = a.rows.base[g] + a.rows.offset + a.rows.n;
  return {};
}

}  // namespace kvc::cuda
