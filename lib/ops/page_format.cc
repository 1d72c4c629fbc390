#include "lib/ops/page_format.h"

namespace kvc {
namespace {

int64_t Align(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace

void PageFormat::Lay() {
  int64_t at = 0;
  const auto part = [&at](int64_t n) {
    const int64_t begin = at;
    at = Align(at + n, 16);
    return begin;
  };
  const int64_t n = slots;
  if (coding == EntryCoding::kDirections) {
    key_bytes = int64_t{4} * d;
    keys = part(n * key_bytes);
    bytes = Align(at, 64);
    return;
  }
  const bool codes = coding != EntryCoding::kCodebook && coded();
  const int64_t code = sizeof(CodedVector);
  key_bytes = coding == EntryCoding::kCodebook ? code : CodeBytes(type, d);
  value_bytes = coding == EntryCoding::kCodebook ? code : CodeBytes(value_type(), d);
  scale_bytes = codes ? int64_t{2} * (d / group) : 0;
  keys = part(n * key_bytes);
  values = part(n * value_bytes);
  const bool channels = coding == EntryCoding::kKeyChannels;
  key_scales = part(codes && !channels ? n * scale_bytes : 0);
  value_scales = part(n * scale_bytes);
  channel_scales = part(channels ? int64_t{2} * d : 0);
  positions = part(4 * n);
  rank = part(ranks ? 4 * n : 0);
  seen = part(seen_masks ? 4 * n : 0);
  aux = part(4 * n * n_aux);
  bounds = part(key_bounds ? 2 * CodeBytes(bound_format().type, d) : 0);
  bytes = packed ? at : Align(at, 64);
}

}  // namespace kvc
