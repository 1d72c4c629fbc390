#include "tests/fence/fence.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "tests/support/emulated.h"

namespace kvc::test {
namespace {

constexpr int64_t kMostAddresses = int64_t{1} << (kUnderQemu ? 32 : 42);  // QEMU 7.2 writes 24 bytes a page
constexpr int64_t kLeastAddresses = int64_t{1} << 26;
constexpr int64_t kFilled = 1 << 16;  // larger blocks may never be used whole

int64_t Pages(int64_t bytes) {
  static const int64_t page = sysconf(_SC_PAGESIZE);
  return (bytes + page - 1) / page * page;
}

struct sigaction before_us;  // of SIGSEGV

}  // namespace

Fence& Fence::OfProcess() {
  static Fence* fence = new Fence();  // sessions may be closed as the process ends
  return *fence;
}

Fence::Fence() {
  for (size_ = kMostAddresses; size_ >= kLeastAddresses; size_ /= 2) {
    void* at = mmap(nullptr, static_cast<size_t>(size_), PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) continue;
    base_ = static_cast<uint8_t*>(at);
    break;
  }
  struct sigaction ours {};
  ours.sa_sigaction = [](int, siginfo_t* info, void*) {
    const Fence& fence = OfProcess();
    const uint8_t* at = static_cast<const uint8_t*>(info->si_addr);
    if (at >= fence.base_ && at < fence.base_ + fence.size_) {
      static const char kText[] =
          "fence: device memory was touched outside an operation of the device (lib/ops/device.h)\n";
      if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) _exit(1);
    }
    sigaction(SIGSEGV, &before_us, nullptr);  // and the instruction faults again
  };
  ours.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &ours, &before_us);
}

void* Fence::Take(int64_t bytes, bool fill) {
  bytes = Pages(bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  Extent** link = &first_;
  uint8_t* at = base_;
  while (*link != nullptr && (*link)->at - at < bytes) {
    at = (*link)->at + (*link)->bytes;
    link = &(*link)->next;
  }
  if (base_ == nullptr || base_ + size_ - at < bytes) return nullptr;
  Extent* extent = new (std::nothrow) Extent{at, bytes, *link};
  if (extent == nullptr) return nullptr;
  *link = extent;
  used_ = std::max<int64_t>(used_, at + bytes - base_);
  held_ += bytes;
  const bool fills = fill && bytes <= kFilled;
  if (inside_ > 0 || fills) mprotect(at, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE);
  if (fills) std::memset(at, 0xff, static_cast<size_t>(bytes));
  if (inside_ == 0 && fills) mprotect(at, static_cast<size_t>(bytes), PROT_NONE);
  return at;
}

void Fence::Release(void* at) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Extent** link = &first_; *link != nullptr; link = &(*link)->next) {
    Extent* extent = *link;
    if (extent->at != at) continue;
    if (extent->bytes > kFilled) madvise(at, static_cast<size_t>(extent->bytes), MADV_DONTNEED);
    held_ -= extent->bytes;
    *link = extent->next;
    delete extent;
    return;
  }
}

void Fence::Forget(void* at, int64_t bytes) { madvise(at, static_cast<size_t>(bytes), MADV_DONTNEED); }

// The whole range at once: few system calls, and pages that are nowhere cost nothing.
void Fence::Protect(bool open) {
  if (used_ > 0) mprotect(base_, static_cast<size_t>(used_), open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

void Fence::Enter() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (inside_++ == 0) Protect(true);
}

void Fence::Leave() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (--inside_ == 0) Protect(false);
}

int64_t Fence::bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return held_;
}

}  // namespace kvc::test
