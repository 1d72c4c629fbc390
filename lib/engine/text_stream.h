// Turns tokens into text that is complete UTF-8: the bytes of a split character wait until it is whole.
#pragma once
#include <algorithm>
#include <cstdint>
#include <string>

#include "lib/base/archive.h"
#include "lib/base/span.h"

namespace kvc {

class TextStream {
 public:
  TextStream() { Clear(); }
  // at_start: whether what follows may still be the beginning of the text (Tokenizer::TextOf).
  void Push(Span<const uint8_t> bytes, bool at_start);
  // No more bytes will come: what waits can never be completed and becomes U+FFFD.
  void Flush();
  // The rest of a split character will not come, and what comes next is another text.
  void DropWaiting() { pending_.clear(), at_start_ = true; }
  // The newest tokens, of so many bytes, are gone: so are those of them that wait.
  void TakeBack(size_t n) { pending_.resize(pending_.size() - std::min(pending_.size(), n)); }
  bool at_start() const { return at_start_; }
  void set_at_start(bool at_start) { at_start_ = at_start; }
  // Moves out at most cap bytes, never splitting a character; returns their number.
  int32_t Pull(uint8_t* out, int32_t cap);
  // Bytes that Pull could give now.
  int32_t Available() const { return static_cast<int32_t>(ready_.size() - read_); }
  // Bytes of the first character that Pull would give; 0: none waits.
  int32_t NextBytes() const;
  void Clear();
  // The place that `other` has reached, within a character too; what is ready there is read there.
  void GoOnFrom(const TextStream& other) { at_start_ = other.at_start_, pending_ = other.pending_; }
  // Unread text is complete characters, and what waits can become one: true but for what Archive read.
  bool IsWhole() const;
  // Unread text and waiting bytes, to a file or back.
  template <typename A>
  Status Archive(A& archive, int64_t most) {
    std::string unread = ready_.substr(read_);
    uint8_t start = at_start_ ? 1 : 0;
    KVC_RETURN_IF_ERROR(ArchiveSequence(archive, unread, most));
    KVC_RETURN_IF_ERROR(ArchiveSequence(archive, pending_, 3));
    KVC_RETURN_IF_ERROR(ArchiveValue(archive, start));
    if (A::kReading) ready_ = unread, read_ = 0, at_start_ = start != 0;
    return {};
  }

 private:
  static constexpr size_t kReserve = 1024;  // some hundred tokens that nobody reads allocate nothing
  bool at_start_ = true;
  std::string ready_;    // complete characters
  size_t read_ = 0;      // of ready_
  std::string pending_;  // at most 3 bytes of a character
};

}  // namespace kvc
