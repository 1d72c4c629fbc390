// Device memory that was freed and is kept for whoever asks for about as much next. A prompt has some 25
// blocks of scratch that steps go without, and cudaFree waits for all that the device does: so a short prompt
// would take and give back its memory in about the time in which it is read.
//
// Not the driver's pools (cudaMallocAsync): a block would be freed on one stream, where two may still use it,
// not every device has them, and what they keep beyond their threshold goes when a stream is waited for, not
// when other memory is refused.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <mutex>

namespace kvc::cuda {

// Of a device, for any thread; all but the constructor in its context. No bytes beyond `most` are kept, those
// included that lent blocks have more than they were asked for.
class KeptBlocks {
 public:
  explicit KeptBlocks(int64_t most) : most_(most) {}
  KeptBlocks(const KeptBlocks&) = delete;
  KeptBlocks& operator=(const KeptBlocks&) = delete;

  // The streams that blocks are used on; null: none.
  void Watch(cudaStream_t first, cudaStream_t second);
  // New memory, for which what is kept goes if it has to.
  cudaError_t Allocate(int64_t bytes, void** out);
  // A kept block, once all has ended that was issued before it was freed, or new memory.
  cudaError_t Take(int64_t bytes, void** out);
  // A block of Take that had so many.
  void Free(void* at, int64_t bytes);
  // False: nothing was kept.
  bool FreeAll();
  void KeepNothing();
  // In front of the streams' end: all of it goes.
  void Close();

 private:
  static constexpr int kMostBlocks = 64, kFences = 4;
  struct Block {
    uint8_t* at;
    int64_t bytes;
    int fence;  // -1: none yet
  };
  // Of a lent block that has more than was asked for.
  struct Loan {
    const uint8_t* at = nullptr;
    int64_t bytes = 0, more = 0;
  };
  // A point in both streams. One that is set again lies further on: who waits for it waits longer.
  struct Fence {
    cudaEvent_t of[2] = {};
    cudaError_t Set(const cudaStream_t (&streams)[2]);
    cudaError_t Wait() const;
  };

  cudaError_t SetFence();
  int Find(int64_t bytes);
  void Remove(int i);
  void FreeOldest();

  std::mutex mutex_;
  int64_t most_, kept_ = 0;  // kept_: what is more in lent ones included
  cudaStream_t streams_[2] = {};
  Block blocks_[kMostBlocks];  // the oldest first
  int n_blocks_ = 0, next_fence_ = 0;
  Loan loans_[kMostBlocks];
  Fence fences_[kFences];
};

// New memory, for which goes what `kept` has if it has to; null: nothing is kept.
inline cudaError_t NewMemory(KeptBlocks* kept, int64_t bytes, void** out) {
  return kept == nullptr ? cudaMalloc(out, static_cast<size_t>(bytes)) : kept->Allocate(bytes, out);
}

}  // namespace kvc::cuda
