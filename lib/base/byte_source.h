// Where bytes are read from, one after the other.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>

#include "lib/base/span.h"
#include "lib/base/status.h"

namespace kvc {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual int64_t size() const = 0;  // of all of it, bytes
  // The next ones, at most that many and at least one, valid until the next call; empty at the end.
  virtual Result<Span<const uint8_t>> Next(int64_t most) = 0;
  virtual void Seek(int64_t offset) = 0;  // 0 .. size(): where Next goes on

  // The next n_bytes, of which no more than are left may be asked for.
  Status Read(void* to, int64_t n_bytes) {
    for (uint8_t* at = static_cast<uint8_t*>(to); n_bytes > 0;) {
      const Result<Span<const uint8_t>> next = Next(n_bytes);
      if (!next.ok()) return next.status();
      const size_t n = next.value().size();
      if (n == 0) return Error(Code::kInternal, "a source of bytes was read beyond its end");
      std::memcpy(at, next.value().data(), n);
      at += n, n_bytes -= static_cast<int64_t>(n);
    }
    return {};
  }
};

// A caller's memory.
class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(Span<const uint8_t> bytes) : bytes_(bytes) {}
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  Result<Span<const uint8_t>> Next(int64_t most) override {
    const size_t n = std::min(bytes_.size() - at_, static_cast<size_t>(most));
    at_ += n;
    return bytes_.subspan(at_ - n, n);
  }
  void Seek(int64_t offset) override { at_ = static_cast<size_t>(offset); }

 private:
  const Span<const uint8_t> bytes_;
  size_t at_ = 0;
};

}  // namespace kvc
