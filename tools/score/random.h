// Draws of head scoring: Philox4x32-10 by counter, so that every worker can make every sample
// (docs/head-scores.md).
#pragma once
#include <array>
#include <cstdint>
#include <vector>

namespace kvc::tool {

// Four output words for one counter. Key = (low, high) word of the seed.
std::array<uint32_t, 4> PhiloxWords(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t seed);

// Permutation of 0 .. n-1 of work item (run, size, sample): Fisher-Yates from the end.
std::vector<int32_t> Permutation(uint64_t seed, uint32_t run, uint32_t size, uint32_t sample, int32_t n);

// The validation part of n examples: the first round-half-up(share * n) of them, at least one, in the order
// of their draws; ascending. share in (0, 1].
std::vector<int32_t> ValidationExamples(uint64_t seed, int32_t n, double share);

}  // namespace kvc::tool
