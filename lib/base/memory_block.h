// Large blocks straight from the system. What a heap gets back it may keep; these leave the process at once.
#pragma once
#include <cstdint>

namespace kvc {

constexpr int64_t kLeastMapBytes = 128 * 1024;  // bytes; below it a block of its own is a waste

// Aligned to a page, or null where there is none to be had: then the heap is the place. Under
// AddressSanitizer always null, as it watches the heap only.
void* MapBlock(int64_t n_bytes);
void UnmapBlock(void* block, int64_t n_bytes);

}  // namespace kvc
