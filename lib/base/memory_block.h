// Large blocks straight from the system. What a heap gets back it may keep, and the larger the blocks it has
// seen, the more; these leave the process at once.
#pragma once
#include <cstdint>

namespace kvc {

constexpr int64_t kLeastMapBytes = 256 * 1024;  // below it a block of its own is a waste

// Aligned to a page, or null where there is none to be had: then the heap is the place. Under
// AddressSanitizer always null, as it watches the heap only.
void* MapBlock(int64_t n_bytes);
void UnmapBlock(void* block, int64_t n_bytes);

}  // namespace kvc
