// The fastest way to read memory that is known here, for measuring what it gives.
#pragma once
#include <cstdint>

namespace kvc {

// The sum of n words, n a multiple of 256: four parts are read side by side, lines asked for half a page
// ahead, as products with weights do (lib/ops/cpu/panels.inl.h). One part after the other gives an eighth
// less.
__attribute__((always_inline)) inline uint64_t SumSideBySide(const uint64_t* at, int64_t n) {
  constexpr int kParts = 4, kLine = 8;
  constexpr int64_t kAhead = 2048 / sizeof(uint64_t);
  const int64_t part = n / kParts;
  uint64_t sums[kLine] = {};
  for (int64_t i = 0; i < part; i += kLine) {
    for (int p = 0; p < kParts; ++p) __builtin_prefetch(at + p * part + i + kAhead, 0, 3);
    for (int p = 0; p < kParts; ++p) {
      for (int j = 0; j < kLine; ++j) sums[j] += at[p * part + i + j];
    }
  }
  uint64_t all = 0;
  for (const uint64_t sum : sums) all += sum;
  return all;
}

}  // namespace kvc
