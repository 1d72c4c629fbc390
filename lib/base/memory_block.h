// Large blocks straight from the system. What a heap gets back it may keep, and the larger the blocks it has
// seen, the more; these leave the process at once.
#pragma once
#include <cstdint>

namespace kvc {

// Below it a block of its own is a waste: of the last page half is empty on average, and a call into the
// system costs as much as touching a few pages. Not higher either. A C library maps large blocks by itself,
// but where "large" begins may move up with every block that it gets back (glibc: from 128 KiB to 32 MiB),
// and below that whatever lies under a block in use stays. What is left to the heap is so little that it may
// keep all of it.
constexpr int64_t kLeastMapBytes = 32 * 1024;

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
