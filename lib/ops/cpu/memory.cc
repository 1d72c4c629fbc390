// Memory of the processor, and copies within it.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <new>
#include <vector>

#include "lib/base/sum_of_words.h"
#include "lib/base/system_memory.h"
#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/matmul.h"
#include "lib/ops/cpu/raw.h"
#include "lib/ops/device_buffer.h"
#include "lib/ops/weight_panels.h"

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

namespace {

// Memory that is read piece by piece, each by one thread; of more than kEnough the beginning.
class Reading {
 public:
  Reading(ThreadPool* pool, Streams streams) : pool_(pool), streams_(streams) {}

  void Add(const uint8_t* at, int64_t bytes) {
    bytes = std::min(bytes - bytes % kWordBytes, kEnough - bytes_);
    for (; bytes > 0; at += kPiece, bytes -= kPiece)
      pieces_.push_back({at, std::min(bytes, kPiece)}), bytes_ += pieces_.back().bytes;
  }
  int64_t bytes() const { return bytes_; }
  // Of its words.
  uint64_t Sum() const {
    std::atomic<uint64_t> sum{0};
    pool_->ParallelFor(static_cast<int64_t>(pieces_.size()), [&](int64_t i, int) {
      const Piece& piece = pieces_[static_cast<size_t>(i)];
      sum.fetch_add(SumOfWords(piece.at, piece.bytes / 8, streams_), std::memory_order_relaxed);
    });
    return sum.load();
  }
  // The median of some passes: other work on the machine makes some slow. Slow memory gets fewer.
  double Rate() const {
    using Clock = std::chrono::steady_clock;
    constexpr int kPasses = 9, kMost = 1001;
    constexpr std::chrono::milliseconds kLong{50}, kTooLong{700};
    double seconds[kMost];
    int n = 0;
    const Clock::time_point begin = Clock::now();
    for (Clock::time_point at = begin, now = begin;
         n == 0 || (n < kMost && now - begin < (n < kPasses ? kTooLong : kLong)); at = now) {
      Sum();
      now = Clock::now();
      seconds[n++] = std::chrono::duration<double>(now - at).count();
    }
    std::nth_element(seconds, seconds + n / 2, seconds + n);
    return static_cast<double>(bytes_) / seconds[n / 2];
  }

 private:
  static constexpr int64_t kPiece = 1 << 20, kWordBytes = 256 * 8, kEnough = int64_t{2} << 30;
  struct Piece {
    const uint8_t* at;
    int64_t bytes;
  };
  ThreadPool* const pool_;
  const Streams streams_;
  std::vector<Piece> pieces_;
  int64_t bytes_ = 0;
};

}  // namespace

Result<double> CpuDevice::MeasureBandwidth(Span<const Matrix* const> weights) {
  Reading reading(pool_.get(), kernels_.streams);
  for (const Matrix* m : weights) {
    for (int32_t part = 0; part < m->n_parts; ++part) {
      const Weight w = PartOf(*m, part);
      reading.Add(static_cast<const uint8_t*>(w.data), PlaceOf(w).data_bytes);
    }
  }
  if (reading.bytes() > 0) return reading.Rate();
  constexpr int64_t kBytes = 256 << 20, kPart = 1 << 20;
  DeviceBuffer<uint8_t> memory;
  KVC_RETURN_IF_ERROR(memory.Allocate({this, nullptr}, kBytes, "a measurement"));
  uint8_t* block = Raw(memory.raw());
  AskForHugePages(block, kBytes);  // as weights in panels lie in them
  // Pages that nothing was written to are all the same one.
  pool_->ParallelFor(kBytes / kPart, [&](int64_t part, int) { std::memset(block + part * kPart, 1, kPart); });
  reading.Add(block, kBytes);
  const uint64_t sum = reading.Sum();
  if (sum != uint64_t{kBytes / 8} * 0x0101010101010101)
    return Error(Code::kDevice, "memory does not hold what was written");
  return reading.Rate();
}

// Address space only: nothing of it can be touched before Commit. Less and less until the system agrees,
// which limits on address space may make necessary: then a third of what there is, as pages of other sizes
// and what is computed with need addresses too.
int64_t CpuDevice::Reserve(int64_t bytes, DeviceBytes* out) {
  const int64_t granule = info_.granule, physical = PhysicalBytes();
  if (physical > 0) bytes = std::min(bytes, 2 * physical);  // with swap, more than can ever be held
  bytes = (bytes + granule - 1) / granule * granule;
  const int64_t wanted = bytes;
  void* at = nullptr;
  for (; bytes >= kLeastReservation; bytes = bytes / 8 * 7 / granule * granule) {
    at = ReserveAddresses(bytes);
    if (at != nullptr) break;
  }
  if (const int64_t part = bytes / 3 / granule * granule;
      at != nullptr && bytes < wanted && part >= kLeastReservation) {
    UnreserveAddresses(at, bytes);
    at = ReserveAddresses(part), bytes = part;
  }
  *out = AddressOf(static_cast<uint8_t*>(at));
  return at == nullptr ? 0 : bytes;
}

void CpuDevice::Unreserve(DeviceBytes at, int64_t bytes) { UnreserveAddresses(Raw(at), bytes); }

Status CpuDevice::Commit(DeviceBytes at, int64_t bytes) {
  if (CommitPages(Raw(at), bytes)) return {};
  return Error(Code::kMemory, "no memory for the KV cache: %lld bytes (%s)", static_cast<long long>(bytes),
               std::strerror(errno));
}

bool CpuDevice::Decommit(DeviceBytes at, int64_t bytes) { return DecommitPages(Raw(at), bytes); }

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
