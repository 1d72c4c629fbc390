#include "lib/base/memory_block.h"

#include <sys/mman.h>

#include <cstddef>

namespace kvc {

void* MapBlock(int64_t n_bytes) {
  if (!kMapsBlocks || n_bytes < kLeastMapBytes) return nullptr;
  void* block = ::mmap(nullptr, static_cast<size_t>(n_bytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return block == MAP_FAILED ? nullptr : block;
}

void UnmapBlock(void* block, int64_t n_bytes) { ::munmap(block, static_cast<size_t>(n_bytes)); }

}  // namespace kvc
