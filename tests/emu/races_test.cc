// Races that are there are found, each kind of them, and order that is there is seen.
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>

#include "tests/emu/emulator.h"
#include "tests/emu/launch_at_once.h"

namespace kvc::cuda {
namespace {

class RacesTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    emu::GetOptions().order = GetParam();
    ASSERT_EQ(cudaSuccess, cudaMalloc(&memory_, 1 << 14));
    ASSERT_EQ(cudaSuccess, cudaMemsetAsync(memory_, 0, 1 << 14, nullptr));
  }
  void TearDown() override {
    emu::Recover();
    cudaFree(memory_);
    emu::GetOptions() = {};
  }
  // What is said of a kernel's launch; empty: it went well.
  template <typename Kernel>
  std::string Run(Kernel* kernel, int blocks, int threads, size_t shared = 0) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(cudaSuccess, KVC_LAUNCH(kernel, dim3(blocks), dim3(threads), shared, nullptr, memory()));
    const bool good = cudaStreamSynchronize(nullptr) == cudaSuccess;
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(good, said.empty()) << said;
    emu::Recover();
    return said;
  }
  int32_t* memory() { return static_cast<int32_t*>(memory_); }
  void* memory_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Orders, RacesTest, testing::Values(0, 1, 2));

bool Has(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

__global__ void barrier_missing(int32_t* x) {
  KVC_SHARED(int32_t, shared);
  shared[ThreadOfBlock()] = x[ThreadOfBlock()];
  x[ThreadOfBlock()] = shared[BlockThreads() - 1 - ThreadOfBlock()];
}
__global__ void barrier_there(int32_t* x) {
  KVC_SHARED(int32_t, shared);
  shared[ThreadOfBlock()] = x[ThreadOfBlock()];
  __syncthreads();
  x[ThreadOfBlock()] = shared[BlockThreads() - 1 - ThreadOfBlock()];
}
TEST_P(RacesTest, OfWarpsThatNoBarrierParts) {
  const std::string said = Run(barrier_missing, 1, 96, 96 * 4);
  EXPECT_TRUE(Has(said, "race at shared")) << said;
  EXPECT_TRUE(Has(said, "races_test.cc")) << said;
  EXPECT_EQ("", Run(barrier_there, 1, 96, 96 * 4));
}

// The second barrier of a loop: what was read may be written again.
__global__ void read_then_written(int32_t* x) {
  __shared__ int32_t one;
  for (int i = 0; i < 3; ++i) {
    if (ThreadOfBlock() == 0) one = i;
    __syncthreads();
    x[ThreadOfBlock()] += one;
  }
}
__global__ void read_waited_for(int32_t* x) {
  __shared__ int32_t one;
  for (int i = 0; i < 3; ++i) {
    if (ThreadOfBlock() == 0) one = i;
    __syncthreads();
    x[ThreadOfBlock()] += one;
    __syncthreads();
  }
}
TEST_P(RacesTest, OfWhatOthersStillRead) {
  EXPECT_TRUE(Has(Run(read_then_written, 1, 64), "race at shared"));
  EXPECT_EQ("", Run(read_waited_for, 1, 64));
}

// A copy writes from where it is begun on.
template <bool kWaits>
__global__ void copied_while_read(int32_t* x) {
  KVC_SHARED(uint16_t, shared);
  uint16_t* own = shared + 8 * ThreadOfBlock();
  for (int i = 0; i < 2; ++i) {
    CopyLater<16>(own, reinterpret_cast<const uint16_t*>(x + 256));
    CloseCopies();
    WaitForCopies<0>();
    __syncthreads();
    x[ThreadOfBlock()] = shared[8 * (BlockThreads() - 1 - ThreadOfBlock())];
    if (kWaits) __syncthreads();
  }
}
TEST_P(RacesTest, OfCopiesThatGoOn) {
  EXPECT_TRUE(Has(Run(copied_while_read<false>, 1, 64, 64 * 16), "race at shared"));
  EXPECT_EQ("", Run(copied_while_read<true>, 1, 64, 64 * 16));
}

__global__ void lanes_apart(int32_t* x) {
  x[Lane()] = Lane();
  x[32 + Lane()] = x[Lane() ^ 1];
}
__global__ void lanes_meet(int32_t* x) {
  x[Lane()] = Lane();
  __syncwarp();
  x[32 + Lane()] = x[Lane() ^ 1];
}
TEST_P(RacesTest, OfLanesThatHaveNotMet) {
  EXPECT_TRUE(Has(Run(lanes_apart, 1, 32), "race at global"));
  EXPECT_EQ("", Run(lanes_meet, 1, 32));
}

// What lanes hand each other in registers says nothing of memory.
enum Handing { kShuffle, kVote, kSum, kProduct, kMatrix };
template <Handing kBy, bool kMeets>
__global__ void lanes_hand_over(int32_t* x) {
  KVC_SHARED(int32_t, shared);
  for (int i = 0; i < 4; ++i) shared[4 * Lane() + i] = Lane();
  if (kMeets) __syncwarp();
  int32_t other = 0;
  if (kBy == kShuffle) other = __shfl_xor_sync(kAllLanes, Lane(), 1);
  if (kBy == kVote) other = LanesWhere(Lane() > 3) != 0 ? Lane() ^ 1 : 0;
  if (kBy == kSum) other = WarpSum(1) - 1 - Lane();
  if (kBy == kProduct) {
    const uint32_t a[4] = {}, b[2] = {};
    const int32_t c[4] = {};
    int32_t d[4];
    MmaCodes<false>(d, a, b, c);
    other = (d[0] + Lane()) ^ 1;
  }
  if (kBy == kMatrix) {
    uint32_t m[4];
    LoadMatrices<false>(m, reinterpret_cast<const uint16_t*>(shared + 4 * (Lane() ^ 1)));
    x[Lane()] = static_cast<int32_t>(m[0]);
  } else {
    x[Lane()] = shared[4 * other];
  }
}
TEST_P(RacesTest, OfLanesThatHandOverInRegisters) {
  const auto expect_of = [this](auto* apart, auto* meet) {
    EXPECT_TRUE(Has(Run(apart, 1, 32, 512), "race at shared"));
    EXPECT_EQ("", Run(meet, 1, 32, 512));
  };
  expect_of(lanes_hand_over<kShuffle, false>, lanes_hand_over<kShuffle, true>);
  expect_of(lanes_hand_over<kVote, false>, lanes_hand_over<kVote, true>);
  expect_of(lanes_hand_over<kSum, false>, lanes_hand_over<kSum, true>);
  expect_of(lanes_hand_over<kProduct, false>, lanes_hand_over<kProduct, true>);
  expect_of(lanes_hand_over<kMatrix, false>, lanes_hand_over<kMatrix, true>);
}

__global__ void blocks_write_one(int32_t* x) {
  if (ThreadOfBlock() == 0) x[0] = static_cast<int32_t>(blockIdx.x);
}
__global__ void blocks_write_bytes(int32_t* x) {
  if (ThreadOfBlock() == 0) reinterpret_cast<uint8_t*>(x)[blockIdx.x] = 1;
}
__global__ void blocks_read_one(int32_t* x) { x[1 + blockIdx.x * BlockThreads() + ThreadOfBlock()] = x[0]; }
TEST_P(RacesTest, OfBlocks) {
  EXPECT_TRUE(Has(Run(blocks_write_one, 3, 32), "written by block"));
  EXPECT_EQ("", Run(blocks_write_one, 1, 32));
  EXPECT_EQ("", Run(blocks_write_bytes, 3, 32));  // beside each other
  EXPECT_EQ("", Run(blocks_read_one, 3, 64));
}

__global__ void blocks_add(int32_t* x) { atomicAdd(x, 1); }
__global__ void blocks_add_and_read(int32_t* x) {
  atomicAdd(x, 1);
  if (ThreadOfBlock() == 0) x[1 + blockIdx.x] = x[0];
}
TEST_P(RacesTest, OfAtomicsWithWhatIsNone) {
  EXPECT_EQ("", Run(blocks_add, 3, 64));
  EXPECT_TRUE(Has(Run(blocks_add_and_read, 2, 64), "added to by block"));
}

// The last block of those that count finds what the others wrote in front of that, and nothing else.
__global__ void last_reads(int32_t* x) {
  __shared__ int32_t shared;
  x[1 + blockIdx.x] = 1;
  if (!IsLastOf(static_cast<int32_t>(gridDim.x), x, &shared) || ThreadOfBlock() != 0) return;
  for (uint32_t b = 0; b < gridDim.x; ++b) x[32] += x[1 + b];
}
__global__ void last_reads_what_came_later(int32_t* x) {
  __shared__ int32_t shared;
  const bool last = IsLastOf(static_cast<int32_t>(gridDim.x), x, &shared);
  x[1 + blockIdx.x] = 1;
  __syncthreads();
  for (uint32_t b = 0; last && ThreadOfBlock() == 0 && b < gridDim.x; ++b) x[32] += x[1 + b];
}
__global__ void blocks_count_apart(int32_t* x) {
  __shared__ int32_t shared;
  x[2 + blockIdx.x] = 1;
  if (IsLastOf(2, x + blockIdx.x % 2, &shared) && ThreadOfBlock() == 0) x[32 + blockIdx.x] = x[2] + x[3];
}
TEST_P(RacesTest, OfBlocksThatCount) {
  EXPECT_EQ("", Run(last_reads, 3, 1));
  ASSERT_EQ(cudaSuccess, cudaMemsetAsync(memory_, 0, 1 << 14, nullptr));
  EXPECT_TRUE(Has(Run(last_reads_what_came_later, 3, 1), "written by block"));
  ASSERT_EQ(cudaSuccess, cudaMemsetAsync(memory_, 0, 1 << 14, nullptr));
  EXPECT_TRUE(Has(Run(blocks_count_apart, 4, 1), "written by block"));
}

// A kernel that begins early may read what lies there before it waits, but not what kernels in front of it
// write, nor write what they read: however far in front, unless one of them waits for all that came before.
__global__ void writes(int32_t* x) { x[ThreadOfBlock()] = 1; }
__global__ void looks_away(int32_t* x) {
  WaitForEarlier();
  x[128 + ThreadOfBlock()] = 1;
}
template <bool kWaitsFirst>
__global__ void reads_early(int32_t* x) {
  if (kWaitsFirst) WaitForEarlier();
  const int32_t sum = x[ThreadOfBlock()] + x[64 + ThreadOfBlock()];
  if (!kWaitsFirst) WaitForEarlier();
  x[64 + ThreadOfBlock()] = sum;
}
template <bool kWaitsFirst>
__global__ void writes_early(int32_t* x) {
  if (kWaitsFirst) WaitForEarlier();
  x[ThreadOfBlock()] = 2;
  if (!kWaitsFirst) WaitForEarlier();
}
// A copy may read from where it is begun on, whenever it is waited for.
template <bool kWaitsFirst>
__global__ void copies_early(int32_t* x) {
  KVC_SHARED(int32_t, shared);
  if (kWaitsFirst) WaitForEarlier();
  CopyLater<4>(shared + ThreadOfBlock(), x + ThreadOfBlock());
  CloseCopies();
  if (!kWaitsFirst) WaitForEarlier();
  WaitForCopies<0>();
  x[64 + ThreadOfBlock()] = shared[ThreadOfBlock()];
}
TEST_P(RacesTest, OfKernelsThatBeginEarly) {
  const auto behind = [this](auto* first, auto* then, auto between) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(cudaSuccess, KVC_LAUNCH(first, dim3(1), dim3(32), 0, nullptr, memory()));
    EXPECT_EQ(cudaSuccess, KVC_LAUNCH_EARLY(looks_away, dim3(1), dim3(32), 0, nullptr, memory()));
    between();
    EXPECT_EQ(cudaSuccess, KVC_LAUNCH_EARLY(then, dim3(1), dim3(32), 128, nullptr, memory()));
    cudaStreamSynchronize(nullptr);
    emu::Recover();
    return testing::internal::GetCapturedStderr();
  };
  const auto nothing = [] {};
  EXPECT_TRUE(Has(behind(writes, reads_early<false>, nothing), "written by a kernel in front of it"));
  EXPECT_EQ("", behind(writes, reads_early<true>, nothing));
  EXPECT_TRUE(
      Has(behind(reads_early<true>, writes_early<false>, nothing), "read by a kernel in front of it"));
  EXPECT_EQ("", behind(reads_early<true>, writes_early<true>, nothing));
  EXPECT_EQ("", behind(looks_away, reads_early<false>, nothing));
  EXPECT_TRUE(Has(behind(writes, copies_early<false>, nothing), "written by a kernel in front of it"));
  EXPECT_EQ("", behind(writes, copies_early<true>, nothing));
  // What is no early kernel has ended before the next begins, and begun behind what came before.
  EXPECT_EQ("", behind(writes, reads_early<false>, [this] {
              int32_t one = 1;
              EXPECT_EQ(cudaSuccess,
                        cudaMemcpyAsync(memory() + 256, &one, 4, cudaMemcpyHostToDevice, nullptr));
            }));
  EXPECT_EQ("", behind(writes, reads_early<false>, [] { cudaStreamSynchronize(nullptr); }));
  EXPECT_TRUE(Has(
      behind(blocks_write_bytes, reads_early<false>,
             [this] { EXPECT_EQ(cudaSuccess, KVC_LAUNCH(writes, dim3(1), dim3(32), 0, nullptr, memory())); }),
      "written by a kernel in front of it"));
}

