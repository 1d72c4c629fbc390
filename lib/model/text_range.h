#pragma once
#include <cstdint>

namespace kvc {

// The bytes [begin, end) of some text. 32 bits: a text has less than 2 GiB.
struct TextRange {
  uint32_t begin = 0, end = 0;
};

}  // namespace kvc
