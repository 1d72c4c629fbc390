// Memory of the processor, and copies within it.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/raw.h"

namespace kvc::cpu {
namespace {

constexpr int64_t kLeastReservation = 16 << 20;

class CpuStream final : public Stream {};

}  // namespace

Result<std::unique_ptr<Stream>> CpuDevice::NewStream() { return std::unique_ptr<Stream>(new CpuStream()); }

Status CpuDevice::Allocate(int64_t bytes, const char* what, DeviceBytes* out) {
  void* at = ::operator new (static_cast<size_t>(bytes), std::align_val_t{64}, std::nothrow);
  *out = AddressOf(static_cast<uint8_t*>(at));
  if (at != nullptr) return {};
  return Error(Code::kMemory, "no memory for %s: %lld bytes", what, static_cast<long long>(bytes));
}

void CpuDevice::Free(DeviceBytes at, int64_t) {
  ::operator delete (Raw(at), std::align_val_t{64});
}

// Address space only: nothing of it can be touched before Commit. Halved until the system agrees, which limits on
// address space may make necessary.
int64_t CpuDevice::Reserve(int64_t bytes, DeviceBytes* out) {
  const int64_t granule = info_.granule, physical = sysconf(_SC_PHYS_PAGES) * granule;
  if (physical > 0) bytes = std::min(bytes, 2 * physical);  // with swap, more than can ever be held
  for (bytes = (bytes + granule - 1) / granule * granule; bytes >= kLeastReservation; bytes = bytes / 2 / granule * granule) {
    void* at = mmap(nullptr, static_cast<size_t>(bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) continue;
    *out = AddressOf(static_cast<uint8_t*>(at));
    return bytes;
  }
  *out = {};
  return 0;
}

void CpuDevice::Unreserve(DeviceBytes at, int64_t bytes) { munmap(Raw(at), static_cast<size_t>(bytes)); }

Status CpuDevice::Commit(DeviceBytes at, int64_t bytes) {
  if (mprotect(Raw(at), static_cast<size_t>(bytes), PROT_READ | PROT_WRITE) == 0) return {};
  return Error(Code::kMemory, "no memory for the KV cache: %lld bytes (%s)", static_cast<long long>(bytes),
               std::strerror(errno));
}

// The memory goes, the addresses stay usable: what comes next there is zero.
void CpuDevice::Decommit(DeviceBytes at, int64_t bytes) { madvise(Raw(at), static_cast<size_t>(bytes), MADV_DONTNEED); }

Status CpuDevice::Write(Stream*, DeviceBytes to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(Raw(to), from, static_cast<size_t>(bytes));
  return {};
}

Status CpuDevice::Read(Stream*, DevicePtr<const uint8_t> from, void* to, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, Raw(from), static_cast<size_t>(bytes));
  return {};
}

Status CpuDevice::Copy(Stream*, Span<const PageCopy> copies) {
  for (const PageCopy& c : copies) std::memcpy(Raw(c.to), Raw(c.from), static_cast<size_t>(c.bytes));
  return {};
}

Status CpuDevice::Zero(Stream*, DeviceBytes at, int64_t bytes) {
  if (bytes > 0) std::memset(Raw(at), 0, static_cast<size_t>(bytes));
  return {};
}

}  // namespace kvc::cpu
