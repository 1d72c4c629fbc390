#include "lib/engine/page_count.h"

#include "lib/cache/kv_cache.h"

namespace kvc {
namespace {

// Entries of a head in main when it holds n, in a cache that began with `slots`.
int32_t InMain(const CacheLayout& layout, int32_t head, int32_t slots, int32_t n) {
  const bool late_ring = layout.late_rings && layout.ring_slots(head) > 0;
  if (layout.main(head).coding != EntryCoding::kCodebook && !late_ring)
    return MainAfterStore(layout, head, n);
  const int32_t late = n - slots, ring = layout.ring_slots(head),
                settle = layout.heads[static_cast<size_t>(head)].settle;
  return slots + (late < ring ? 0 : ((late - ring) / settle + 1) * settle);
}

// Pages of n entries, before they are whole ones. Where n is an average, of heads that have `least` each: a
// last page is half empty on average, but where little is given out beyond that most heads have just that.
double PagesOf(const CacheLayout& layout, const Growth& growth, size_t head, int32_t n, int32_t least) {
  const double page = layout.page_slots, exact = std::ceil(n / page);
  const bool spread = growth.spread && layout.window(static_cast<int32_t>(head) / layout.n_kv_heads) == 0;
  if (!spread || n <= 0) return exact;
  least = std::clamp(least, 0, n);
  const double half = (page - 1) / (2 * page), of_least = std::ceil(least / page) - least / page;
  return n / page + half + std::max(of_least - half, 0.0) * page / (page + n - least);
}

// The same of a head that stores whole blocks, n entries of which some stay in its ring.
double BlocksOf(const CacheLayout& layout, const Growth& growth, int32_t head, int32_t n) {
  const double page = layout.page_slots;
  const int32_t exact = MainAfterStore(layout, head, n);
  if (!growth.spread || layout.window(head / layout.n_kv_heads) > 0) return std::ceil(exact / page);
  const int32_t late = layout.ring_slots(head) - layout.heads[static_cast<size_t>(head)].settle;
  return std::max((n - late) / page - (page - 1) / (2 * page), 0.0);
}

// limited: the prompt's pages are counted already.
void CountHead(const CacheLayout& layout, const Growth& growth, size_t i, bool limited, PageCount* count) {
  const int32_t head = static_cast<int32_t>(i), slots = growth.slots[i];
  const int32_t now = InMain(layout, head, slots, slots);
  // The page of an entry is there before it comes, and entries leave behind it.
  const int32_t end = growth.n_steps <= 0 ? now : InMain(layout, head, slots, growth.Last(i) + 1);
  const int32_t last = growth.n_steps <= 0 ? slots : growth.Last(i) + 1,
                least = InMain(layout, head, slots, std::min(growth.n_least, slots)),
                least_end = std::max(least + end - now, 0);
  const bool blocks = layout.main(head).coding == EntryCoding::kKeyChannels;
  double at_prompt = blocks ? BlocksOf(layout, growth, head, slots) : PagesOf(layout, growth, i, now, least),
         at_end = blocks ? BlocksOf(layout, growth, head, last) : PagesOf(layout, growth, i, end, least_end);
  // Where the last page ends is not known either.
  if (limited) at_prompt = 0, at_end = std::ceil((end - now) / static_cast<double>(layout.page_slots));
  const HeadFormat& format = layout.heads[i];
  // Behind what the limit left either codes or vectors come.
  if (format.plain >= 0 && limited)
    count->Add(layout.formats[static_cast<size_t>(format.plain)].bytes, 0,
               std::ceil((last - slots) / static_cast<double>(layout.page_slots)));
  if (format.plain >= 0 && !limited) {
    // Codes are there only where they take less than vectors do; their arenas may be.
    const int32_t of_head = std::min(growth.n_least, slots);
    count->Add(layout.formats[static_cast<size_t>(format.plain)].bytes,
               PagesOf(layout, growth, i, slots, of_head),
               PagesOf(layout, growth, i, last, of_head + last - slots));
    count->Add(PageBytes(layout, head), 0, 0), count->Add(RingBytes(layout, head), 0, 0);
    return count->Add(DirectionBytes(layout), 0, 0);
  }
  count->Add(PageBytes(layout, head), at_prompt, at_end);
  const bool at_once = !layout.late_rings;
  if (RingBytes(layout, head) > 0 && !limited)
    count->Add(RingBytes(layout, head), at_once ? 1 : 0, at_once || growth.n_steps > 0 ? 1 : 0);
  // Codebooks: as if no two vectors shared a direction.
  if (layout.main(head).coding == EntryCoding::kCodebook)
    count->Add(DirectionBytes(layout), 2 * at_prompt, 2 * at_end);
}

// Whether the limit makes the layer of heads [first, first + G) smaller than its slots. Counts what is left
// of it.
bool CountLimited(const CacheLayout& layout, const Growth& growth, size_t first, PageCount* count) {
  if (growth.layer_limit <= 0 || layout.window(static_cast<int32_t>(first) / layout.n_kv_heads) > 0)
    return false;
  double planned = 0;
  int64_t least = 0;
  for (size_t i = first; i < first + static_cast<size_t>(layout.n_kv_heads); ++i) {
    const int32_t head = static_cast<int32_t>(i);
    const int64_t beside = HeadBytes(layout, head, 0);
    const int64_t page = HeadBytes(layout, head, layout.page_slots) - beside;
    planned += PagesOf(layout, growth, i, growth.slots[i], growth.n_least) * static_cast<double>(page) +
               static_cast<double>(beside);
    least += HeadBytes(layout, head, growth.n_least);
  }
  const int64_t unlimited = static_cast<int64_t>(std::ceil(planned)),
                most = std::max(growth.layer_limit, least);
  if (unlimited <= most) return false;
  count->AddLimited(most, unlimited);
  return true;
}

}  // namespace

PageCount CountPages(const CacheLayout& layout, const Growth& growth) {
  PageCount count;
  const size_t group = static_cast<size_t>(layout.n_kv_heads);
  for (size_t first = 0; first < growth.slots.size(); first += group) {
    const bool limited = CountLimited(layout, growth, first, &count);
    for (size_t i = first; i < first + group; ++i) CountHead(layout, growth, i, limited, &count);
  }
  const int64_t left = growth.filled - count.PromptBytes();
  for (size_t i = 0; left > 0 && i < growth.slots.size(); ++i) {  // to any heads
    const int64_t page = PageBytes(layout, static_cast<int32_t>(i));
    const double more = static_cast<double>(left) / static_cast<double>(page * growth.slots.size());
    count.Add(page, more, more);
  }
  return count;
}

int64_t FullCacheBytes(const CacheLayout& layout, const Policy& policy, int64_t n) {
  const int32_t kv = policy.Int(OptionId::kKv);
  PageFormat format;
  format.type = kv <= static_cast<int32_t>(KvType::kBf16) ? static_cast<KvType>(kv) : KvType::kF16;
  format.d = layout.head_dim, format.slots = layout.page_slots, format.packed = layout.formats[0].packed;
  format.Lay();
  int64_t pages = 0;
  for (int32_t layer = 0; layer < layout.n_layers; ++layer) {
    const int64_t held = layout.window(layer) == 0 ? n : layout.HeldOf(layer, static_cast<int32_t>(n));
    pages += layout.n_kv_heads * ((held + format.slots - 1) / format.slots);
  }
  return pages * format.bytes;
}

}  // namespace kvc
