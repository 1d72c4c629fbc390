#include "lib/engine/text_stream.h"

#include <algorithm>
#include <cstring>

#include "lib/base/utf8.h"

namespace kvc {
namespace {

// Whether the n bytes could be the start of one longer valid character.
bool CanBeCompleted(const uint8_t* p, size_t n) {
  const size_t length = p[0] < 0xC2 || p[0] > 0xF4 ? 0 : p[0] < 0xE0 ? 2 : p[0] < 0xF0 ? 3 : 4;
  if (n >= length) return false;
  uint8_t whole[4] = {p[0], 0, 0, 0};
  std::memcpy(whole, p, n);
  // The second byte alone decides about overlong forms, surrogates and the end of the range: try its
  // extremes.
  for (const uint8_t fill : {uint8_t{0x80}, uint8_t{0xBF}}) {
    for (size_t i = n; i < length; ++i) whole[i] = fill;
    if (Utf8Length(whole, length) == length) return true;
  }
  return false;
}

}  // namespace

void TextStream::Clear() {
  ready_.clear();
  ready_.reserve(kReserve);
  pending_.clear();
  pending_.reserve(64);
  read_ = 0;
  at_start_ = true;
}

void TextStream::Push(Span<const uint8_t> bytes, bool at_start) {
  if (read_ > kReserve) {
    ready_.erase(0, read_);
    read_ = 0;
  }
  // Memory first: a failure leaves everything as it was. A byte becomes at most the three of U+FFFD.
  const size_t waiting = pending_.size() + bytes.size(), most = ready_.size() + 3 * waiting;
  if (most > ready_.capacity()) ready_.reserve(std::max(most, 2 * ready_.capacity()));
  pending_.reserve(waiting);
  at_start_ = at_start;
  if (read_ == ready_.size()) ready_.clear(), read_ = 0;
  pending_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const uint8_t* p = reinterpret_cast<const uint8_t*>(pending_.data());
  size_t at = 0;
  while (at < pending_.size()) {
    const size_t length = Utf8Length(p + at, pending_.size() - at);
    if (length > 0) {
      ready_.append(pending_, at, length);
      at += length;
    } else if (CanBeCompleted(p + at, pending_.size() - at)) {
      break;
    } else {
      ready_.append(kReplacementChar);
      ++at;
    }
  }
  pending_.erase(0, at);
}

void TextStream::Flush() {
  if (!pending_.empty()) ready_.append(kReplacementChar);
  pending_.clear();
}

bool TextStream::IsWhole() const {
  const auto* waiting = reinterpret_cast<const uint8_t*>(pending_.data());
  return IsUtf8(ready_.substr(read_)) && (pending_.empty() || CanBeCompleted(waiting, pending_.size()));
}

int32_t TextStream::NextBytes() const {
  size_t n = std::min<size_t>(ready_.size() - read_, 1);
  while (n > 0 && read_ + n < ready_.size() && (static_cast<uint8_t>(ready_[read_ + n]) & 0xC0) == 0x80) ++n;
  return static_cast<int32_t>(n);
}

int32_t TextStream::Pull(uint8_t* out, int32_t cap) {
  size_t n = std::min(ready_.size() - read_, static_cast<size_t>(std::max(cap, 0)));
  while (n > 0 && n < ready_.size() - read_ && (static_cast<uint8_t>(ready_[read_ + n]) & 0xC0) == 0x80) --n;
  std::memcpy(out, ready_.data() + read_, n);
  read_ += n;
  return static_cast<int32_t>(n);
}

}  // namespace kvc
