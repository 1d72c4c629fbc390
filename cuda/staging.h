// What an operation tells its kernels beyond a few numbers: records, page ids, programs; and the scratch that
// it was given.
#pragma once
#include <cstring>

#include "cuda/stream.h"

namespace kvc::cuda {

inline int64_t PowerOfTwoFrom(int64_t n) {
  int64_t p = 1;
  while (p < n) p *= 2;
  return p;
}

// Writes a packet: Add in the order in which Size counted.
class Packet {
 public:
  static constexpr int64_t kAlign = 16;
  template <typename T>
  static int64_t Size(int64_t n) {
    return (n * static_cast<int64_t>(sizeof(T)) + kAlign - 1) / kAlign * kAlign;
  }
  // room: bytes of scratch, as Size counts them.
  Status Begin(Stream* s, int64_t bytes, int64_t room = 0) {
    stream_ = static_cast<CudaStream*>(s);
    bytes_ = bytes, at_ = 0, room_ = bytes, end_ = bytes + room;
    return stream_->Begin(bytes, room, &host_, &device_);
  }
  // Room for n of T; *device: where they will be. Kernels may write there too: the next packet is a new copy.
  template <typename T>
  T* Add(int64_t n, T** device) {
    assert(at_ + Size<T>(n) <= bytes_);
    T* host = reinterpret_cast<T*>(host_ + at_);
    *device = reinterpret_cast<T*>(device_ + at_);
    at_ += Size<T>(n);
    return host;
  }
  template <typename T>
  T* Add(int64_t n, const T** device) {
    T* at = nullptr;
    T* host = Add<T>(n, &at);
    *device = at;
    return host;
  }
  template <typename T>
  const T* Copy(const T* from, int64_t n) {
    const T* device;
    T* host = Add<T>(n, &device);
    if (n > 0) std::memcpy(host, from, static_cast<size_t>(n) * sizeof(T));
    return device;
  }
  // Scratch on the device.
  template <typename T>
  T* Room(int64_t n) {
    assert(room_ + Size<T>(n) <= end_);
    T* at = reinterpret_cast<T*>(device_ + room_);
    room_ += Size<T>(n);
    return at;
  }
  // Room on the host that kernels write and the host reads when the stream has been waited for: the device
  // reaches all pinned memory, and a few numbers are there before a copy of them would have begun.
  template <typename T>
  T* Answers(int64_t n) {
    return reinterpret_cast<T*>(host_ + (reinterpret_cast<uint8_t*>(Room<T>(n)) - device_));
  }
  Status Send() { return stream_->Send(); }

 private:
  CudaStream* stream_ = nullptr;
  uint8_t *host_ = nullptr, *device_ = nullptr;
  int64_t bytes_ = 0, at_ = 0, room_ = 0, end_ = 0;
};

// Takes parts of the scratch that an operation was given, as Packet::Size counts them.
class Scratch {
 public:
  Scratch(uint8_t* at, int64_t bytes) : at_(at), left_(bytes) {}
  template <typename T>
  T* Take(int64_t n) {
    left_ -= Packet::Size<T>(n);
    T* part = reinterpret_cast<T*>(at_);
    at_ += Packet::Size<T>(n);
    return part;
  }
  // Sizes come from two places, what is asked for beforehand and what is taken: they may not part.
  Status Check() const {
    return left_ >= 0 ? Status() : Error(Code::kDevice, "an operation has no room for its work: a defect");
  }

 private:
  uint8_t* at_;
  int64_t left_;
};

}  // namespace kvc::cuda
