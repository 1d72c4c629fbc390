// A metered block of device memory that belongs to someone above the device interface.
#pragma once
#include <utility>

#include "lib/base/memory_meter.h"
#include "lib/ops/device.h"

namespace kvc {

// Where memory comes from, and what counts it. A meter that only counts lays out memory without taking any.
struct DeviceMemory {
  Device* device = nullptr;
  MemoryMeter* meter = nullptr;
};

template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceBuffer&& o) noexcept { Swap(o); }
  DeviceBuffer& operator=(DeviceBuffer&& o) noexcept {
    Free();
    Swap(o);
    return *this;
  }
  ~DeviceBuffer() { Free(); }
  // Replaces the block; the content of a new one is undefined. On failure the old block is gone and size() is
  // 0.
  Status Allocate(const DeviceMemory& memory, int64_t count, const char* what) {
    Free();
    if (count <= 0) return {};
    const int64_t bytes = (count * static_cast<int64_t>(sizeof(T)) + 63) / 64 * 64;
    if (memory.meter != nullptr) KVC_RETURN_IF_ERROR(memory.meter->Take(bytes, what));
    struct GiveBack {  // also when there is no memory for the message
      MemoryMeter* meter;
      int64_t bytes;
      ~GiveBack() {
        if (meter != nullptr) meter->Give(bytes);
      }
    } give_back{memory.meter, bytes};
    DeviceBytes at;
    if (memory.meter == nullptr || !memory.meter->counting())
      KVC_RETURN_IF_ERROR(memory.device->Allocate(bytes, what, &at));
    give_back.meter = nullptr;
    memory_ = memory, size_ = count, bytes_ = bytes;
    at_ = at.As<T>();
    return {};
  }
  // At least `count` elements; a block that must grow loses its content.
  Status Reserve(const DeviceMemory& memory, int64_t count, const char* what) {
    return count <= size_ ? Status() : Allocate(memory, count, what);
  }
  void Free() {
    if (at_) memory_.device->Free(at_.template As<uint8_t>(), bytes_);
    if (memory_.meter != nullptr) memory_.meter->Give(bytes_);
    memory_ = {}, at_ = {}, size_ = 0, bytes_ = 0;
  }
  DevicePtr<T> at() const { return at_; }
  const DeviceMemory& memory() const { return memory_; }
  DeviceBytes raw() const { return at_.template As<uint8_t>(); }
  int64_t size() const { return size_; }
  int64_t bytes() const { return bytes_; }

 private:
  void Swap(DeviceBuffer& o) {
    std::swap(memory_, o.memory_);
    std::swap(at_, o.at_);
    std::swap(size_, o.size_);
    std::swap(bytes_, o.bytes_);
  }
  DeviceMemory memory_;
  DevicePtr<T> at_;
  int64_t size_ = 0, bytes_ = 0;
};

}  // namespace kvc
