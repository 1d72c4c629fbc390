// Where bytes are written to, one after the other.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lib/base/status.h"

namespace kvc {

class ByteSink {
 public:
  virtual ~ByteSink() = default;
  virtual Status Write(const void* data, int64_t n_bytes) = 0;
};

// A caller's memory. Bytes beyond its end are counted only.
class MemorySink final : public ByteSink {
 public:
  MemorySink(uint8_t* data, int64_t capacity) : data_(data), capacity_(capacity) {}
  Status Write(const void* data, int64_t n_bytes) override {
    const int64_t fits = std::clamp<int64_t>(capacity_ - size_, 0, n_bytes);
    if (fits > 0) std::memcpy(data_ + size_, data, static_cast<size_t>(fits));
    size_ += n_bytes;
    return {};
  }
  int64_t size() const { return size_; }

 private:
  uint8_t* const data_;
  const int64_t capacity_;
  int64_t size_ = 0;
};

}  // namespace kvc