// Streams follow each other where one waits for an event of the other, or the host waits between.
template <int kTo>
__global__ void reads_into(int32_t* x) {
  x[kTo + ThreadOfBlock()] = x[ThreadOfBlock()];
}
class StreamRacesTest : public RacesTest {
 protected:
  void SetUp() override {
    RacesTest::SetUp();
    cudaStreamSynchronize(nullptr);
    for (cudaStream_t& stream : streams_)
      ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (cudaEvent_t& event : events_)
      ASSERT_EQ(cudaSuccess, cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  }
  void TearDown() override {
    for (cudaEvent_t event : events_) cudaEventDestroy(event);
    for (cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    RacesTest::TearDown();
  }
  template <typename Kernel>
  void Launch(Kernel* kernel, int stream) {
    const cudaError_t e = KVC_LAUNCH(kernel, dim3(1), dim3(32), 0, streams_[stream], memory());
    EXPECT_TRUE(e == cudaSuccess || emu::GetOptions().eager);
  }
  void Follow(int stream, int other, int event = 0) {
    cudaEventRecord(events_[event], streams_[other]);
    cudaStreamWaitEvent(streams_[stream], events_[event], 0);
  }
  // What is said when all streams have done what is issued.
  std::string Said(const std::function<void()>& issue) {
    testing::internal::CaptureStderr();
    issue();
    for (cudaStream_t stream : streams_) cudaStreamSynchronize(stream);
    emu::Recover();
    return testing::internal::GetCapturedStderr();
  }
  // A kernel writes in the first stream, another one the same in the second.
  std::string Between(const std::function<void()>& between) {
    return Said([&] { Launch(writes, 0), between(), Launch(writes, 1); });
  }
  cudaStream_t streams_[3];
  cudaEvent_t events_[2];
};
INSTANTIATE_TEST_SUITE_P(Orders, StreamRacesTest, testing::Values(0, 1, 2));

constexpr char kWrittenElsewhere[] = "written by a kernel of another stream";
constexpr char kReadElsewhere[] = "read by a kernel of another stream";

TEST_P(StreamRacesTest, OfStreamsThatDoNotFollow) {
  EXPECT_TRUE(Has(Between([] {}), kWrittenElsewhere));
  EXPECT_EQ("", Between([this] { Follow(1, 0); }));
  EXPECT_TRUE(Has(Between([this] { Follow(0, 1); }), kWrittenElsewhere));
  // By way of a third one, and of what the other one did before that.
  EXPECT_EQ("", Between([this] { Follow(2, 0), Follow(1, 2, 1); }));
  EXPECT_EQ("", Between([this] { Follow(1, 0), Launch(looks_away, 0); }));
  EXPECT_TRUE(Has(Between([this] { Follow(1, 0), Launch(writes, 0); }), kWrittenElsewhere));
  // A copy is in order with its own stream alone.
  EXPECT_TRUE(
      Has(Between([this] { cudaMemsetAsync(memory() + 1024, 0, 4, streams_[1]); }), kWrittenElsewhere));
}

TEST_P(StreamRacesTest, OfStreamsBetweenWhichTheHostWaits) {
  EXPECT_EQ("", Between([this] { cudaStreamSynchronize(streams_[0]); }));
  EXPECT_EQ("", Between([] { cudaDeviceSynchronize(); }));
  EXPECT_TRUE(Has(Between([this] { cudaStreamSynchronize(streams_[1]); }), kWrittenElsewhere));
  EXPECT_EQ("", Between([this] {
              cudaEventRecord(events_[0], streams_[0]);
              Launch(looks_away, 0);
              cudaEventSynchronize(events_[0]);
            }));
  EXPECT_TRUE(Has(Between([this] {
                    cudaEventRecord(events_[0], streams_[0]);
                    Launch(writes, 0);
                    cudaEventSynchronize(events_[0]);
                  }),
                  kWrittenElsewhere));
  // When the host waits for the first, the second is on its way already.
  EXPECT_TRUE(Has(Said([this] {
                    Launch(writes, 0), Launch(writes, 1);
                    cudaStreamSynchronize(streams_[0]);
                  }),
                  kWrittenElsewhere));
}

TEST_P(StreamRacesTest, OfReadsInSeveralStreams) {
  emu::GetOptions().eager = true;  // both reads come before the write
  const auto read_in_two = [this] { Launch(reads_into<64>, 0), Launch(reads_into<128>, 1); };
  EXPECT_EQ("", Said(read_in_two));
  for (const int stream : {0, 1}) {
    EXPECT_TRUE(Has(Said([&] { read_in_two(), Launch(writes, stream); }), kReadElsewhere)) << stream;
    EXPECT_EQ("", Said([&] { read_in_two(), Follow(stream, 1 - stream), Launch(writes, stream); })) << stream;
  }
}

// Memory that is freed and taken again is not what it was.
TEST_P(StreamRacesTest, NotOfMemoryThatIsNew) {
  EXPECT_EQ("", Said([this] {
              Launch(writes, 0);
              cudaFree(memory_);
              ASSERT_EQ(cudaSuccess, cudaMalloc(&memory_, 1 << 14));
              Launch(writes, 1);
            }));
}

}  // namespace
}  // namespace kvc::cuda
