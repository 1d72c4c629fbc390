#include "lib/model/tensor_scan.h"

#include <algorithm>

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

void TensorScan::Update(const uint8_t* bytes, int64_t n_bytes) {
  hasher_.Update(bytes, static_cast<size_t>(n_bytes));
  Scan(tensor_.weight.type, 0, layout_.data_bytes, bytes, n_bytes, &bad_value_);
  if (layout_.scales_bytes > 0) {
    Scan(WeightType::kF16, layout_.scales_offset, layout_.n_bytes, bytes, n_bytes, &bad_scale_);
  }
  position_ += n_bytes;
}

Status TensorScan::CheckFinite() const {
  if (bad_value_ < 0 && bad_scale_ < 0) return {};
  const bool is_value = bad_value_ >= 0;
  const int64_t index = is_value ? bad_value_ : bad_scale_;
  const int64_t columns = is_value ? tensor_.weight.cols : tensor_.weight.cols / tensor_.weight.group;
  int64_t row = index / columns, column = index % columns;
  if (tensor_.weight.layout == WeightLayout::kPanels16) {
    row = index / (columns * kPanelLanes) * kPanelLanes + index % kPanelLanes;
    column = index / kPanelLanes % columns;
  }
  return Error(Code::kBadModel, "%s: the %s at row %lld, %s %lld is NaN or infinite",
               TensorTitle(tensor_.role, tensor_.layer).c_str(), is_value ? "value" : "scale",
               static_cast<long long>(row), is_value ? "column" : "group", static_cast<long long>(column));
}

}  // namespace kvc
