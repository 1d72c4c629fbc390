// A cache to a file and back, page by page as it lies in memory, so that a restored session continues
// bit-identically. What entries that are gone left in a page, of this cache or of another that had it before,
// does not go to the file.
#include <algorithm>
#include <limits>

#include "lib/base/archive.h"
#include "lib/cache/kv_cache.h"

namespace kvc {
namespace {

constexpr int64_t kMaxPages = 1 << 24;

// The newest tokens without a gap, and those that the next one sees.
bool HoldsWindow(const std::vector<int32_t>& positions, int32_t window, int32_t n_tokens) {
  const int32_t n = static_cast<int32_t>(positions.size());
  return n >= std::min(n_tokens, window - 1) && (n == 0 || positions[0] == n_tokens - n);
}

Status Damaged() { return Error(Code::kBadModel, "damaged: the pages of a head do not fit together"); }

}  // namespace

// Pages of one list: as many as the lengths, which are known, call for.
template <typename Archive>
Status KvCache::ArchivePages(Archive& archive, Stream* stream, int32_t head, int kind) {
  const int32_t format = FormatOf(head, kind);
  if (format < 0) return {};
  PageArena& arena = Arena(format);
  const PageFormat& f = layout_->formats[static_cast<size_t>(format)];
  const int32_t n = NeedsNow(head).pages[kind],
                first = kind == 1 ? view_.ring[head * kRingFields + kRingStart] : 0,
                in_all = kind == 0   ? view_.len[head]
                         : kind == 1 ? RingLen(view_, head)
                                     : view_.book_len[2 * head + kind - 2];
  std::vector<uint8_t> bytes(static_cast<size_t>(arena.page_bytes()));
  if constexpr (Archive::kReading) {
    if (n > kMaxPages || n * arena.page_bytes() > archive.left()) return Damaged();
    KVC_RETURN_IF_ERROR(Widen(kind == 0 ? n : 0, kind >= 2 ? n : 0));
    std::vector<int32_t> ids;
    KVC_RETURN_IF_ERROR(arena.Take(n, &ids));
    if (kind == 1 && n > 0) view_.ring[head * kRingFields + kRingPage] = ids[0];
    if (kind != 1) {
      std::copy(ids.begin(), ids.end(), List(head, kind).ids);
      *List(head, kind).n = n;
    }
    bytes_ += n * arena.page_bytes();
  }
  for (int32_t p = 0; p < n; ++p) {
    const DeviceBytes page = arena.At(PageAt({head, kind, p, format, false}));
    if constexpr (Archive::kReading) {
      KVC_RETURN_IF_ERROR(archive.Bytes(bytes.data(), arena.page_bytes()));
      KVC_RETURN_IF_ERROR(arenas_->device()->Write(stream, page, bytes.data(), arena.page_bytes()));
    } else {
      KVC_RETURN_IF_ERROR(arenas_->device()->Read(stream, page, bytes.data(), arena.page_bytes()));
      ClearOthers(f, first, std::min(f.slots, in_all - p * f.slots), bytes.data());
      KVC_RETURN_IF_ERROR(archive.Bytes(bytes.data(), arena.page_bytes()));
    }
  }
  return {};
}

Status KvCache::CheckLengths(int32_t head, bool turns_keys) const {
  const EntryCoding coding = layout_->formats[static_cast<size_t>(FormatOf(head, 0))].coding;
  const int64_t most = kMaxPages * layout_->page_slots;
  bool good = view_.len[head] >= 0 && view_.len[head] < most && view_.rotated[head] <= 1;
  good = good && (view_.rotated[head] != 0 ? coding != EntryCoding::kCodebook : turns_keys);
  if (view_.ring != nullptr) {
    const int32_t *ring = view_.ring + head * kRingFields, slots = layout_->ring_slots(head);
    // A full ring settles at once, so it is never found full.
    good = good && ring[kRingLen] >= 0 && ring[kRingLen] <= std::max(slots - 1, 0);
    good = good && ring[kRingStart] >= 0 && ring[kRingStart] < std::max(slots, 1);
    good = good && (FormatOf(head, 1) >= 0 || ring[kRingLen] == 0);
  }
  for (int which = 0; view_.book_len != nullptr && which < 2; ++which) {
    const int32_t n = view_.book_len[2 * head + which];
    good = good && n >= 0 && n < most && (FormatOf(head, 2) >= 0 || n == 0);
  }
  return good ? Status() : Damaged();
}

// What was read must be a cache this code could have written: positions, ranks and references are used later
// without another look.
Status KvCache::CheckHead(Stream* stream, int32_t head, int32_t n_tokens, int32_t changed_at) {
  const int32_t n = Len(head);
  std::vector<int32_t> positions;
  KVC_RETURN_IF_ERROR(Positions(stream, head, &positions));
  bool good = n_tokens == 0 || n > 0;  // a head of a sequence that has begun is never empty
  // The first may stand for tokens that are none of the others.
  const int64_t least = layout_->has_rest ? int64_t{n} - 1 - n_tokens : 0;
  for (size_t i = 0; good && i < positions.size(); ++i)
    good = positions[i] >= (i == 0 ? least : int64_t{std::max(positions[i - 1], -1)} + 1) &&
           positions[i] < n_tokens;
  const int32_t window = layout_->window(head / layout_->n_kv_heads);
  if (window > 0) {
    good = good && view_.rotated[head] != 0 && n == Len(head - head % layout_->n_kv_heads) &&
           HoldsWindow(positions, window, n_tokens);
  } else {  // what came since the last change is there
    good = good && positions.end() - std::lower_bound(positions.begin(), positions.end(), changed_at) ==
                       n_tokens - changed_at;
  }
  std::vector<uint8_t> page, ranks_seen(static_cast<size_t>(n), 0);
  int32_t last = std::numeric_limits<int32_t>::min(), newest = last;
  for (int kind = 0; good && kind < 2; ++kind) {
    const int32_t format = FormatOf(head, kind);
    if (format < 0) continue;
    const PageFormat& f = layout_->formats[static_cast<size_t>(format)];
    const int32_t *ring = view_.ring == nullptr ? nullptr : view_.ring + head * kRingFields,
                  in_part = kind == 0 ? view_.len[head] : ring[kRingLen];
    page.resize(static_cast<size_t>(f.bytes));
    for (int32_t i = 0; good && i < in_part; ++i) {
      const int32_t slot = kind == 0 ? i : (ring[kRingStart] + i) % f.slots;
      if (i == 0 || (kind == 0 && slot % f.slots == 0)) {
        KVC_RETURN_IF_ERROR(arenas_->device()->Read(
            stream, Arena(format).At(PageAt({head, kind, kind == 0 ? slot / f.slots : 0, format, false})),
            page.data(), f.bytes));
      }
      const int64_t at = slot % f.slots;
      const auto number = [&](int64_t offset) {
        int32_t value;
        std::memcpy(&value, page.data() + offset, sizeof value);
        return value;
      };
      const int32_t position = number(f.positions + 4 * at);
      // Pages of windows go by their order, and the entries of a ring are the newest, in order.
      good = good && ((kind == 0 && window == 0) || position > newest);
      scattered_ = scattered_ || position < last;
      last = position, newest = std::max(newest, position);
      if (f.ranks) {
        const int32_t rank = number(f.rank + 4 * at);
        good = good && rank >= 0 && rank < n && ranks_seen[static_cast<size_t>(rank)]++ == 0;
      }
      for (int which = 0; good && f.coding == EntryCoding::kCodebook && which < 2; ++which) {
        const int32_t ref =
            number((which == 0 ? f.keys : f.values) + at * static_cast<int64_t>(sizeof(CodedVector)));
        good = ref >= 0 && ref < view_.book_len[2 * layout_->book_owner(head) + which];
      }
    }
  }
  return good ? Status() : Damaged();
}

template <typename Archive>
Status KvCache::ArchiveHead(Archive& archive, Stream* stream, int32_t head, bool turns_keys) {
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, view_.len[head]));
  // Bit 0: rotated; above: how the head is stored, 0 in files of before.
  uint8_t flags = static_cast<uint8_t>(view_.rotated[head] | view_.stored[head] << 1);
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, flags));
  if (Archive::kReading) {
    const uint8_t as = flags >> 1;
    const HeadFormat& h = layout_->heads[static_cast<size_t>(head)];
    if (as > kStoredPlainAll || (as != kStoredMain && h.plain < 0)) return Damaged();
    view_.rotated[head] = flags & 1, view_.stored[head] = as;
  }
  if (view_.ring != nullptr) {
    KVC_RETURN_IF_ERROR(ArchiveValue(archive, view_.ring[head * kRingFields + kRingStart]));
    KVC_RETURN_IF_ERROR(ArchiveValue(archive, view_.ring[head * kRingFields + kRingLen]));
  }
  for (int which = 0; view_.book_len != nullptr && which < 2; ++which)
    KVC_RETURN_IF_ERROR(ArchiveValue(archive, view_.book_len[2 * head + which]));
  if (Archive::kReading) {
    const Status lengths = CheckLengths(head, turns_keys);
    if (!lengths.ok()) Reset(head);  // nothing has been taken for them
    KVC_RETURN_IF_ERROR(lengths);
  }
  for (int kind = 0; kind < kKinds; ++kind) KVC_RETURN_IF_ERROR(ArchivePages(archive, stream, head, kind));
  return {};
}

