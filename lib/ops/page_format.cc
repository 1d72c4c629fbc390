#include "lib/ops/page_format.h"

namespace kvc {
namespace {

int64_t Align(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

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

}  // namespace kvc
