// Memory of the processor, and copies within it.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>

#include "lib/base/side_by_side.h"
#include "lib/base/system_memory.h"
#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/raw.h"

namespace kvc::cpu {
namespace {

constexpr int64_t kLeastReservation = 16 << 20;
// From here on blocks come from the system and go back there.
constexpr int64_t kLargeBlock = kMapsBlocks ? kLeastMapBytes : INT64_MAX;

class CpuStream final : public Stream {};

}  // namespace

Result<std::unique_ptr<Stream>> CpuDevice::NewStream() { return std::unique_ptr<Stream>(new CpuStream()); }

Status CpuDevice::Allocate(int64_t bytes, const char* what, DeviceBytes* out) {
  void* at = bytes >= kLargeBlock
                 ? MapBlock(bytes)
                 : ::operator new (static_cast<size_t>(bytes), std::align_val_t{64}, std::nothrow);
  *out = AddressOf(static_cast<uint8_t*>(at));
  if (at != nullptr) return {};
  return Error(Code::kMemory, "no memory for %s: %lld bytes", what, static_cast<long long>(bytes));
}

Status CpuDevice::AllocateWeights(int64_t bytes, DeviceBytes* out) {
  *out = AddressOf(weights_.Take(bytes));
  return *out ? Status() : Allocate(bytes, "weights in panels", out);
}

void CpuDevice::Free(DeviceBytes at, int64_t bytes) {
  if (weights_.Return(Raw(at), bytes)) return;
  if (bytes >= kLargeBlock) return UnmapBlock(Raw(at), bytes);
  ::operator delete (Raw(at), std::align_val_t{64});
}

// The best of several passes of all threads over a block that no cache holds; other work on the machine makes
// some slow.
Result<double> CpuDevice::MeasureBandwidth() {
  constexpr int64_t kBytes = 256 << 20, kPart = 1 << 20, kWords = kPart / 8;
  constexpr int kPasses = 8;
  DeviceBytes memory;
  KVC_RETURN_IF_ERROR(Allocate(kBytes, "a measurement", &memory));
  AskForHugePages(Raw(memory), kBytes);  // as weights in panels lie in them
  uint64_t* block = reinterpret_cast<uint64_t*>(Raw(memory));
  std::atomic<uint64_t> sum{0};
  double best = 0;
  for (int pass = 0; pass <= kPasses; ++pass) {
    const auto begin = std::chrono::steady_clock::now();
    pool_->ParallelFor(kBytes / kPart, [&](int64_t part, int) {
      uint64_t* at = block + part * kWords;
      if (pass == 0)
        std::fill_n(at, kWords, uint64_t{1});  // pages that nothing was written to are all the same one
      sum.fetch_add(SumSideBySide(at, kWords), std::memory_order_relaxed);
    });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    if (pass > 0) best = std::max(best, static_cast<double>(kBytes) / seconds.count());
  }
  Free(memory, kBytes);
  if (sum.load() != uint64_t{kBytes / 8} * (kPasses + 1))
    return Error(Code::kDevice, "memory does not hold what was written");
  return best;
}

// Address space only: nothing of it can be touched before Commit. Halved until the system agrees, which
// limits on address space may make necessary.
int64_t CpuDevice::Reserve(int64_t bytes, DeviceBytes* out) {
  const int64_t granule = info_.granule, physical = PhysicalBytes();
  if (physical > 0) bytes = std::min(bytes, 2 * physical);  // with swap, more than can ever be held
  for (bytes = (bytes + granule - 1) / granule * granule; bytes >= kLeastReservation;
       bytes = bytes / 2 / granule * granule) {
    void* at = ReserveAddresses(bytes);
    if (at == nullptr) continue;
    *out = AddressOf(static_cast<uint8_t*>(at));
    return bytes;
  }
  *out = {};
  return 0;
}

void CpuDevice::Unreserve(DeviceBytes at, int64_t bytes) { UnreserveAddresses(Raw(at), bytes); }

Status CpuDevice::Commit(DeviceBytes at, int64_t bytes) {
  if (CommitPages(Raw(at), bytes)) return {};
  return Error(Code::kMemory, "no memory for the KV cache: %lld bytes (%s)", static_cast<long long>(bytes),
               std::strerror(errno));
}

void CpuDevice::Decommit(DeviceBytes at, int64_t bytes) { DecommitPages(Raw(at), bytes); }

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
