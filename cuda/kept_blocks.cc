#include "cuda/kept_blocks.h"

#include <algorithm>

namespace kvc::cuda {
namespace {

// A block serves half of its bytes, or small ones whatever they are.
constexpr int64_t kSmall = 64 << 10;

// The emulated device says who touches memory that is nobody's.
#if defined(__CUDACC__)
void NoteFreed(void*, int64_t, cudaStream_t, cudaStream_t) {}
void NoteTaken(void*, int64_t) {}
#else
void NoteFreed(void* at, int64_t bytes, cudaStream_t first, cudaStream_t second) {
  emu::NoteFreed(at, static_cast<size_t>(bytes), first, second);
}
void NoteTaken(void* at, int64_t bytes) { emu::NoteTaken(at, static_cast<size_t>(bytes)); }
#endif

}  // namespace

cudaError_t KeptBlocks::Fence::Set(const cudaStream_t (&streams)[2]) {
  cudaError_t e = cudaSuccess;
  for (int i = 0; i < 2 && e == cudaSuccess; ++i) {
    if (streams[i] == nullptr) continue;
    if (of[i] == nullptr) e = cudaEventCreateWithFlags(&of[i], cudaEventDisableTiming);
    if (e == cudaSuccess) e = cudaEventRecord(of[i], streams[i]);
  }
  return e;
}

cudaError_t KeptBlocks::Fence::Wait() const {
  cudaError_t e = cudaSuccess;
  for (cudaEvent_t event : of) {
    if (event != nullptr && e == cudaSuccess) e = cudaEventSynchronize(event);
  }
  return e;
}

void KeptBlocks::Watch(cudaStream_t first, cudaStream_t second) { streams_[0] = first, streams_[1] = second; }

cudaError_t KeptBlocks::Allocate(int64_t bytes, void** out) {
  cudaError_t e = cudaMalloc(out, static_cast<size_t>(bytes));
  if (e != cudaErrorMemoryAllocation) return e;
  cudaGetLastError();
  return FreeAll() ? cudaMalloc(out, static_cast<size_t>(bytes)) : e;
}

// One for all blocks that have none: what has been freed since the last is not asked for at once, mostly.
cudaError_t KeptBlocks::SetFence() {
  const auto wants = [](const Block& b) { return b.fence < 0; };
  if (std::none_of(blocks_, blocks_ + n_blocks_, wants)) return cudaSuccess;
  const int fence = next_fence_;
  const cudaError_t e = fences_[fence].Set(streams_);
  if (e != cudaSuccess) return e;
  next_fence_ = (fence + 1) % kFences;
  for (int i = 0; i < n_blocks_; ++i) blocks_[i].fence = wants(blocks_[i]) ? fence : blocks_[i].fence;
  return e;
}

// The smallest that will do, and of those the one that was freed first. -1: none.
int KeptBlocks::Find(int64_t bytes) {
  const int64_t most = std::max(2 * bytes, kSmall);
  int best = -1;
  for (int i = 0; i < n_blocks_; ++i) {
    if (blocks_[i].bytes >= bytes && blocks_[i].bytes <= most &&
        (best < 0 || blocks_[i].bytes < blocks_[best].bytes))
      best = i;
  }
  return best;
}

void KeptBlocks::Remove(int i) {
  std::copy(blocks_ + i + 1, blocks_ + n_blocks_, blocks_ + i);
  --n_blocks_;
}

cudaError_t KeptBlocks::Take(int64_t bytes, void** out) {
  *out = nullptr;
  cudaError_t e = cudaSuccess;
  Block block{nullptr, 0, -1};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const int i = Find(bytes);
    Loan* const loan =
        i < 0 ? nullptr
              : std::find_if(loans_, loans_ + kMostBlocks, [](const Loan& l) { return l.at == nullptr; });
    if (i >= 0 && (blocks_[i].bytes == bytes || loan != loans_ + kMostBlocks)) {
      e = SetFence();
      if (e != cudaSuccess) return e;
      block = blocks_[i];
      Remove(i);
      kept_ -= bytes;
      if (block.bytes > bytes) *loan = {block.at, block.bytes, block.bytes - bytes};
    }
  }
  if (block.at == nullptr) return Allocate(bytes, out);
  e = fences_[block.fence].Wait();  // others need not wait for that
  if (e != cudaSuccess) {
    Free(block.at, bytes);
    return e;
  }
  NoteTaken(block.at, block.bytes);
  *out = block.at;
  return e;
}

void KeptBlocks::FreeOldest() {
  kept_ -= blocks_[0].bytes;
  cudaFree(blocks_[0].at);
  Remove(0);
}

void KeptBlocks::Free(void* at, int64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  Block block{static_cast<uint8_t*>(at), bytes, -1};
  for (Loan& loan : loans_) {
    if (loan.at != block.at) continue;
    block.bytes = loan.bytes, kept_ -= loan.more;
    loan = {};
  }
  while (n_blocks_ > 0 && (n_blocks_ == kMostBlocks || kept_ + block.bytes > most_) && block.bytes <= most_)
    FreeOldest();
  if (kept_ + block.bytes > most_) {
    cudaFree(at);
    return;
  }
  kept_ += block.bytes;
  blocks_[n_blocks_++] = block;
  NoteFreed(at, block.bytes, streams_[0], streams_[1]);
}

bool KeptBlocks::FreeAll() {
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool any = n_blocks_ > 0;
  while (n_blocks_ > 0) FreeOldest();
  return any;
}

void KeptBlocks::KeepNothing() {
  FreeAll();
  const std::lock_guard<std::mutex> lock(mutex_);
  most_ = 0;
}

void KeptBlocks::Close() {
  FreeAll();
  for (Fence& fence : fences_) {
    for (cudaEvent_t& event : fence.of) {
      if (event != nullptr) cudaEventDestroy(event);
      event = nullptr;
    }
  }
}

}  // namespace kvc::cuda
