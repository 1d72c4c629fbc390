// Scores from keys, values and queries alone, without attention, one head at a time. Pure arithmetic.
#pragma once
#include <cstdint>

#include "lib/ops/cache_ops.h"
#include "lib/ops/cpu/kernel_table.h"

namespace kvc::cpu {

// methods.md 2.20: the cosine of each of n keys [n, D] and the mean of their directions.
void CosineToMean(const KernelTable& kernels, const float* keys, int32_t n, int32_t d, float* out);

// methods.md 2.21: entries behind the first n_sink in parts of `size`; in every part but the last two (one of
// which may not be whole) their rank, 0 .. 1, by the mean of the softmaxes over the part of the standard
// deviations of keys and of values, scaled by range of the next part. Other entries: 2 and more, rising.
// scratch [2 * n], n >= D
void LagRanks(const float* keys, const float* values, int32_t n, int32_t d, int32_t n_sink, int32_t size,
              float* scratch, float* out);

// methods.md 2.22. Queries lose the rotation of their position; the row i of n_rows is of entry n_keys -
// n_rows
// + i, rows of the first n_sink positions are left out.
struct ExpectedArgs {
  const float* queries;  // [n_rows, query_stride], D of each
  int64_t query_stride;
  int32_t n_rows;
  const float* keys;         // [n_keys, D], rotated
  const int32_t* positions;  // [n_keys]
  int32_t n_keys, d, n_sink, n_future;
  float scale;
  KeyTurning turning;
  float* spread;  // scratch [2 * n_keys]
  float* out;     // [n_keys]: probabilities over the entries behind the first n_sink, 0 for those
  const float* sink = nullptr;  // one more logit
};
void ExpectedAttention(const KernelTable& kernels, const ExpectedArgs& args);

}  // namespace kvc::cpu
