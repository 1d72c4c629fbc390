#include "lib/cache/page_arena.h"

#include <algorithm>
#include <functional>
#include <new>

namespace kvc {
namespace {

constexpr int64_t kMostAddresses = int64_t{1} << 38, kLeastAddresses = 64 << 20;
constexpr int64_t kCommitStep = 1 << 20;

}  // namespace

PageArena::PageArena(Device* device, std::shared_ptr<MemoryMeter> meter, int64_t page_bytes,
                     int64_t most_bytes)
    : device_(device), meter_(std::move(meter)), page_bytes_(page_bytes), granule_(device->info().granule) {
  if (!meter_->counting()) reserved_ = device_->Reserve(most_bytes, &base_);
}

PageArena::~PageArena() {
  int64_t held = 0;
  for (size_t i = 0; i < in_use_.size(); ++i) {
    if (!Held(i)) continue;
    held += granule_;
    if (device_->info().recommits) device_->Decommit(At(i), granule_);
  }
  meter_->Give(held);
  if (base_) device_->Unreserve(base_, reserved_);
}

// Numbers for n more pages, and the tables for them. Throws bad_alloc before anything changed.
Status PageArena::Grow(int32_t n) {
  const int64_t wanted = int64_t{n_ids_} + n,
                bytes = (wanted * page_bytes_ + granule_ - 1) / granule_ * granule_;
  if (wanted > kMaxPages || bytes > reserved_) {
    return Error(Code::kMemory, "no addresses for %d more cache pages of %lld bytes beside %d", n,
                 static_cast<long long>(page_bytes_), n_ids_);
  }
  for (int32_t chunk = n_ids_ == 0 ? 0 : ChunkOf(n_ids_ - 1);
       chunk <= ChunkOf(static_cast<int32_t>(wanted) - 1); ++chunk) {
    if (references_[chunk] == nullptr)
      references_[chunk].reset(
          new std::atomic<int32_t>[static_cast<size_t>(std::max(kFirst, FirstOf(chunk)))]);
  }
  const auto reserve = [](auto& list, int64_t most) {
    if (static_cast<size_t>(most) > list.capacity())
      list.reserve(std::max(static_cast<size_t>(most), 2 * list.capacity()));
  };
  reserve(in_use_, bytes / granule_), reserve(stayed_, bytes / granule_);
  reserve(free_, wanted);  // so that Release allocates nothing
  if (bytes > committed_ && !device_->info().recommits) {
    const int64_t more =
        std::min((bytes - committed_ + kCommitStep - 1) / kCommitStep * kCommitStep, reserved_ - committed_);
    KVC_RETURN_IF_ERROR(device_->Commit(base_ + committed_, more));
    committed_ += more;
  }
  in_use_.resize(std::max(in_use_.size(), static_cast<size_t>(bytes / granule_)), 0);
  stayed_.resize(in_use_.size(), 0);
  return {};
}

// A page comes into use: the granules it touches first count against the limit.
Status PageArena::Hold(int32_t id) {
  const size_t first = static_cast<size_t>(id * page_bytes_ / granule_),
               last = static_cast<size_t>((int64_t{id} * page_bytes_ + page_bytes_ - 1) / granule_);
  int64_t fresh = 0;
  for (size_t i = first; i <= last; ++i) fresh += Held(i) ? 0 : granule_;
  if (fresh > 0) KVC_RETURN_IF_ERROR(meter_->Take(fresh, "the KV cache"));
  for (size_t i = first; i <= last && device_->info().recommits; ++i) {
    const Status status = Held(i) ? Status() : device_->Commit(At(i), granule_);
    if (status.ok()) continue;
    for (size_t j = first; j <= last; ++j) {
      if (Held(j)) continue;
      j < i ? GiveBack(j, 1) : meter_->Give(granule_);
    }
    return status;
  }
  for (size_t i = first; i <= last; ++i) ++in_use_[i], stayed_[i] = 0;
  References(id).store(1, std::memory_order_relaxed);
  return {};
}

// Granules that no page touches. One by one where each is a mapping of its own.
void PageArena::GiveBack(size_t first, size_t n) {
  const size_t step = device_->info().recommits ? 1 : n;
  for (size_t i = first; i < first + n; i += step) {
    const int64_t bytes = static_cast<int64_t>(step) * granule_;
    const bool went = device_->Decommit(At(i), bytes);
    std::fill_n(stayed_.begin() + static_cast<std::ptrdiff_t>(i), step, went ? uint8_t{0} : uint8_t{1});
    if (went) meter_->Give(bytes);
  }
}

// A page goes out of use; what it leaves unused joins the run, and the run goes back where a new one begins:
// the system is asked once for pages behind each other. Whoever lets the last page go gives back the run.
void PageArena::Let(int32_t id, Run* unused) {
  const size_t first = static_cast<size_t>(int64_t{id} * page_bytes_ / granule_),
               last = static_cast<size_t>((int64_t{id} * page_bytes_ + page_bytes_ - 1) / granule_);
  for (size_t i = first; i <= last; ++i) {
    if (--in_use_[i] > 0) continue;
    const bool in_front = unused->n > 0 && i + 1 == unused->first,
               behind = unused->n > 0 && i == unused->first + unused->n;
    if (!in_front && !behind) {
      GiveBack(unused->first, unused->n);
      *unused = {i, 0};
    }
    if (in_front) unused->first = i;
    ++unused->n;
  }
  free_.push_back(id);
  std::push_heap(free_.begin(), free_.end(), std::greater<int32_t>());
}

Status PageArena::Take(int32_t n, std::vector<int32_t>* ids) {
  if (n <= 0) return {};
  const size_t before = ids->size();
  if (ids->capacity() < before + static_cast<size_t>(n)) ids->reserve(2 * (before + static_cast<size_t>(n)));
  std::lock_guard<std::mutex> lock(mutex_);
  const int32_t fresh = std::max(n - static_cast<int32_t>(free_.size()), 0);
  if (fresh > 0) KVC_RETURN_IF_ERROR(Grow(fresh));
  for (int32_t i = 0; i < n; ++i) {
    int32_t id = n_ids_;
    if (!free_.empty()) {
      std::pop_heap(free_.begin(), free_.end(), std::greater<int32_t>());
      id = free_.back();
      free_.pop_back();
    } else {
      ++n_ids_;
    }
    const Status status = Hold(id);
    if (status.ok()) {
      ids->push_back(id);
      continue;
    }
    free_.push_back(id);
    std::push_heap(free_.begin(), free_.end(), std::greater<int32_t>());
    Run unused;
    for (size_t j = before; j < ids->size(); ++j) Let((*ids)[j], &unused);
    GiveBack(unused.first, unused.n);
    ids->resize(before);
    return status;
  }
  return {};
}

void PageArena::Release(const int32_t* ids, size_t n) {
  std::unique_lock<std::mutex> lock(mutex_, std::defer_lock);
  Run unused;
  for (size_t i = 0; i < n; ++i) {
    if (References(ids[i]).fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
    if (!lock.owns_lock()) lock.lock();
    Let(ids[i], &unused);
  }
  GiveBack(unused.first, unused.n);
}

void PageArenas::FreeUnused() {
  std::lock_guard<std::mutex> lock(mutex_);
  // Others give references back meanwhile, but only Of hands out new ones.
  arenas_.erase(std::remove_if(arenas_.begin(), arenas_.end(),
                               [](const auto& arena) { return arena.use_count() == 1; }),
                arenas_.end());
  if (arenas_.empty()) std::vector<std::shared_ptr<PageArena>>().swap(arenas_);
}

Result<std::shared_ptr<PageArena>> PageArenas::Of(int64_t page_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& arena : arenas_) {
    if (arena->page_bytes() == page_bytes) return arena;
  }
  const int64_t most =
      meter_->limit() > 0 ? std::clamp(2 * meter_->limit(), kLeastAddresses, kMostAddresses) : kMostAddresses;
  auto arena = std::make_shared<PageArena>(device_, meter_, page_bytes, most);
  // One without addresses would never have a page, whatever is given back later.
  if (!arena->has_addresses() && !meter_->counting())
    return Error(Code::kMemory, "no addresses for cache pages of %lld bytes",
                 static_cast<long long>(page_bytes));
  arenas_.push_back(arena);
  return arena;
}

}  // namespace kvc
