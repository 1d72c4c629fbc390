// What an operation tells its kernels beyond a few numbers: records, page ids, programs. The host writes a
// packet into pinned memory, one copy in front of the kernels brings it to the device. Packets follow each
// other in a ring that starts over when the stream has been waited for.
#pragma once
#include <cuda_runtime.h>

#include <cstring>

#include "lib/base/status.h"
#include "lib/ops/device.h"

namespace kvc::cuda {

// An error of the runtime as one of ours.
Status Check(cudaError_t e, const char* what);

// All streams of a device are one of the GPU's: pages go from one session to another, and forks share them,
// so the order between sessions is that of their calls. What is a stream's own is where its packets lie.
class CudaStream final : public Stream {
 public:
  ~CudaStream() override;
  Status Create(cudaStream_t stream);

  cudaStream_t stream() const { return stream_; }
  // Everything issued so far has happened.
  Status Wait(const char* what);

  // Room for a packet: *host to be written before Send, *device its address there. `room`: bytes behind it
  // that are on the device alone, scratch for the kernels that the packet is for.
  Status Begin(int64_t bytes, int64_t room, uint8_t** host, uint8_t** device);
  Status Send();
  // bytes [device, ..) into `to`; waits.
  Status Fetch(const void* device, void* to, int64_t bytes);

 private:
  Status Grow(int64_t bytes);
  cudaStream_t stream_ = nullptr;
  uint8_t *host_ = nullptr, *device_ = nullptr;
  int64_t size_ = 0, used_ = 0, packet_ = 0, packet_bytes_ = 0;
};

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
  // Room for n of T; *device: where they will be.
  template <typename T>
  T* Add(int64_t n, const T** device) {
    assert(at_ + Size<T>(n) <= bytes_);
    T* host = reinterpret_cast<T*>(host_ + at_);
    *device = reinterpret_cast<const T*>(device_ + at_);
    at_ += Size<T>(n);
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
  Status Send() { return stream_->Send(); }
  CudaStream& stream() const { return *stream_; }

 private:
  CudaStream* stream_ = nullptr;
  uint8_t *host_ = nullptr, *device_ = nullptr;
  int64_t bytes_ = 0, at_ = 0, room_ = 0, end_ = 0;
};

}  // namespace kvc::cuda
