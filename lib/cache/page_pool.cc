#include "lib/cache/page_pool.h"

#include <algorithm>
#include <new>

namespace kvc {

PagePool::PagePool(int64_t page_bytes, std::shared_ptr<MemoryMeter> meter)
    : page_bytes_((page_bytes + 63) / 64 * 64), meter_(std::move(meter)) {}

PagePool::~PagePool() = default;

// Fills ids, whose capacity is n, with unused page numbers; false: no memory, or no number is left. Throws
// nothing.
bool PagePool::NewIds(int32_t n, std::vector<int32_t>* ids) {
  while (static_cast<int32_t>(ids->size()) < n && !free_ids_.empty()) {
    ids->push_back(free_ids_.back());
    free_ids_.pop_back();
  }
  while (static_cast<int32_t>(ids->size()) < n) {
    if (n_ids_ >= kMaxPages) return false;
    const int32_t chunk = ChunkOf(n_ids_);
    if (n_ids_ == FirstOf(chunk)) {
      chunks_[chunk].reset(new (std::nothrow) PageRecord[std::max(kFirst, FirstOf(chunk))]);
      if (chunks_[chunk] == nullptr) return false;
    }
    ids->push_back(n_ids_++);
  }
  return true;
}

Status PagePool::AddExtent(int32_t n_pages, int32_t* added) {
  Extent extent;
  KVC_RETURN_IF_ERROR(extent.memory.Allocate(meter_.get(), n_pages * page_bytes_, "the KV cache"));
  extent.free.reserve(static_cast<size_t>(n_pages));
  // Room for every number and extent there will be, so that FreeExtent and what follows allocate nothing.
  free_ids_.reserve(static_cast<size_t>(n_ids_ + n_pages));
  if (extents_.size() == extents_.capacity()) extents_.reserve(2 * extents_.size() + 8);
  free_extents_.reserve(extents_.capacity());
  if (!NewIds(n_pages, &extent.free)) {
    free_ids_.insert(free_ids_.end(), extent.free.begin(), extent.free.end());
    return Error(Code::kMemory, "no memory for the records of %d cache pages beside %d", n_pages, n_ids_);
  }
  std::sort(extent.free.begin(), extent.free.end(),
            [](int32_t a, int32_t b) { return a > b; });  // taken from the back, ascending
  int32_t index = static_cast<int32_t>(extents_.size());
  if (free_extents_.empty()) {
    extents_.emplace_back();
  } else {
    index = free_extents_.back();
    free_extents_.pop_back();
  }
  extent.n_pages = n_pages;
  for (int32_t i = 0; i < n_pages; ++i) {
    PageRecord& record = Record(extent.free[static_cast<size_t>(n_pages - 1 - i)]);
    record.data = extent.memory.data() + i * page_bytes_;
    record.extent = index;
    record.references.store(0, std::memory_order_relaxed);
  }
  bytes_held_ += extent.memory.bytes();
  n_free_ += n_pages;
  extents_[static_cast<size_t>(index)] = std::move(extent);
  *added = index;
  return {};
}

// At most n pages of an extent, into ids that have room for them.
void PagePool::TakeFrom(Extent& extent, int32_t n, std::vector<int32_t>* ids) {
  for (; n > 0 && !extent.free.empty(); --n) {
    const int32_t id = extent.free.back();
    extent.free.pop_back();
    Record(id).references.store(1, std::memory_order_relaxed);
    ids->push_back(id);
    --n_free_;
  }
}

Status PagePool::Take(int32_t n, int32_t min_extent, std::vector<int32_t>* ids) {
  const size_t wanted = ids->size() + static_cast<size_t>(n);
  ids->reserve(wanted);
  std::lock_guard<std::mutex> lock(mutex_);
  int32_t added = 0;
  if (n_free_ < n)
    KVC_RETURN_IF_ERROR(AddExtent(std::max<int32_t>(static_cast<int32_t>(n - n_free_), min_extent), &added));
  for (Extent& extent : extents_) TakeFrom(extent, static_cast<int32_t>(wanted - ids->size()), ids);
  return {};
}

Status PagePool::TakeExtent(int32_t n, std::vector<int32_t>* ids) {
  ids->reserve(ids->size() + static_cast<size_t>(n));
  std::lock_guard<std::mutex> lock(mutex_);
  int32_t added = 0;
  KVC_RETURN_IF_ERROR(AddExtent(n, &added));
  TakeFrom(extents_[static_cast<size_t>(added)], n, ids);
  return {};
}

void PagePool::FreeExtent(int32_t index) {
  Extent& extent = extents_[static_cast<size_t>(index)];
  free_ids_.insert(free_ids_.end(), extent.free.begin(), extent.free.end());
  n_free_ -= extent.n_pages;
  bytes_held_ -= extent.memory.bytes();
  extent = Extent();
  free_extents_.push_back(index);
}

void PagePool::Release(int32_t id) {
  PageRecord& record = Record(id);
  if (record.references.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  std::lock_guard<std::mutex> lock(mutex_);
  Extent& extent = extents_[static_cast<size_t>(record.extent)];
  extent.free.push_back(id);
  ++n_free_;
  if (static_cast<int32_t>(extent.free.size()) == extent.n_pages) FreeExtent(record.extent);
}

}  // namespace kvc
