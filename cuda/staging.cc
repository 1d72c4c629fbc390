#include "cuda/staging.h"

#include <algorithm>

namespace kvc::cuda {
namespace {

constexpr int64_t kFirstBytes = 256 << 10;

}  // namespace

Status Check(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return {};
  const Code code = e == cudaErrorMemoryAllocation ? Code::kMemory : Code::kDevice;
  return Error(code, "%s: %s", what, cudaGetErrorString(e));
}

Status CudaStream::Create(cudaStream_t stream) {
  stream_ = stream;
  return Grow(kFirstBytes);
}

CudaStream::~CudaStream() {
  if (stream_ == nullptr) return;
  cudaStreamSynchronize(stream_);
  cudaFree(device_);
  cudaFreeHost(host_);
}

Status CudaStream::Wait(const char* what) {
  used_ = 0;
  return Check(cudaStreamSynchronize(stream_), what);
}

Status CudaStream::Grow(int64_t bytes) {
  KVC_RETURN_IF_ERROR(Wait("the device"));
  cudaFree(device_);
  cudaFreeHost(host_);
  host_ = device_ = nullptr, size_ = 0;
  void *host = nullptr, *device = nullptr;
  KVC_RETURN_IF_ERROR(
      Check(cudaHostAlloc(&host, static_cast<size_t>(bytes), cudaHostAllocDefault), "memory for records"));
  host_ = static_cast<uint8_t*>(host);
  KVC_RETURN_IF_ERROR(Check(cudaMalloc(&device, static_cast<size_t>(bytes)), "memory for records"));
  device_ = static_cast<uint8_t*>(device);
  size_ = bytes;
  return {};
}

Status CudaStream::Begin(int64_t bytes, int64_t room, uint8_t** host, uint8_t** device) {
  const int64_t all = (bytes + room + 255) / 256 * 256;
  if (all > size_) KVC_RETURN_IF_ERROR(Grow(std::max(all * 2, kFirstBytes)));
  if (used_ + all > size_) KVC_RETURN_IF_ERROR(Wait("the device"));
  packet_ = used_, packet_bytes_ = bytes;
  used_ += all;
  *host = host_ + packet_, *device = device_ + packet_;
  return {};
}

Status CudaStream::Send() {
  if (packet_bytes_ == 0) return {};
  return Check(cudaMemcpyAsync(device_ + packet_, host_ + packet_, static_cast<size_t>(packet_bytes_),
                               cudaMemcpyHostToDevice, stream_),
               "records for the device");
}

Status CudaStream::Fetch(const void* device, void* to, int64_t bytes) {
  if (bytes <= 0) return {};
  KVC_RETURN_IF_ERROR(
      Check(cudaMemcpyAsync(to, device, static_cast<size_t>(bytes), cudaMemcpyDeviceToHost, stream_),
            "reading the device"));
  return Wait("the device");
}

}  // namespace kvc::cuda