Status KvCache::SaveTo(ArchiveWriter& archive, Stream* stream) {
  uint8_t scattered = scattered_ ? 1 : 0;
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, scattered));
  for (int32_t i = 0; i < layout_->n_heads_total(); ++i)
    KVC_RETURN_IF_ERROR(ArchiveHead(archive, stream, i, true));
  return {};
}

Status KvCache::RestoreFrom(ArchiveReader& archive, Stream* stream, int32_t n_tokens, int32_t changed_at,
                            bool turns_keys, bool one_set) {
  Clear();
  uint8_t scattered = 0;
  KVC_RETURN_IF_ERROR(ArchiveValue(archive, scattered));
  scattered_ = scattered != 0;  // CheckHead looks where it is said that slots are in order
  for (int32_t i = 0; i < layout_->n_heads_total(); ++i)
    KVC_RETURN_IF_ERROR(ArchiveHead(archive, stream, i, turns_keys));
  for (int32_t i = 0; i < layout_->n_heads_total(); ++i)
    KVC_RETURN_IF_ERROR(CheckHead(stream, i, n_tokens, changed_at));
  return CheckLayers(one_set);
}

// What holds of all heads of a layer at once, and is looked up with one of them.
Status KvCache::CheckLayers(bool one_set) const {
  bool good = true;
  for (int32_t i = 0; good && i < layout_->n_heads_total(); ++i) {
    const int32_t first = i - i % layout_->n_kv_heads;
    const bool slides = layout_->window(i / layout_->n_kv_heads) > 0;
    good = Len(i) == Len(first) || (!one_set && !slides);
    // What leaves a window are whole pages, and what comes goes to all heads by the length of the first.
    if (slides) good = good && view_.len[i] == view_.len[first];
    for (int field = kRingStart; slides && view_.ring != nullptr && field < kRingFields; ++field)
      good = good && view_.ring[i * kRingFields + field] == view_.ring[first * kRingFields + field];
    // Books are the first head's, and go when it holds vectors: it is the last to do so.
    if (layout_->layer_books)
      good = good && (view_.stored[i] != kStoredMain || view_.stored[first] == kStoredMain);
  }
  return good ? Status() : Damaged();
}

}  // namespace kvc
