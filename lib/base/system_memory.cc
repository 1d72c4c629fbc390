#include "lib/base/system_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace kvc {
namespace {

void* Mapped(void* at) { return at == MAP_FAILED ? nullptr : at; }

#if defined(__linux__)
constexpr int kDropLocked = 24;  // MADV_DONTNEED_LOCKED of Linux 5.18, which not every header knows
#endif

// Private pages nobody needs any more. Where the program locks its memory (mlockall) Linux keeps them, unless
// it is told that locked ones are meant too.
bool Drop(void* at, int64_t n_bytes) {
#if defined(__APPLE__)  // there MADV_DONTNEED keeps the content; fresh pages over the old ones let it go
  return ::mmap(at, static_cast<size_t>(n_bytes), PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
#else
  if (::madvise(at, static_cast<size_t>(n_bytes), MADV_DONTNEED) == 0) return true;
#if defined(__linux__)
  if (errno == EINVAL) return ::madvise(at, static_cast<size_t>(n_bytes), kDropLocked) == 0;
#endif
  return false;
#endif
}

}  // namespace

int64_t PageBytes() { return ::sysconf(_SC_PAGESIZE); }

int64_t PhysicalBytes() {
  const int64_t pages = ::sysconf(_SC_PHYS_PAGES);
  return pages > 0 ? pages * PageBytes() : 0;
}

void* MapBlock(int64_t n_bytes) {
  if (!kMapsBlocks || n_bytes < kLeastMapBytes) return nullptr;
  return Mapped(::mmap(nullptr, static_cast<size_t>(n_bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

void UnmapBlock(void* block, int64_t n_bytes) { ::munmap(block, static_cast<size_t>(n_bytes)); }

#if defined(MADV_HUGEPAGE)
constexpr uintptr_t kHugePage = 2 << 20;
int64_t HugePageBytes() { return kHugePage; }
#else
int64_t HugePageBytes() { return 0; }
#endif

void AskForHugePages([[maybe_unused]] void* at, [[maybe_unused]] int64_t n_bytes) {
#if defined(MADV_HUGEPAGE)
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(at) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end =
      (reinterpret_cast<uintptr_t>(at) + static_cast<uintptr_t>(n_bytes)) / kHugePage * kHugePage;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

bool DropBlockPages(void* at, int64_t n_bytes) { return Drop(at, n_bytes); }

int64_t MapOffsetUnit() { return PageBytes(); }

void* MapFile(int fd, int64_t offset, int64_t n_bytes) {
  return Mapped(::mmap(nullptr, static_cast<size_t>(n_bytes), PROT_READ, MAP_PRIVATE, fd, offset));
}

void UnmapFile(void* at, int64_t n_bytes) { ::munmap(at, static_cast<size_t>(n_bytes)); }

bool DropFilePages(void* at, int64_t n_bytes) {
  return ::madvise(at, static_cast<size_t>(n_bytes), MADV_DONTNEED) == 0;
}

void* ReserveAddresses(int64_t n_bytes) {
  return Mapped(::mmap(nullptr, static_cast<size_t>(n_bytes), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
}

void UnreserveAddresses(void* at, int64_t n_bytes) { ::munmap(at, static_cast<size_t>(n_bytes)); }

bool CommitPages(void* at, int64_t n_bytes) {
  return ::mprotect(at, static_cast<size_t>(n_bytes), PROT_READ | PROT_WRITE) == 0;
}

bool DecommitPages(void* at, int64_t n_bytes) { return Drop(at, n_bytes); }

}  // namespace kvc
