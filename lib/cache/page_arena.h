// Pages of one size in one range of addresses: address = base + id * page bytes. Reference-counted: forks
// share pages, the first write copies one. The memory of freed pages goes back to the system as soon as whole
// granules of it are free, so what is dropped is really freed. Lowest numbers are taken first, which keeps
// what is held together. Thread-safe: sessions of a model share its arenas.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/ops/device_buffer.h"

namespace kvc {

class PageArena {
 public:
  // A counting meter: nothing is reserved, and there are no pages to be had.
  PageArena(Device* device, std::shared_ptr<MemoryMeter> meter, int64_t page_bytes, int64_t most_bytes);
  ~PageArena();
  PageArena(const PageArena&) = delete;
  PageArena& operator=(const PageArena&) = delete;

  // Appends n pages with one reference each to ids, which has room for them; on failure none. Ascending.
  Status Take(int32_t n, std::vector<int32_t>* ids);
  void AddReference(int32_t id) { References(id).fetch_add(1, std::memory_order_relaxed); }
  void Release(int32_t id) { Release(&id, 1); }
  void Release(const int32_t* ids, size_t n);
  bool Shared(int32_t id) const { return References(id).load(std::memory_order_acquire) > 1; }

  DeviceBytes base() const { return base_; }
  DeviceBytes At(int32_t id) const { return base_ + id * page_bytes_; }
  int64_t page_bytes() const { return page_bytes_; }
  bool has_addresses() const { return reserved_ > 0; }

 private:
  // Counts come in chunks of 64, 64, 128, 256 ..: a few pages need a small table, and none ever moves.
  static constexpr int32_t kFirstBits = 6, kFirst = 1 << kFirstBits, kChunks = 22,
                           kMaxPages = kFirst << (kChunks - 1);
  static int32_t ChunkOf(int32_t id) {
    return id < kFirst ? 0 : 32 - kFirstBits - __builtin_clz(static_cast<uint32_t>(id));
  }
  static int32_t FirstOf(int32_t chunk) { return chunk == 0 ? 0 : kFirst << (chunk - 1); }
  std::atomic<int32_t>& References(int32_t id) const {
    const int32_t chunk = ChunkOf(id);
    return references_[chunk][id - FirstOf(chunk)];
  }
  Status Grow(int32_t n);
  DeviceBytes At(size_t granule) const { return base_ + static_cast<int64_t>(granule) * granule_; }
  Status Hold(int32_t id);
  // Granules behind each other that nobody touches any more.
  struct Run {
    size_t first = 0, n = 0;
  };
  void Let(int32_t id, Run* unused);
  void GiveBack(size_t first, size_t n);
  bool Held(size_t granule) const { return in_use_[granule] > 0 || stayed_[granule] != 0; }

  Device* const device_;
  const std::shared_ptr<MemoryMeter> meter_;
  const int64_t page_bytes_, granule_;
  DeviceBytes base_;
  int64_t reserved_ = 0, committed_ = 0;  // bytes of addresses; of those that may be touched
  std::mutex mutex_;
  std::unique_ptr<std::atomic<int32_t>[]> references_[kChunks];
  int32_t n_ids_ = 0;             // numbers that were ever given out
  std::vector<int32_t> free_;     // a heap, lowest first
  std::vector<uint16_t> in_use_;  // pages that touch each granule
  std::vector<uint8_t> stayed_;   // 1: none does, and the system did not take it back: it counts as held
};

// The arenas of a model, one for each size of page, made when first asked for.
class PageArenas {
 public:
  PageArenas(Device* device, std::shared_ptr<MemoryMeter> meter)
      : device_(device), meter_(std::move(meter)) {}
  // kMemory: the device has no addresses for it now.
  Result<std::shared_ptr<PageArena>> Of(int64_t page_bytes);
  // Arenas that no cache refers to go, tables and addresses included.
  void FreeUnused();
  Device* device() const { return device_; }
  const std::shared_ptr<MemoryMeter>& meter() const { return meter_; }

 private:
  Device* const device_;
  const std::shared_ptr<MemoryMeter> meter_;
  std::mutex mutex_;
  std::vector<std::shared_ptr<PageArena>> arenas_;
};

}  // namespace kvc
