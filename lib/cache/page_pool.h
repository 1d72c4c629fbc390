// Pages of one size, reference-counted: forks share them, the first write copies one. Memory is taken in
// extents and given back as soon as all pages of an extent are free, so what is dropped is really freed.
// Thread-safe: forks on several threads share a pool.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "lib/base/memory_meter.h"

namespace kvc {

class PagePool {
 public:
  PagePool(int64_t page_bytes, std::shared_ptr<MemoryMeter> meter);
  ~PagePool();
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  // Appends n pages with one reference each to ids; on failure, bad_alloc included, none. Missing ones come
  // as one extent of exactly their number (at least min_extent pages).
  Status Take(int32_t n, int32_t min_extent, std::vector<int32_t>* ids);
  // The same from an extent of their own, whatever is free: when they go their memory goes, and they keep no
  // other page's.
  Status TakeExtent(int32_t n, std::vector<int32_t>* ids);
  void AddReference(int32_t id) { Record(id).references.fetch_add(1, std::memory_order_relaxed); }
  void Release(int32_t id);
  bool Shared(int32_t id) const { return Record(id).references.load(std::memory_order_acquire) > 1; }
  uint8_t* Data(int32_t id) const { return Record(id).data; }

  int64_t page_bytes() const { return page_bytes_; }
  int64_t bytes_held() const { return bytes_held_.load(std::memory_order_relaxed); }

 private:
  // Records come in chunks of 64, 64, 128, 256 .. pages: a few pages need a small table, and none ever moves.
  static constexpr int32_t kFirstBits = 6, kFirst = 1 << kFirstBits, kChunks = 19,
                           kMaxPages = kFirst << (kChunks - 1);
  struct PageRecord {
    uint8_t* data;
    int32_t extent;
    std::atomic<int32_t> references;
  };
  struct Extent {
    Buffer<uint8_t> memory;
    std::vector<int32_t> free;  // ids; capacity n_pages, so that Release allocates nothing
    int32_t n_pages = 0;
  };
  static int32_t ChunkOf(int32_t id) {
    return id < kFirst ? 0 : 32 - kFirstBits - __builtin_clz(static_cast<uint32_t>(id));
  }
  static int32_t FirstOf(int32_t chunk) { return chunk == 0 ? 0 : kFirst << (chunk - 1); }
  PageRecord& Record(int32_t id) const {
    const int32_t chunk = ChunkOf(id);
    return chunks_[chunk][id - FirstOf(chunk)];
  }
  Status AddExtent(int32_t n_pages, int32_t* index);
  void TakeFrom(Extent& extent, int32_t n, std::vector<int32_t>* ids);
  bool NewIds(int32_t n, std::vector<int32_t>* ids);
  void FreeExtent(int32_t index);

  const int64_t page_bytes_;
  const std::shared_ptr<MemoryMeter> meter_;
  std::mutex mutex_;
  std::unique_ptr<PageRecord[]> chunks_[kChunks];  // never move, so Data needs no lock
  std::vector<Extent> extents_;
  std::vector<int32_t> free_extents_, free_ids_;
  int32_t n_ids_ = 0;
  int64_t n_free_ = 0;
  std::atomic<int64_t> bytes_held_{0};
};

}  // namespace kvc
