#include "lib/model/tensor_scan.h"

#include <algorithm>

#include "lib/ops/weight_blocks.h"

namespace kvc {

// The part of this block that lies in [begin, end) of the section holds elements of `type`.
void TensorScan::Scan(WeightType type, int64_t begin, int64_t end, const uint8_t* bytes, int64_t n_bytes,
                      int64_t* first) const {
  const int64_t from = std::max(begin, position_), to = std::min(end, position_ + n_bytes);
  if (*first >= 0 || from >= to) return;
  const int64_t element = WeightRowBytes(type, 1);
  const int64_t found = FirstNotFinite(type, bytes + (from - position_), (to - from) / element);
  if (found >= 0) *first = (from - begin) / element + found;
}

// The halves of blocks that lie in this block of bytes. They are at even offsets, and blocks of bytes at
// multiples of 4, so none is cut.
void TensorScan::ScanHalves(const uint8_t* bytes, int64_t n_bytes) {
  const BlockHalves halves = HalvesOf(tensor_.weight.type, tensor_.weight.layout);
  const int64_t end = std::min(position_ + n_bytes, layout_.data_bytes);
  for (int64_t b = position_ / halves.stride; b * halves.stride < end && bad_scale_ < 0; ++b) {
    const int64_t first = b * halves.stride + halves.offset;
    const int64_t from = std::max(first, position_), to = std::min(first + 2 * halves.count, end);
    if (from >= to) continue;
    const int64_t found = FirstNotFinite(WeightType::kF16, bytes + (from - position_), (to - from) / 2);
    if (found >= 0) bad_scale_ = b * halves.count + (from - first) / 2 + found;
  }
}

// Bytes in which panels have six bits: a reader that took more would disagree with one that does not.
void TensorScan::ScanSixBits(const uint8_t* bytes, int64_t n_bytes) {
  const SixBitBytes six = SixBitBytesOfPanels();
  const int64_t stride = HalvesOf(tensor_.weight.type, tensor_.weight.layout).stride;
  const int64_t end = std::min(position_ + n_bytes, layout_.data_bytes);
  for (int64_t b = position_ / stride; b * stride < end && bad_byte_ < 0; ++b) {
    const int64_t from = std::max(b * stride + six.begin, position_),
                  to = std::min(b * stride + six.end, end);
    for (int64_t i = from; i < to && bad_byte_ < 0; ++i) bad_byte_ = bytes[i - position_] > six.most ? i : -1;
  }
}

void TensorScan::Update(const uint8_t* bytes, int64_t n_bytes) {
  hasher_.Update(bytes, static_cast<size_t>(n_bytes));
  if (HasBlocks(tensor_.weight.type)) {
    ScanHalves(bytes, n_bytes);
    if (tensor_.weight.type == WeightType::kQ4K && tensor_.weight.layout == WeightLayout::kPanels16)
      ScanSixBits(bytes, n_bytes);
  } else {
    Scan(tensor_.weight.type, 0, layout_.data_bytes, bytes, n_bytes, &bad_value_);
  }
  if (layout_.scales_bytes > 0) {
    Scan(WeightType::kF16, layout_.scales_offset, layout_.n_bytes, bytes, n_bytes, &bad_scale_);
  }
  position_ += n_bytes;
}

Status TensorScan::CheckFinite() const {
  if (bad_value_ < 0 && bad_scale_ < 0 && bad_byte_ < 0) return {};
  const std::string title = TensorTitle(tensor_.role, tensor_.layer);
  if (bad_byte_ >= 0) {
    return Error(Code::kBadModel, "%s: byte %lld of its panels, a scale of six bits, has more", title.c_str(),
                 static_cast<long long>(bad_byte_));
  }
  if (HasBlocks(tensor_.weight.type)) {
    const Weight& w = tensor_.weight;
    const int64_t of_block = HalvesOf(w.type, w.layout).count, block = bad_scale_ / of_block;
    const int64_t of_row = w.cols / kBlockColumns;
    const bool panels = w.layout == WeightLayout::kPanels16;
    const int64_t row =
        panels ? block / of_row * kPanelLanes + bad_scale_ % of_block % kPanelLanes : block / of_row;
    return Error(Code::kBadModel, "%s: the scale at row %lld, block %lld is NaN or infinite", title.c_str(),
                 static_cast<long long>(row), static_cast<long long>(block % of_row));
  }
  const bool is_value = bad_value_ >= 0;
  const int64_t index = is_value ? bad_value_ : bad_scale_;
  const int64_t columns = is_value ? tensor_.weight.cols : tensor_.weight.cols / tensor_.weight.group;
  int64_t row = index / columns, column = index % columns;
  if (tensor_.weight.layout == WeightLayout::kPanels16) {
    row = index / (columns * kPanelLanes) * kPanelLanes + index % kPanelLanes;
    column = index / kPanelLanes % columns;
  }
  return Error(Code::kBadModel, "%s: the %s at row %lld, %s %lld is NaN or infinite", title.c_str(),
               is_value ? "value" : "scale", static_cast<long long>(row), is_value ? "column" : "group",
               static_cast<long long>(column));
}

}  // namespace kvc
