// SpindleKV's codebooks: vectors that point the same way share one direction (methods.md 2.16 d). Pure
// arithmetic on one head.
#pragma once
#include <cmath>
#include <cstdint>

#include "lib/ops/cpu/kernel_table.h"
#include "lib/ops/page_format.h"

namespace kvc::cpu {

// What coding n vectors of size d needs beside its result.
struct CodeSpace {
  float* units;                      // [n, d]
  int32_t *open, *degree, *members;  // [n]
  uint8_t* alive;                    // [n]
  static int64_t Floats(int64_t n, int32_t d) { return n * d + 3 * n + (n + 3) / 4; }
  CodeSpace(float* at, int64_t n, int32_t d)
      : units(at),
        open(reinterpret_cast<int32_t*>(at + n * d)),
        degree(open + n),
        members(degree + n),
        alive(reinterpret_cast<uint8_t*>(members + n)) {}
};

// Codes x [n, d]: first by the nearest of the n_existing directions with cosine > theta (ties: lowest index),
// then the rest by a greedy cover of their similarity graph, whose centres go to `added` [at most n, d] (refs
// count on from n_existing). A zero vector has magnitude 0 and ref 0; when there is no direction at all one
// is made for it. Without magnitudes a direction keeps the length of the vector it came from, and every
// vector that refers to it takes that. Returns how many directions were added. existing(i) -> const float*
// [d]. O(n * (n_existing
// + n) * d) time.
template <typename Existing>
int32_t CodeVectors(const KernelTable& kernels, const float* x, int32_t n, int32_t d, float theta,
                    int32_t n_existing, Existing&& existing, CodedVector* codes, float* added,
                    const CodeSpace& space, bool magnitudes = true);

// The cover of the `n_open` vectors listed in space.open: appends each centre's direction, and points its
// members at it.
int32_t CoverOpen(const KernelTable& kernels, int32_t n_open, int32_t d, float theta, int32_t n_existing,
                  CodedVector* codes, float* added, const CodeSpace& space, bool magnitudes);
// codes[i].magnitude, space.units[i].
float Normalise(const KernelTable& kernels, const float* x, int32_t d, float* unit);

template <typename Existing>
int32_t CodeVectors(const KernelTable& kernels, const float* x, int32_t n, int32_t d, float theta,
                    int32_t n_existing, Existing&& existing, CodedVector* codes, float* added,
                    const CodeSpace& space, bool magnitudes) {
  int32_t n_open = 0;
  for (int32_t i = 0; i < n; ++i) {
    float* unit = space.units + int64_t{i} * d;
    codes[i] = {0, Normalise(kernels, x + int64_t{i} * d, d, unit)};
    if (!(codes[i].magnitude > 0)) continue;
    float best = theta;
    bool found = false;
    for (int32_t e = 0; e < n_existing; ++e) {
      float cosine = kernels.dot(unit, existing(e), d);
      if (!magnitudes) {
        const float length = std::sqrt(kernels.dot(existing(e), existing(e), d));
        cosine = length > 0 ? cosine / length : 0.0f;
      }
      if (cosine > best) best = cosine, codes[i].ref = static_cast<uint32_t>(e), found = true;
    }
    if (!found) space.open[n_open++] = i;
  }
  const int32_t n_added = CoverOpen(kernels, n_open, d, theta, n_existing, codes, added, space, magnitudes);
  for (int32_t i = 0; !magnitudes && i < n; ++i) codes[i].magnitude = codes[i].magnitude > 0 ? 1.0f : 0.0f;
  if (n == 0 || n_existing + n_added > 0) return n_added;
  for (int32_t j = 0; j < d; ++j) added[j] = 0;
  return 1;
}

}  // namespace kvc::cpu
