#include "tests/support/heap_faults.h"

#include <malloc.h>

#include "tests/support/heap_pause.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> allocations{0}, bytes{0}, peak{0};
std::atomic<int64_t> fail_from{-1}, fail_end{-1};  // numbers of allocations that fail; -1: none
std::atomic<bool> has_fired{false};

void* Take(size_t n, size_t alignment) {
  const bool counts = kvc::test::heap_pauses == 0;
  const int64_t number = counts ? allocations.fetch_add(1) : -1;
  const int64_t from = fail_from.load();
  if (counts && from >= 0 && number >= from && number < fail_end.load()) {
    has_fired = true;
    return nullptr;
  }
  void* p = nullptr;
  if (alignment <= alignof(std::max_align_t)) {
    p = std::malloc(n > 0 ? n : 1);
  } else if (::posix_memalign(&p, alignment, n) != 0) {
    p = nullptr;
  }
  if (p == nullptr) return p;
  const auto n_bytes = static_cast<int64_t>(::malloc_usable_size(p));
  const int64_t now = bytes.fetch_add(n_bytes) + n_bytes;
  for (int64_t most = peak.load(); now > most && !peak.compare_exchange_weak(most, now);) {
  }
  return p;
}

void* TakeOrThrow(size_t n, size_t alignment) {
  void* p = Take(n, alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

void Give(void* p) {
  if (p == nullptr) return;
  bytes -= static_cast<int64_t>(::malloc_usable_size(p));
  std::free(p);
}

constexpr size_t kPlain = alignof(std::max_align_t);

}  // namespace

void* operator new(size_t n) { return TakeOrThrow(n, kPlain); }
void* operator new[](size_t n) { return TakeOrThrow(n, kPlain); }
void* operator new(size_t n, const std::nothrow_t&) noexcept { return Take(n, kPlain); }
void* operator new[](size_t n, const std::nothrow_t&) noexcept { return Take(n, kPlain); }
void* operator new(size_t n, std::align_val_t a) { return TakeOrThrow(n, static_cast<size_t>(a)); }
void* operator new[](size_t n, std::align_val_t a) { return TakeOrThrow(n, static_cast<size_t>(a)); }
void* operator new(size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return Take(n, static_cast<size_t>(a));
}
void* operator new[](size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return Take(n, static_cast<size_t>(a));
}
void operator delete(void* p) noexcept { Give(p); }
void operator delete[](void* p) noexcept { Give(p); }
void operator delete(void* p, size_t) noexcept { Give(p); }
void operator delete[](void* p, size_t) noexcept { Give(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { Give(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { Give(p); }
void operator delete(void* p, std::align_val_t) noexcept { Give(p); }
void operator delete[](void* p, std::align_val_t) noexcept { Give(p); }
void operator delete(void* p, size_t, std::align_val_t) noexcept { Give(p); }
void operator delete[](void* p, size_t, std::align_val_t) noexcept { Give(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { Give(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { Give(p); }

namespace kvc::test {

int64_t HeapAllocations() { return allocations.load(); }
int64_t HeapBytes() { return bytes.load(); }
int64_t HeapPeak() { return peak.load(); }
void ResetHeapPeak() { peak = bytes.load(); }

HeapFault::HeapFault(int64_t at, Mode mode) {
  has_fired = false;
  const int64_t from = allocations.load() + at;
  fail_end = mode == kOne ? from + 1 : INT64_MAX;
  fail_from = from;
}

HeapFault::~HeapFault() { Stop(); }
void HeapFault::Stop() { fail_from = -1; }
bool HeapFault::fired() const { return has_fired.load(); }

}  // namespace kvc::test
