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
// Products are computed when they are asked about, so the graph is never stored; each side has the same to
// the bit, and a degree says when there are no more neighbours to be found. Vectors of which few point the
// same way, the most of what there is, are compared once.
int32_t CoverOpen(const KernelTable& kernels, int32_t n_open, int32_t d, float theta, int32_t n_existing,
                  CodedVector* codes, float* added, const CodeSpace& space, bool magnitudes) {
  const auto unit = [&](int32_t a) { return space.units + int64_t{space.open[a]} * d; };
  const auto adjacent = [&](int32_t a, int32_t b) { return kernels.dot(unit(a), unit(b), d) > theta; };
  std::fill(space.alive, space.alive + n_open, uint8_t{1});
  std::fill(space.degree, space.degree + n_open, 1);  // of the alive ones, itself among them
  for (int32_t a = 0; a < n_open; ++a) {
    for (int32_t b = a + 1; b < n_open; ++b) {
      if (adjacent(a, b)) ++space.degree[a], ++space.degree[b];
    }
  }
  int32_t n_added = 0;
  for (;; ++n_added) {
    int32_t best = -1, n_members = 0;
    for (int32_t a = 0; a < n_open; ++a) {
      if (space.alive[a] != 0 && (best < 0 || space.degree[a] > space.degree[best])) best = a;
    }
    if (best < 0) return n_added;
    for (int32_t b = 0; b < n_open && n_members < space.degree[best]; ++b) {
      if (b == best || (space.degree[best] > 1 && space.alive[b] != 0 && adjacent(best, b)))
        space.members[n_members++] = b;
    }
    for (int32_t m = 0; m < n_members; ++m) space.alive[space.members[m]] = 0;
    for (int32_t m = 0; m < n_members; ++m) {
      const int32_t member = space.members[m];
      // Not itself, nor the best, whose neighbours all leave.
      int32_t left = member == best ? 0 : space.degree[member] - 2;
      for (int32_t b = 0; b < n_open && left > 0; ++b) {
        if (space.alive[b] != 0 && adjacent(member, b)) --space.degree[b], --left;
      }
    }
    const float length = magnitudes ? 1.0f : codes[space.open[best]].magnitude;
    for (int32_t j = 0; j < d; ++j) added[int64_t{n_added} * d + j] = length * unit(best)[j];
    for (int32_t m = 0; m < n_members; ++m)
      codes[space.open[space.members[m]]].ref = static_cast<uint32_t>(n_existing + n_added);
  }
}

}  // namespace kvc::cpu
