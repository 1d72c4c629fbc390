// The ids of a text, collected in parts, so that nothing is copied while the list grows.
#pragma once
#include <cstdint>
#include <vector>

#include "lib/base/memory_meter.h"
#include "lib/base/status.h"

namespace kvc {

class TokenList {
 public:
  // What the list holds beyond kFreeIds counts against the meter; null: nothing does. kCount: the ids are not
  // kept.
  enum Kind { kKeep, kCount };
  explicit TokenList(MemoryMeter* meter = nullptr, Kind kind = kKeep) : meter_(meter), kind_(kind) {}
  // After a failure (status()) ids are dropped.
  void Push(int32_t id) {
    if (at_ == end_ && !Grow()) return;
    *at_++ = id;
  }
  size_t size() const { return n_before_ + static_cast<size_t>(at_ - begin_); }
  // kMemory: a part could not be had.
  const Status& status() const { return status_; }
  // out: room for size() ids. Not of a list that only counts.
  void CopyTo(int32_t* out) const;

 private:
  static constexpr int64_t kFreeIds = 1 << 16, kLeastPart = 1 << 10, kMostPart = 1 << 16;
  bool Grow();
  MemoryMeter* meter_;
  Kind kind_;
  std::vector<Buffer<int32_t>> parts_;                         // all but the last are full
  int32_t *begin_ = nullptr, *at_ = nullptr, *end_ = nullptr;  // of the last one
  size_t n_before_ = 0;                                        // ids in the others
  Status status_;
};

}  // namespace kvc
