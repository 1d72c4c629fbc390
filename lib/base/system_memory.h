// Memory straight from the system: large blocks, mapped files, reserved addresses. Every call that fails
// leaves the reason in errno.
#pragma once
#include <cstdint>

namespace kvc {

int64_t PageBytes();
int64_t PhysicalBytes();  // of this machine; 0: unknown

// ---- large blocks
// What a heap gets back it may keep, and the larger the blocks it has seen, the more; these leave the process
// at once.

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
// What a large page has and begins at a multiple of; 0: this system has none to be asked for.
int64_t HugePageBytes();
// Fewer, larger pages for the inside of a block, or of a mapped file, that is read over and over: a hint.
void AskForHugePages(void* at, int64_t n_bytes);
// Whole pages of a block: the memory goes, the addresses stay usable, what is there is undefined. False: it
// stayed.
bool DropBlockPages(void* at, int64_t n_bytes);

// ---- files, read-only

// Offsets at which a mapping may begin are multiples of it.
int64_t MapOffsetUnit();
void* MapFile(int fd, int64_t offset, int64_t n_bytes);  // null: it cannot be mapped
void UnmapFile(void* at, int64_t n_bytes);
// Whole pages of a mapping: they come back from the file when they are read again. False: they stayed.
bool DropFilePages(void* at, int64_t n_bytes);

// ---- addresses without memory, and memory behind whole pages of them

void* ReserveAddresses(int64_t n_bytes);  // null: there are not so many
void UnreserveAddresses(void* at, int64_t n_bytes);
bool CommitPages(void* at, int64_t n_bytes);
// The memory goes, the addresses stay usable. False: some of it stayed.
bool DecommitPages(void* at, int64_t n_bytes);

}  // namespace kvc
