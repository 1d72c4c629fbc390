// Token scores of a prompt whose layers share one budget (methods.md 2.18): they wait in the host's memory
// until all layers have theirs. Bytes: 4 a score, and to compare them 4 more or, where what a budget of bytes
// leaves is given out, 8.
#pragma once
#include <cassert>
#include <cstdint>
#include <vector>

#include "lib/base/memory_meter.h"
#include "lib/base/span.h"

namespace kvc {

class WaitingScores {
 public:
  // Room for n_heads lines of at most `longest` scores. What waits is lost where that is more than before.
  Status Reserve(MemoryMeter* meter, int64_t n_heads, int64_t longest);
  // Room for `each` bytes a score beside them.
  Status ReserveRoom(MemoryMeter* meter, int64_t each);
  void Free();
  int64_t bytes() const { return scores_.bytes() + room_.bytes(); }

  // A line for n scores, at most `longest`.
  float* Begin(int32_t line, int32_t n) {
    assert(n <= longest_);
    n_[static_cast<size_t>(line)] = n;
    return scores_.data() + line * longest_;
  }
  bool Has(int32_t line) const { return !n_.empty() && n_[static_cast<size_t>(line)] > 0; }
  Span<const float> Of(int32_t line) const {
    return {scores_.data() + line * longest_, static_cast<size_t>(n_[static_cast<size_t>(line)])};
  }
  void* room() { return room_.data(); }

 private:
  Buffer<float> scores_;
  Buffer<uint8_t> room_;
  std::vector<int32_t> n_;  // [lines]
  int64_t longest_ = 0;
};

}  // namespace kvc
