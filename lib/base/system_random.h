// Randomness of the system.
#pragma once
#include <cstddef>

namespace kvc {

bool SystemRandom(void* to, size_t n_bytes);  // at most 256 bytes; false: it has none to give

}  // namespace kvc
