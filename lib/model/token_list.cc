#include "lib/model/token_list.h"

#include <algorithm>

namespace kvc {

bool TokenList::Grow() {
  if (!status_.ok()) return false;
  const int64_t n = static_cast<int64_t>(size());
  if (kind_ == kCount && n > 0) {
    n_before_ = static_cast<size_t>(n);
    at_ = begin_;
    return true;
  }
  Buffer<int32_t> part;
  status_ = part.Allocate(n < kFreeIds ? nullptr : meter_, std::clamp(n, kLeastPart, kMostPart),
                          "the tokens of a text");
  if (!status_.ok()) return false;
  parts_.push_back(std::move(part));
  n_before_ = static_cast<size_t>(n);
  begin_ = at_ = parts_.back().data();
  end_ = begin_ + parts_.back().size();
  return true;
}

void TokenList::CopyTo(int32_t* out) const {
  for (const Buffer<int32_t>& part : parts_) {
    const int32_t* end = part.data() == begin_ ? at_ : part.data() + part.size();
    out = std::copy(part.data(), end, out);
  }
}

}  // namespace kvc
