// SpindleKV's codebooks: vectors that point the same way share one direction (methods.md 2.16 d). Pure
// arithmetic on one head.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lib/ops/kernel_table.h"

namespace kvc {

// A stored vector is magnitude * direction[ref].
struct CodedVector {
  uint32_t ref;
  float magnitude;
};

// The directions there are already: entry i of at(i) -> const float* [d].
struct DirectionSource {
  const void* owner = nullptr;
  const float* (*at)(const void* owner, int32_t i) = nullptr;
  int32_t n = 0;
};

// What coding needs beside its result. After Reserve, n vectors of size d at a time allocate nothing.
struct CodeScratch {
  std::vector<float> units;  // [n, d]
  std::vector<int32_t> open, degree;
  std::vector<size_t> members;
  std::vector<uint8_t> alive;
  void Reserve(int32_t n, int32_t d);
};

// Codes x [n, d]: first by the nearest direction of `existing` with cosine > theta (ties: lowest index), then
// the rest by a greedy cover of their similarity graph, whose centres are appended to `added` [*, d] (refs
// count on from existing.n). A zero vector has magnitude 0 and ref 0; when there is no direction at all one
// is made for it. O(n * (existing.n + n) * d) time, O(n * d) memory.
void CodeVectors(const KernelTable& kernels, const float* x, int32_t n, int32_t d, float theta,
                 const DirectionSource& existing, CodedVector* codes, std::vector<float>* added,
                 CodeScratch* scratch);

}  // namespace kvc
