#include "cuda/stream.h"

namespace kvc::cuda {
namespace {

// Rings grow until the packets of a step fit, so that no step waits for room and every step's lie where those
// of the last one lay.
constexpr int64_t kFirstBytes = 256 << 10, kMostBytes = 64 << 20;

int64_t Rounded(int64_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

Status CudaStream::Create(cudaStream_t stream) {
  stream_ = stream;
  KVC_RETURN_IF_ERROR(
      Check(cudaEventCreateWithFlags(&reached_, cudaEventDisableTiming), "an event of the device"));
  return Grow(kFirstBytes);
}

CudaStream::~CudaStream() {
  const Current current(context_);
  if (stream_ == nullptr || !current.ok()) return;
  cudaStreamSynchronize(stream_);
  graphs_.Clear();
  reports_.Free();
  if (reached_ != nullptr) cudaEventDestroy(reached_);
  cudaFree(device_);
  cudaFreeHost(host_);
}

Status CudaStream::Follow(Stream* other) {
  CudaStream& front = *static_cast<CudaStream*>(other);
  const Current current(context_);
  KVC_RETURN_IF_ERROR(current.status());
  KVC_RETURN_IF_ERROR(Flush());
  KVC_RETURN_IF_ERROR(front.Flush());
  KVC_RETURN_IF_ERROR(Check(cudaEventRecord(front.reached_, front.stream_), "the order of streams"));
  return Check(cudaStreamWaitEvent(stream_, front.reached_, 0), "the order of streams");
}

void CudaStream::Gather() {
  gathers_ = true, piece_ = 0, failed_launch_ = false;
  angles_.Forget();
}

// Where a launch failed there are no lengths to be had, and caches keep those they have.
Status CudaStream::Issue() {
  gathers_ = false;
  angles_.Forget();
  const Current current(context_);
  Status status = current.status();
  if (status.ok()) status = Flush();
  if (!status.ok() || failed_launch_) return reports_.Drop(), status;
  return reports_.Collect(this);
}

// One copy brings all packets of the kept launches, and what lies between them; nothing that is on its way
// reads what it overwrites.
cudaError_t CudaStream::SendKept() {
  PacketCopy copy{device_ + sent_, host_ + sent_, 0};
  if (written_ > sent_) copy.bytes = static_cast<size_t>(written_ - sent_);
  sent_ = used_;
  const cudaError_t e = graphs_.Run(stream_, gathers_ ? piece_++ : 0, &kept_, copy, &failed_);
  failed_launch_ = failed_launch_ || e != cudaSuccess;
  kept_.Clear();
  return e;
}

Status CudaStream::Wait(const char* what) {
  const Status status = Flush();
  used_ = sent_ = written_ = 0;
  angles_.Forget();  // the next packets lie where they did
  const Status waited = Check(cudaStreamSynchronize(stream_), what);
  return status.ok() ? waited : status;
}

Status CudaStream::Grow(int64_t bytes) {
  void *host = nullptr, *device = nullptr;
  KVC_RETURN_IF_ERROR(
      Check(cudaHostAlloc(&host, static_cast<size_t>(bytes), cudaHostAllocDefault), "memory for records"));
  const Status status = Check(NewMemory(kept_blocks_, bytes, &device), "memory for records");
  if (!status.ok()) {
    cudaFreeHost(host);
    return status;
  }
  graphs_.ForgetPackets();
  cudaFree(device_);
  cudaFreeHost(host_);
  host_ = static_cast<uint8_t*>(host), device_ = static_cast<uint8_t*>(device);
  size_ = bytes;
  return {};
}

bool CudaStream::HasRoom(int64_t bytes) const { return Rounded(bytes) <= size_; }

Status CudaStream::Reserve(int64_t bytes) {
  if (HasRoom(bytes)) return {};
  const int64_t all = Rounded(bytes);
  KVC_RETURN_IF_ERROR(Wait("the device"));
  const Status twice = Grow(2 * all);
  return twice.code() == Code::kMemory ? Grow(all) : twice;
}

bool CudaStream::Fits(int64_t bytes) const { return used_ + Rounded(bytes) <= size_; }

Status CudaStream::Begin(int64_t bytes, int64_t room, uint8_t** host, uint8_t** device) {
  const int64_t all = Rounded(bytes + room);
  KVC_RETURN_IF_ERROR(Reserve(all));
  if (used_ + all > size_) {
    KVC_RETURN_IF_ERROR(Wait("the device"));
    grows_ = grows_ && size_ < kMostBytes && Grow(2 * size_).ok();  // else the ring starts over
  }
  packet_ = used_, packet_bytes_ = bytes;
  used_ += all;
  *host = host_ + packet_, *device = device_ + packet_;
  return {};
}

Status CudaStream::Send() {
  if (packet_bytes_ > 0) written_ = packet_ + packet_bytes_;
  return gathers_ ? Status() : Flush();
}

Status CudaStream::Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, const char* what) {
  if (bytes <= 0) return {};
  KVC_RETURN_IF_ERROR(Flush());
  return Check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kind, stream_), what);
}

Status CudaStream::Clear(void* at, int64_t bytes, const char* what) {
  if (bytes <= 0) return {};
  KVC_RETURN_IF_ERROR(Flush());
  return Check(cudaMemsetAsync(at, 0, static_cast<size_t>(bytes), stream_), what);
}

Status CudaStream::Fetch(const void* device, void* to, int64_t bytes) {
  if (bytes <= 0) return {};
  KVC_RETURN_IF_ERROR(Copy(to, device, bytes, cudaMemcpyDeviceToHost, "reading the device"));
  return Wait("the device");
}

}  // namespace kvc::cuda
