// Ranges of device memory to other places, many in one launch: a copy of the runtime takes microseconds of
// its own, and rows of a batch are 16 KiB each. Bytes: every range read and written once, by blocks of 16
// KiB.
#include <algorithm>

#include "cuda/block.h"
#include "cuda/cuda_device.h"
#include "cuda/launch.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 256, kAhead = 4;
constexpr int64_t kBlockBytes = int64_t{kThreads} * kAhead * 16;
constexpr int kMostRanges = 32;  // with the launch, which takes 4 KiB at most
// What is longer goes by the runtime's copy, which keeps no multiprocessor.
constexpr int64_t kMostBytes = 256 << 10;

struct Range {
  uint8_t* to;
  const uint8_t* from;
  int64_t bytes;
};
struct CopyParams {
  Range ranges[kMostRanges];
};

template <typename T>
KVC_DEVICE void CopyBlock(const Range& range, int64_t begin, int64_t end) {
  const T* from = reinterpret_cast<const T*>(range.from + begin);
  T* to = reinterpret_cast<T*>(range.to + begin);
  EachLoaded<kAhead>(
      ThreadOfBlock(), static_cast<int32_t>((end - begin) / static_cast<int64_t>(sizeof(T))), kThreads,
      [&](int32_t i) { return from[i]; }, [&](int32_t i, const T& x) { to[i] = x; });
}

// Block (i, range).
__global__ void __launch_bounds__(kThreads) copy_ranges(const CopyParams p) {
  LetNextBegin();
  WaitForEarlier();
  const Range range = p.ranges[blockIdx.y];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kBlockBytes,
                end = min(begin + kBlockBytes, range.bytes);
  if (begin >= end) return;
  const uint64_t all = reinterpret_cast<uintptr_t>(range.to) | reinterpret_cast<uintptr_t>(range.from) |
                       static_cast<uint64_t>(range.bytes);
  if (all % sizeof(uint4) == 0) {
    CopyBlock<uint4>(range, begin, end);
  } else if (all % sizeof(uint32_t) == 0) {
    CopyBlock<uint32_t>(range, begin, end);
  } else {
    CopyBlock<uint8_t>(range, begin, end);
  }
}

}  // namespace

void AddCopyRangesKernels(KernelLoader* loader) { KVC_ADD_STEP(loader, copy_ranges, 0); }

Status CudaDevice::Copy(Stream* s, Span<const PageCopy> copies) {
  KVC_ENTER();
  CudaStream& stream = StreamOf(s);
  CopyParams p{};
  unsigned n = 0;
  int64_t longest = 0;
  const auto launch = [&]() -> Status {
    if (n == 0) return {};
    const dim3 grid(static_cast<unsigned>((longest + kBlockBytes - 1) / kBlockBytes), n);
    n = 0, longest = 0;
    return Check(KVC_LAUNCH_EARLY(copy_ranges, grid, dim3(kThreads), 0, stream, p), "copying on the device");
  };
  for (const PageCopy& c : copies) {
    if (c.bytes > kMostBytes) {
      KVC_RETURN_IF_ERROR(
          stream.Copy(At(c.to), At(c.from), c.bytes, cudaMemcpyDeviceToDevice, "copying on the device"));
    } else if (c.bytes > 0) {
      p.ranges[n++] = {At(c.to), At(c.from), c.bytes};
      longest = std::max(longest, c.bytes);
      if (n == kMostRanges) KVC_RETURN_IF_ERROR(launch());
    }
  }
  return launch();
}

}  // namespace kvc::cuda
