// How a processor gets most out of memory. Measured: docs/performance.md, "How weights are read".
#pragma once
#include <cstdint>

namespace kvc {

enum class Streams : uint8_t {
  kSeveral,  // side by side, with lines asked for ahead (Intel's)
  kOne,      // one after the other, lines into the second cache first (AMD's up to Zen 4)
  kOneFar,   // one, with lines asked for far ahead, into the nearest cache (Zen 5 and later)
};

}  // namespace kvc
