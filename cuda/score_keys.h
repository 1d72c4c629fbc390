// Scores from keys, values and queries alone, without attention (methods.md 2.20 to 2.22).
#pragma once
#include "cuda/layer_params.h"
#include "lib/ops/score_ops.h"

namespace kvc::cuda {

constexpr bool IsOfKeys(ScoreOp op) {
  return op == ScoreOp::kKeyCosine || op == ScoreOp::kLag || op == ScoreOp::kExpected;
}
// Scratch that these instructions of a program want.
int64_t KeyScoreBytes(const ScoreShape& s);

struct KeyScores {
  LayerParams layer;
  Turn turn;  // of the recorded queries
  int32_t n_heads, n_rows, longest;
  float scale;
  const float* queries;  // [rows, H, D]
  const float* sinks;    // [H], null: none
  float *out, *line;     // of KV head g at + g * step; line: scratch
  int64_t out_step, line_step;
  float* per_head;  // [H, stride], what kExpected writes; the others write `out`
  int64_t stride;
  double* sums;  // KeyScoreBytes
};

cudaError_t ScoreKeys(const KeyScores& k, const ScoreInstr& i, CudaStream& stream);

}  // namespace kvc::cuda
