// A cache to a file and back, page by page as it lies in memory, so that a restored session continues
// bit-identically.
#include "lib/base/archive.h"
#include "lib/cache/kv_cache.h"

namespace kvc {
namespace {

constexpr int64_t kMaxPages = 1 << 24;

}  // namespace

template <typename Archive>
Status KvCache::ArchivePages(Archive& archive, int pool_index, std::vector<int32_t>* ids) {
  PagePool& pool = *pools_[static_cast<size_t>(pool_index)];
  int64_t n = static_cast<int64_t>(ids->size());
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, n));
  if constexpr (Archive::kReading) {
    if (n < 0 || n > kMaxPages || n * pool.page_bytes() > archive.left())
      return Error(Code::kBadModel, "damaged: %lld pages do not fit the file", static_cast<long long>(n));
    ids->clear();
    if (n > 0) KVC_RETURN_IF_ERROR(pool.Take(static_cast<int32_t>(n), 0, ids));
  }
  for (int32_t id : *ids) KVC_RETURN_IF_ERROR(archive.Bytes(pool.Data(id), pool.page_bytes()));
  return {};
}

// What was read must be a cache this code could have written: every index is used later without another look.
Status KvCache::CheckHead(const Head& h, const HeadFormat& format, int32_t n_tokens,
                          int32_t changed_at) const {
  const int32_t room = static_cast<int32_t>(h.pages.size()) * config_.page_slots;
  bool good = h.main_len >= 0 && h.main_len <= room && h.tail_len >= 0 &&
              h.tail_len <= std::max(format.tail_slots - 1, 0);
  good = good && h.tail_start >= 0 && h.tail_start < std::max(format.tail_slots, 1) &&
         (h.tail_len == 0 || h.tail_page >= 0);
  good = good && (!config_.ordered || static_cast<int32_t>(h.order.size()) == h.main_len);
  std::vector<uint8_t> seen(static_cast<size_t>(good ? h.main_len : 0), 0);
  for (size_t i = 0; good && i < h.order.size(); ++i) {
    const int32_t slot = h.order[i];
    good = slot >= 0 && slot < h.main_len && seen[static_cast<size_t>(slot)]++ == 0;
  }
  for (int which = 0; good && which < 2; ++which) {
    good = h.book_len[which] >= 0 &&
           h.book_len[which] <= static_cast<int32_t>(h.book_pages[which].size()) * config_.page_slots;
  }
  int32_t last = -1;
  for (int32_t r = 0; good && r < h.main_len + h.tail_len; ++r) {
    const Slot s = SlotOfRank(h, r);
    const int32_t position = *Positions(h, s);
    good = position > last && position < n_tokens;
    last = position;
    for (int which = 0; good && format.codebook && !s.raw && which < 2; ++which) {
      CodedVector code;
      std::memcpy(&code, s.page + (which == 0 ? 0 : h.key_bytes * s.slots) + h.key_bytes * s.index,
                  sizeof code);
      good = static_cast<int32_t>(code.ref) >= 0 &&
             static_cast<int32_t>(code.ref) < BookOwner(h).book_len[which];
    }
  }
  // A head of a sequence that has begun is never empty, and what came since the last change is there.
  good = good && (n_tokens == 0 || h.main_len + h.tail_len > 0) &&
         CountFrom(h, changed_at) == n_tokens - changed_at;
  return good ? Status() : Error(Code::kBadModel, "damaged: the pages of a head do not fit together");
}

template <typename Archive>
Status KvCache::ArchiveHead(Archive& archive, Head& h) {
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, h.main_len));
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, h.tail_start));
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, h.tail_len));
  KVC_RETURN_IF_ERROR(ArchiveSequence(archive, h.order, kMaxPages));
  KVC_RETURN_IF_ERROR(ArchivePages(archive, h.main_pool, &h.pages));
  if (h.tail_pool >= 0) {
    std::vector<int32_t> tail;
    if (h.tail_page >= 0) tail.push_back(h.tail_page);
    KVC_RETURN_IF_ERROR(ArchivePages(archive, h.tail_pool, &tail));
    if (Archive::kReading) h.tail_page = tail.empty() ? -1 : tail[0];
    if (tail.size() > 1) return Error(Code::kBadModel, "damaged: a head with two tails");
  }
  for (int which = 0; which < 2 && book_pool_ >= 0; ++which) {
    KVC_RETURN_IF_ERROR(ArchiveValue(archive, h.book_len[which]));
    KVC_RETURN_IF_ERROR(ArchivePages(archive, book_pool_, &h.book_pages[which]));
  }
  return {};
}

Status KvCache::SaveTo(ArchiveWriter& archive) {
  for (Head& h : heads_) KVC_RETURN_IF_ERROR(ArchiveHead(archive, h));
  return {};
}

Status KvCache::RestoreFrom(ArchiveReader& archive, int32_t n_tokens, int32_t changed_at) {
  Clear();
  for (size_t i = 0; i < heads_.size(); ++i) {
    KVC_RETURN_IF_ERROR(ArchiveHead(archive, heads_[i]));
    KVC_RETURN_IF_ERROR(CheckHead(heads_[i], config_.formats[i], n_tokens, changed_at));
  }
  return {};
}

}  // namespace kvc
