#include "lib/ops/cpu/codebook.h"

#include <algorithm>
#include <cmath>

namespace kvc::cpu {

float Normalise(const KernelTable& kernels, const float* x, int32_t d, float* unit) {
  const float magnitude = std::sqrt(kernels.dot(x, x, d));
  if (magnitude > 0) {
    for (int32_t j = 0; j < d; ++j) unit[j] = x[j] / magnitude;
  }
  return magnitude;
}

// Repeatedly the alive vertex with the largest degree, ties the smallest index, takes its neighbours with it.
// Rows of the graph are recomputed when a vertex leaves, so the graph is never stored.
int32_t CoverOpen(const KernelTable& kernels, int32_t n_open, int32_t d, float theta, int32_t n_existing,
                  CodedVector* codes, float* added, const CodeSpace& space, bool magnitudes) {
  const auto unit = [&](int32_t a) { return space.units + int64_t{space.open[a]} * d; };
  const auto adjacent = [&](int32_t a, int32_t b) -> int32_t {
    return a == b || kernels.dot(unit(a), unit(b), d) > theta;
  };
  std::fill(space.alive, space.alive + n_open, uint8_t{1});
  for (int32_t a = 0; a < n_open; ++a) {
    space.degree[a] = 0;
    for (int32_t b = 0; b < n_open; ++b) space.degree[a] += adjacent(a, b);
  }
  int32_t n_added = 0;
  for (;; ++n_added) {
    int32_t best = -1, n_members = 0;
    for (int32_t a = 0; a < n_open; ++a) {
      if (space.alive[a] != 0 && (best < 0 || space.degree[a] > space.degree[best])) best = a;
    }
    if (best < 0) return n_added;
    for (int32_t b = 0; b < n_open; ++b) {
      if (space.alive[b] != 0 && adjacent(best, b)) space.members[n_members++] = b;
    }
    for (int32_t m = 0; m < n_members; ++m) space.alive[space.members[m]] = 0;
    for (int32_t m = 0; m < n_members; ++m) {
      for (int32_t b = 0; b < n_open; ++b) {
        if (space.alive[b] != 0) space.degree[b] -= adjacent(space.members[m], b);
      }
    }
    const float length = magnitudes ? 1.0f : codes[space.open[best]].magnitude;
    for (int32_t j = 0; j < d; ++j) added[int64_t{n_added} * d + j] = length * unit(best)[j];
    for (int32_t m = 0; m < n_members; ++m)
      codes[space.open[space.members[m]]].ref = static_cast<uint32_t>(n_existing + n_added);
  }
}

}  // namespace kvc::cpu
