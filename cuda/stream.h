// What a caller sends to the GPU, in order. The host writes a packet for an operation into pinned memory, a
// copy in front of the kernels brings it to the device; packets follow each other in a ring that starts over
// when the stream has been waited for. Between Gather and Issue packets and launches are kept back, and go
// out in pieces of one copy and a graph of kernels (launch_graphs.h).
#pragma once
#include "cuda/driver.h"
#include "cuda/kept_blocks.h"
#include "cuda/launch_graphs.h"
#include "cuda/step_state.h"
#include "lib/ops/device.h"

namespace kvc::cuda {

// All streams of a device are one of the GPU's: pages go from one session to another, and forks share them,
// so the order between sessions is that of their calls. Those beside them (Device::NewSideStream) are another
// one, of which what waits begins when the first has nothing to begin. What is a stream's own is where its
// packets lie, and what it keeps back. Operations that use it are in the device's context.
class CudaStream final : public Stream {
 public:
  // kept: what goes where there is no memory for what is the stream's own; null: nothing.
  explicit CudaStream(const LaunchTraits& traits, const Context& context = {}, KeptBlocks* kept = nullptr)
      : context_(context), traits_(traits), kept_blocks_(kept), graphs_(traits, kept), reports_(kept) {}
  ~CudaStream() override;
  Status Create(cudaStream_t stream);

  Status Follow(Stream* other) override;
  void Gather() override;
  Status Issue() override;
  bool gathers() const { return gathers_; }

  // Everything launched so far has happened.
  Status Wait(const char* what);

  // Whether the ring is as long as that; and makes it so: packets of so many bytes, `room` included, fit from
  // here on.
  bool HasRoom(int64_t bytes) const;
  Status Reserve(int64_t bytes);
  // Room for a packet: *host to be written before Send, *device its address there. `room`: bytes behind it
  // that are on the device alone, for what the host reads back.
  Status Begin(int64_t bytes, int64_t room, uint8_t** host, uint8_t** device);
  // Whether such a packet lies behind those that were sent, all of which stay where they are.
  bool Fits(int64_t bytes) const;
  Status Send();
  // bytes [device, ..) into `to`; waits.
  Status Fetch(const void* device, void* to, int64_t bytes);
  Status Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind, const char* what);
  Status Clear(void* at, int64_t bytes, const char* what);

  // By KVC_LAUNCH (launch.h).
  template <typename... Params>
  cudaError_t Launch(const Kernel& kernel, dim3 grid, dim3 block, size_t shared,
                     const std::tuple<Params...>& values) {
    kept_.Add(kernel, order_, grid, block, shared, values);
    return gathers_ && kept_.size() < MostOfPiece() ? cudaSuccess : SendKept();
  }

  // For what a library launches itself: everything launched so far is in front of it.
  cudaError_t Reach(cudaStream_t* out) {
    *out = stream_;
    return SendKept();
  }

  // Of launches from here on (InOrder).
  const LaunchOrder& order() const { return order_; }
  void SetOrder(const LaunchOrder& order) { order_ = order; }

  // What the layers of a step share: angles for as long as the packets that brought them lie where they are,
  // and lengths that are read when the step has been issued.
  StepAngles& angles() { return angles_; }
  RowsBehind& behind() { return behind_; }
  LengthReports& reports() { return reports_; }

  const LaunchGraphs& graphs() const { return graphs_; }
  const LaunchTraits& traits() const { return traits_; }

 private:
  // Launches, at most. Pieces are short against a step, which has five launches a layer and more; the GPU
  // waits for the first one while the host makes it.
  size_t MostOfPiece() const {
    return static_cast<size_t>(piece_ == 0 ? traits_.tuning.first_piece : traits_.tuning.piece);
  }
  Status Grow(int64_t bytes);
  cudaError_t SendKept();
  Status Flush() { return Check(SendKept(), failed_); }

  const Context context_;
  const LaunchTraits traits_;
  KeptBlocks* const kept_blocks_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t reached_ = nullptr;  // the end of what it was given, when another followed it
  uint8_t *host_ = nullptr, *device_ = nullptr;
  int64_t size_ = 0, used_ = 0, packet_ = 0, packet_bytes_ = 0;
  int64_t sent_ = 0, written_ = 0;  // packets in front of sent_ are on their way; written_: end of the newest
  bool gathers_ = false, grows_ = true;
  bool failed_launch_ = false;  // since Gather
  int32_t piece_ = 0;
  LaunchOrder order_;
  LaunchList kept_;
  LaunchGraphs graphs_;
  StepAngles angles_;
  RowsBehind behind_;
  LengthReports reports_;
  const char* failed_ = "";
};

// The launches of a scope come in this order.
class InOrder {
 public:
  InOrder(CudaStream& stream, const LaunchOrder& order) : stream_(stream), before_(stream.order()) {
    stream_.SetOrder(order);
  }
  ~InOrder() { stream_.SetOrder(before_); }
  InOrder(const InOrder&) = delete;
  InOrder& operator=(const InOrder&) = delete;

 private:
  CudaStream& stream_;
  const LaunchOrder before_;
};

}  // namespace kvc::cuda
