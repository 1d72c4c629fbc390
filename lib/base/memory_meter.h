// Counts the bytes a model and its sessions hold against one limit. Everything large is taken through it.
#pragma once
#include <atomic>
#include <cstdint>
#include <new>
#include <utility>

#include "lib/base/system_memory.h"
#include "lib/base/status.h"

namespace kvc {

class MemoryMeter {
 public:
  // counting: Buffers of this meter take no memory, they only count. The code that lays out memory thus also
  // computes its size.
  explicit MemoryMeter(int64_t limit, bool counting = false) : limit_(limit), counting_(counting) {}
  // Takes `bytes`, or fails with kMemory and takes nothing. limit 0 = none. Thread-safe.
  Status Take(int64_t bytes, const char* what) {
    int64_t before = used_.load(std::memory_order_relaxed);
    while ((limit_ == 0 || before + bytes <= limit_) &&
           !used_.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed)) {
    }
    if (limit_ > 0 && before + bytes > limit_) {  // nothing was taken, not for a moment: others may fit
      return Error(Code::kMemory, "%lld more bytes are needed for %s: %lld of the limit of %lld are in use",
                   static_cast<long long>(bytes), what, static_cast<long long>(before),
                   static_cast<long long>(limit_));
    }
    int64_t peak = peak_.load(std::memory_order_relaxed);
    while (before + bytes > peak &&
           !peak_.compare_exchange_weak(peak, before + bytes, std::memory_order_relaxed)) {
    }
    return {};
  }
  void Give(int64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }
  int64_t peak() const { return peak_.load(std::memory_order_relaxed); }
  int64_t limit() const { return limit_; }
  bool counting() const { return counting_; }

 private:
  const int64_t limit_;
  const bool counting_;
  std::atomic<int64_t> used_{0}, peak_{0};
};

// Bytes that others hold for us (a library's, an object's own), counted while this lives. Movable.
class MeterCharge {
 public:
  MeterCharge() = default;
  MeterCharge(MeterCharge&& o) noexcept { Swap(o); }
  MeterCharge& operator=(MeterCharge&& o) noexcept {
    Swap(o);
    return *this;
  }
  ~MeterCharge() {
    if (meter_ != nullptr) meter_->Give(bytes_);
  }
  // Counts `bytes` more. A null meter counts nothing.
  Status Add(MemoryMeter* meter, int64_t bytes, const char* what) {
    if (meter == nullptr) return {};
    KVC_RETURN_IF_ERROR(meter->Take(bytes, what));
    meter_ = meter, bytes_ += bytes;
    return {};
  }
  int64_t bytes() const { return bytes_; }

 private:
  void Swap(MeterCharge& o) {
    std::swap(meter_, o.meter_);
    std::swap(bytes_, o.bytes_);
  }
  MemoryMeter* meter_ = nullptr;
  int64_t bytes_ = 0;
};

// A metered, 64-byte aligned block of T, from the system when it is large. Movable. T must be trivial. The
// content of a new block is undefined.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(Buffer&& o) noexcept { Swap(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    Free();
    Swap(o);
    return *this;
  }
  ~Buffer() { Free(); }
  // Replaces the block. On failure the old block is gone and size() is 0.
  Status Allocate(MemoryMeter* meter, int64_t count, const char* what) {
    Free();
    if (count <= 0) return {};
    const int64_t bytes = (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    if (meter != nullptr) KVC_RETURN_IF_ERROR(meter->Take(bytes, what));
    meter_ = meter, size_ = count, bytes_ = bytes;
    if (meter != nullptr && meter->counting()) return {};
    data_ = static_cast<T*>(MapBlock(bytes));
    mapped_ = data_ != nullptr;
    if (mapped_) return {};
    data_ = static_cast<T*>(::operator new (static_cast<size_t>(bytes), std::align_val_t{64}, std::nothrow));
    if (data_ == nullptr) {
      Free();
      return Error(Code::kMemory, "no memory for %s: %lld bytes", what, static_cast<long long>(bytes));
    }
    return {};
  }
  // At least `count` elements; a block that must grow loses its content.
  Status Reserve(MemoryMeter* meter, int64_t count, const char* what) {
    return count <= size_ ? Status() : Allocate(meter, count, what);
  }
  void Free() {
    if (mapped_) {
      UnmapBlock(data_, bytes_);
    } else if (data_ != nullptr) {
      ::operator delete (data_, std::align_val_t{64});
    }
    if (meter_ != nullptr) meter_->Give(bytes_);
    meter_ = nullptr, data_ = nullptr, size_ = 0, bytes_ = 0, mapped_ = false;
  }
  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  int64_t size() const { return size_; }
  int64_t bytes() const { return bytes_; }

 private:
  void Swap(Buffer& o) {
    std::swap(meter_, o.meter_);
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    std::swap(bytes_, o.bytes_);
    std::swap(mapped_, o.mapped_);
  }
  MemoryMeter* meter_ = nullptr;
  T* data_ = nullptr;
  int64_t size_ = 0, bytes_ = 0;
  bool mapped_ = false;
};

}  // namespace kvc
