// Which experts work on which rows, and what they give together.
#pragma once
#include "cuda/stream.h"
#include "cuda/weights.h"

namespace kvc::cuda {

// Pairs of a row and an expert that works on it, row by row, the experts of each by number; their places are
// by expert.
struct RouteParams {
  int32_t n, n_experts, n_chosen;
  bool normalise;       // the weights of a row's experts add up to 1
  const float* logits;  // [n, n_experts] of the router
  float* weights;       // [n, n_chosen]
  int32_t* chosen;      // [n, n_chosen]
  int32_t* places;      // [n, n_chosen]
  int32_t* tokens;      // [n * n_chosen] row of the pair in a place
  ExpertTile* tiles;    // [n_tiles], of up to `tile` places
  int32_t n_tiles, tile;
};
// Tiles that n pairs make at most, whatever is chosen.
inline int64_t MostExpertTiles(int64_t pairs, int32_t n_experts, int32_t tile) {
  const int64_t most = pairs / tile + n_experts;
  return pairs < most ? pairs : most;
}
// As lib/ops/cpu/experts.h. The host is not asked.
cudaError_t Route(const RouteParams& p, CudaStream& stream);

// y [n, width] = sums of weights * rows of `given` [pairs, width] by place; or y += scale * those.
struct CombineParams {
  int32_t n, n_chosen, width;
  const float *given, *weights;
  const int32_t* places;
  float* y;
  bool adds;
  float scale;
};
cudaError_t Combine(const CombineParams& p, CudaStream& stream);

}  // namespace kvc::cuda
