#include "lib/ops/page_format.h"

#include <algorithm>
#include <cstring>

namespace kvc {
namespace {

int64_t Align(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// Walks through a page from its first part to its last and zeroes what nobody asks it to keep.
class PageCleaner {
 public:
  PageCleaner(int32_t slots, int32_t first, int32_t n, uint8_t* page)
      : slots_(slots), first_(first), last_(first + n), page_(page) {}
  // A part has `bytes` of every slot.
  void Part(int64_t begin, int64_t bytes) {
    if (bytes == 0) return;
    const int64_t round = std::max(last_ - slots_, int64_t{0});  // slots behind the page's end
    Keep(begin, begin + round * bytes);
    Keep(begin + first_ * bytes, begin + std::min(last_, slots_) * bytes);
    ClearTo(begin + slots_ * bytes);
  }
  void Keep(int64_t begin, int64_t end) {
    ClearTo(begin);
    at_ = end;
  }
  void ClearTo(int64_t end) {
    if (end > at_) std::memset(page_ + at_, 0, static_cast<size_t>(end - at_));
    at_ = std::max(at_, end);
  }

 private:
  const int64_t slots_, first_, last_;
  uint8_t* const page_;
  int64_t at_ = 0;
};

}  // namespace

void PageFormat::Lay() {
  int64_t at = 0;
  const auto part = [&at](int64_t n, int64_t to) {
    const int64_t begin = at = Align(at, to);
    at += n;
    return begin;
  };
  const int64_t n = slots;
  if (coding == EntryCoding::kDirections) {
    key_bytes = int64_t{4} * d;
    keys = part(n * key_bytes, 16);
    bytes = Align(at, 64);
    return;
  }
  const bool codes = coding != EntryCoding::kCodebook && coded();
  const int64_t code = sizeof(CodedVector);
  key_bytes = coding == EntryCoding::kCodebook ? code : CodeBytes(type, d);
  value_bytes = coding == EntryCoding::kCodebook ? code : CodeBytes(value_type(), d);
  scale_bytes = codes ? int64_t{2} * (d / group) : 0;
  // Keys, values and bounds are read by whole vectors of a processor, the others number by number.
  const int64_t of_numbers = packed ? 4 : 16;
  keys = part(n * key_bytes, 16);
  values = part(n * value_bytes, 16);
  const bool channels = coding == EntryCoding::kKeyChannels;
  key_scales = part(codes && !channels ? n * scale_bytes : 0, of_numbers);
  value_scales = part(n * scale_bytes, of_numbers);
  channel_scales = part(channels ? int64_t{2} * d : 0, of_numbers);
  positions = part(4 * n, of_numbers);
  rank = part(ranks ? 4 * n : 0, of_numbers);
  seen = part(seen_masks ? 4 * n : 0, of_numbers);
  aux = part(4 * n * n_aux, of_numbers);
  bounds = part(key_bounds ? 2 * CodeBytes(bound_format().type, d) : 0, 16);
  bytes = Align(at, packed ? 16 : 64);
}

void ClearOthers(const PageFormat& f, int32_t first, int32_t n, uint8_t* page) {
  PageCleaner cleaner(f.slots, first, n, page);
  cleaner.Part(f.keys, f.key_bytes);
  if (f.coding != EntryCoding::kDirections) {
    const bool channels = f.coding == EntryCoding::kKeyChannels;
    cleaner.Part(f.values, f.value_bytes);
    if (!channels) cleaner.Part(f.key_scales, f.scale_bytes);
    cleaner.Part(f.value_scales, f.scale_bytes);
    if (channels) cleaner.Keep(f.channel_scales, f.channel_scales + int64_t{2} * f.d);
    cleaner.Part(f.positions, 4);
    if (f.ranks) cleaner.Part(f.rank, 4);
    if (f.seen_masks) cleaner.Part(f.seen, 4);
    for (int64_t a = 0; a < f.n_aux; ++a) cleaner.Part(f.aux + 4 * a * f.slots, 4);
    if (f.key_bounds && n == f.slots)
      cleaner.Keep(f.bounds, f.bounds + 2 * CodeBytes(f.bound_format().type, f.d));
  }
  cleaner.ClearTo(f.bytes);
}

}  // namespace kvc
