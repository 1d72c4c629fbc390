// Large blocks straight from the system. What a heap gets back it may keep, and the larger the blocks it has
// seen, the more; these leave the process at once.
#pragma once
#include <cstdint>

namespace kvc {

constexpr int64_t kLeastMapBytes = 256 * 1024;  // below it a block of its own is a waste

// False under AddressSanitizer, which watches the heap only.
#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMapsBlocks = false;
#elif defined(__has_feature)
constexpr bool kMapsBlocks = !__has_feature(address_sanitizer);
#else
constexpr bool kMapsBlocks = true;
#endif

// Aligned to a page, or null where there is none to be had, or none are mapped: then the heap is the place.
void* MapBlock(int64_t n_bytes);
void UnmapBlock(void* block, int64_t n_bytes);

}  // namespace kvc
