#include "lib/base/memory_block.h"

#include <sys/mman.h>

#include <cstddef>

#ifdef __has_feature
#define KVC_HAS_FEATURE(feature) __has_feature(feature)
#else
#define KVC_HAS_FEATURE(feature) 0
#endif

namespace kvc {

void* MapBlock(int64_t n_bytes) {
#if defined(__SANITIZE_ADDRESS__) || KVC_HAS_FEATURE(address_sanitizer)
  static_cast<void>(n_bytes);
  return nullptr;
#else
  if (n_bytes < kLeastMapBytes) return nullptr;
  void* block = ::mmap(nullptr, static_cast<size_t>(n_bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return block == MAP_FAILED ? nullptr : block;
#endif
}

void UnmapBlock(void* block, int64_t n_bytes) { ::munmap(block, static_cast<size_t>(n_bytes)); }

}  // namespace kvc
