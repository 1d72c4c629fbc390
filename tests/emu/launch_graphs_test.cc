// What a stream keeps back and sends as graphs gives what single launches give, in the order of the stream,
// and costs the host one call a piece.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cuda/launch.h"
#include "cuda/staging.h"
#include "tests/emu/emulator.h"

namespace kvc::cuda {
namespace {

// x[i] = x[i] * 3 + add[i], so that every order of launches gives something else.
__global__ void step_on(uint32_t* x, const uint32_t* add) {
  const int32_t i = static_cast<int32_t>(blockIdx.x);
  if (ThreadOfBlock() == 0) x[i] = x[i] * 3 + add[i];
}
__global__ void waits_and_adds(uint32_t* x, uint32_t add) {
  WaitForEarlier();
  if (ThreadOfBlock() == 0) x[blockIdx.x] = x[blockIdx.x] * 3 + add;
}
__global__ void negate(uint32_t* x) {
  if (ThreadOfBlock() == 0) x[blockIdx.x] = 0u - x[blockIdx.x];
}

// What lies in memory of the test of launches beside: a line, what it leaves for those beside in each of two
// slots, what they make of it, and what the line saw of that while it went on.
struct Beside {
  uint32_t x, left[2], made[2], seen[8];
};
__global__ void attends(Beside* b, int slot, uint32_t add) {
  WaitForEarlier();
  if (ThreadOfBlock() == 0) b->x = b->x * 3 + add + b->made[slot], b->left[slot] = b->x;
}
__global__ void updates(Beside* b, int slot, uint32_t add) {
  WaitForEarlier();
  if (ThreadOfBlock() == 0) b->made[slot] = b->made[slot] * 5 + b->left[slot] + add;
}
__global__ void goes_on(Beside* b) {
  WaitForEarlier();
  if (ThreadOfBlock() == 0) b->x = b->x * 7 + 1;
}
__global__ void looks(Beside* b, int slot, int layer) {
  WaitForEarlier();
  if (ThreadOfBlock() == 0) b->seen[layer] = b->made[slot];
}

#if defined(KVC_EMU_RACES)
constexpr bool kRaces = true;
#else
constexpr bool kRaces = false;
#endif
constexpr int kMost = 9;

uint32_t Added(uint32_t seed, int launch, int32_t i) {
  return seed + 7 * static_cast<uint32_t>(launch) + static_cast<uint32_t>(i);
}

class LaunchGraphsTest : public testing::Test {
 protected:
  void SetUp() override {
    KernelLoader loader;
    KVC_ADD(&loader, step_on, 0);
    KVC_ADD(&loader, waits_and_adds, 0);
    KVC_ADD(&loader, negate, 0);
    KVC_ADD(&loader, attends, 0);
    KVC_ADD(&loader, updates, 0);
    KVC_ADD(&loader, goes_on, 0);
    KVC_ADD(&loader, looks, 0);
    ASSERT_EQ(cudaSuccess, loader.error());
    ASSERT_EQ(cudaSuccess, cudaStreamCreateWithFlags(&real_, cudaStreamNonBlocking));
    void* at = nullptr;
    ASSERT_EQ(cudaSuccess, cudaMalloc(&at, kMost * sizeof(int32_t)));
    x_ = static_cast<uint32_t*>(at);
    emu::GetCalls() = {};
  }
  void TearDown() override {
    cudaFree(x_);
    cudaStreamDestroy(real_);
    emu::GetOptions() = {};
  }

  // One step of `launches` launches, each with a packet, over n numbers; and what it should give.
  void Step(CudaStream* stream, int launches, int32_t n, uint32_t seed, bool also_negates = false) {
    Gathering gathering(stream);
    for (int k = 0; k < launches; ++k) {
      Packet packet;
      ASSERT_TRUE(packet.Begin(stream, Packet::Size<uint32_t>(n)).ok());
      const uint32_t* on_device = nullptr;
      uint32_t* add = packet.Add<uint32_t>(n, &on_device);
      for (int32_t i = 0; i < n; ++i) add[i] = Added(seed, k, i);
      ASSERT_TRUE(packet.Send().ok());
      ASSERT_EQ(cudaSuccess,
                KVC_LAUNCH(step_on, dim3(static_cast<unsigned>(n)), dim3(32), 0, *stream, x_, on_device));
      for (int32_t i = 0; i < n; ++i) expected_[i] = expected_[i] * 3 + Added(seed, k, i);
      if (!also_negates || k % 2 == 0) continue;
      ASSERT_EQ(cudaSuccess, KVC_LAUNCH(negate, dim3(static_cast<unsigned>(n)), dim3(32), 0, *stream, x_));
      for (int32_t i = 0; i < n; ++i) expected_[i] = 0u - expected_[i];
    }
    ASSERT_TRUE(gathering.Issue().ok());
  }
  // Of five kernels that wait by themselves, and may begin early.
  void EarlyStep(CudaStream* stream) {
    Gathering gathering(stream);
    for (uint32_t k = 0; k < 5; ++k) {
      ASSERT_EQ(cudaSuccess, KVC_LAUNCH_EARLY(waits_and_adds, dim3(kMost), dim3(32), 0, *stream, x_, k));
      for (uint32_t& value : expected_) value = value * 3 + k;
    }
    ASSERT_TRUE(gathering.Issue().ok());
    ExpectExpected(stream);
  }
  void Begin(CudaStream* stream) {
    ASSERT_TRUE(stream->Create(real_).ok());
    ASSERT_TRUE(stream->Clear(x_, kMost * 4, "test").ok());
    for (uint32_t& value : expected_) value = 0;
  }
  void ExpectExpected(CudaStream* stream) {
    uint32_t got[kMost];
    ASSERT_TRUE(stream->Fetch(x_, got, sizeof got).ok());
    EXPECT_EQ(std::vector<uint32_t>(got, got + kMost), std::vector<uint32_t>(expected_, expected_ + kMost));
  }

  cudaStream_t real_ = nullptr;
  uint32_t* x_ = nullptr;
  uint32_t expected_[kMost];
};

TEST_F(LaunchGraphsTest, KernelsThatComeAgainAreOneCall) {
  CudaStream stream{LaunchTraits()};
  Begin(&stream);
  for (uint32_t step = 0; step < 6; ++step) {
    Step(&stream, 10, 4 + static_cast<int32_t>(step % 3), 100 * step);
    ExpectExpected(&stream);
  }
  EXPECT_EQ(emu::GetCalls().launches, 10) << "the first time alone";
  EXPECT_EQ(emu::GetCalls().graphs, 5);
  EXPECT_EQ(stream.graphs().n_replayed(), 5);
}

// Packets of steps that nobody waits for lie behind each other.
TEST_F(LaunchGraphsTest, StepsWithoutAWaitBetween) {
  CudaStream stream{LaunchTraits()};
  Begin(&stream);
  for (uint32_t step = 0; step < 5; ++step) Step(&stream, 6, kMost, 1000 * step);
  ExpectExpected(&stream);
  EXPECT_EQ(emu::GetCalls().graphs, 4);
}

TEST_F(LaunchGraphsTest, LongStepsGoInPieces) {
  CudaStream stream{LaunchTraits()};
  Begin(&stream);
  constexpr int kLaunches = Tuning().first_piece + Tuning().piece + 5;
  for (uint32_t step = 0; step < 4; ++step) {
    Step(&stream, kLaunches, 3, step);
    ExpectExpected(&stream);
  }
  EXPECT_EQ(emu::GetCalls().launches, kLaunches);
  EXPECT_EQ(emu::GetCalls().graphs, 3 * 3);
}

TEST_F(LaunchGraphsTest, PiecesAreAsLongAsTheDeviceIsTunedTo) {
  LaunchTraits traits;
  traits.tuning.first_piece = 3, traits.tuning.piece = 4;
  CudaStream stream(traits);
  Begin(&stream);
  for (uint32_t step = 0; step < 3; ++step) {
    Step(&stream, 3 + 4 + 4 + 2, 3, step);
    ExpectExpected(&stream);
  }
  EXPECT_EQ(emu::GetCalls().graphs, 2 * 4);
}

TEST_F(LaunchGraphsTest, SeveralFormsOfAStepInTurns) {
  CudaStream stream{LaunchTraits()};
  Begin(&stream);
  for (uint32_t step = 0; step < 9; ++step) {
    Step(&stream, 4 + static_cast<int>(step % 3), 5, step, step % 2 == 0);
    ExpectExpected(&stream);
  }
  EXPECT_EQ(emu::GetCalls().graphs, 3) << "six forms, three of them twice";
}

// The ring starts over in the middle of a step, and grows.
TEST_F(LaunchGraphsTest, PacketsThatDoNotFit) {
  CudaStream stream{LaunchTraits()};
  Begin(&stream);
  for (uint32_t step = 0; step < 4; ++step) {
    Gathering gathering(&stream);
    for (int k = 0; k < 7; ++k) {
      Packet packet;
      constexpr int64_t kLong = 20000;
      ASSERT_TRUE(packet.Begin(&stream, Packet::Size<uint32_t>(kLong)).ok());
      const uint32_t* on_device = nullptr;
      uint32_t* add = packet.Add<uint32_t>(kLong, &on_device);
      for (int32_t i = 0; i < kMost; ++i) add[kLong - kMost + i] = Added(step, k, i);
      ASSERT_TRUE(packet.Send().ok());
      ASSERT_EQ(cudaSuccess,
                KVC_LAUNCH(step_on, dim3(kMost), dim3(32), 0, stream, x_, on_device + (kLong - kMost)));
      for (int32_t i = 0; i < kMost; ++i) expected_[i] = expected_[i] * 3 + Added(step, k, i);
    }
    ASSERT_TRUE(gathering.Issue().ok());
    ExpectExpected(&stream);
  }
  EXPECT_EQ(stream.graphs().n_replayed(), 1) << "the ring grew in the middle of the first two";
}

TEST_F(LaunchGraphsTest, WithoutRoomForGraphsLaunchesGoOneByOne) {
  CudaStream stream{LaunchTraits()};
  Begin(&stream);
  emu::GetOptions().graphs = 1;
  for (uint32_t step = 0; step < 4; ++step) {
    Step(&stream, 5, 4, step);
    Step(&stream, 5, 4, step, true);
    ExpectExpected(&stream);
  }
  EXPECT_EQ(emu::GetCalls().graphs, 1) << "the second form has no room, and from there on none has";
}

// Memory that is short for a while costs the graph that was to be made then, and neither later ones nor early
// starts.
TEST_F(LaunchGraphsTest, MemoryThatIsShortForAWhile) {
  LaunchTraits traits;
  traits.early = true;
  CudaStream stream(traits);
  Begin(&stream);
  constexpr uint32_t kShort = 3;
  for (uint32_t step = 0; step < 8; ++step) {
    emu::GetOptions().graphs = step < kShort ? 0 : 100;
    emu::GetCalls() = {};
    EarlyStep(&stream);
    // The first time is no graph, the second one has no room, and the third is again a first time.
    EXPECT_EQ(emu::GetCalls().graphs, step >= kShort ? 1 : 0) << step;
    EXPECT_EQ(emu::GetCalls().early, step >= kShort ? 4 : 5) << step;
  }
}

// A driver need not take every change of a graph: the graph is made anew, and when that helps nothing,
// launches go one by one.
TEST_F(LaunchGraphsTest, ChangesThatAreRefused) {
  for (const int64_t refused : {1, 3, 100}) {
    SCOPED_TRACE(refused);
    emu::GetOptions() = {};
    CudaStream stream{LaunchTraits()};
    Begin(&stream);
    constexpr uint32_t kSteps = 10, kRefusing = 4;
    for (uint32_t step = 0; step < kSteps; ++step) {
      if (step == kRefusing) emu::GetOptions().refused_updates = refused;
      Step(&stream, 5, 3 + static_cast<int32_t>(step % 2), step);
      ExpectExpected(&stream);
    }
    // The first time of what is made ready comes alone, and so does all from the fifth refusal on.
    EXPECT_EQ(stream.graphs().n_replayed(), refused == 100 ? kRefusing - 1 + 4 : kSteps - 1);
  }
}

// A change for which there is no memory, while some is kept: that goes, and the graph gets all of the change.
TEST_F(LaunchGraphsTest, ChangesWithoutRoom) {
  for (const int64_t refused : {1, 2, 3}) {
    SCOPED_TRACE(refused);
    emu::GetOptions() = {};
    KeptBlocks kept(int64_t{1} << 20);
    kept.Watch(real_, nullptr);
    {
      CudaStream stream({}, {}, &kept);
      Begin(&stream);
      for (uint32_t step = 0; step < 8; ++step) {
        void* block = nullptr;
        ASSERT_EQ(kept.Allocate(4096, &block), cudaSuccess);
        kept.Free(block, 4096);
        if (step == 4) emu::GetOptions().refused_updates = refused;
        emu::GetOptions().refused_with = cudaErrorMemoryAllocation;
        Step(&stream, 5, 3 + static_cast<int32_t>(step % 2), step);
        ExpectExpected(&stream);
      }
      // The first time comes alone; so does a change that is refused twice, and the step behind it.
      EXPECT_EQ(stream.graphs().n_replayed(), refused == 1 ? 7 : 5);
    }
    kept.Close();
  }
}

// What is kept of freed memory goes before launches go one by one.
TEST_F(LaunchGraphsTest, WhatIsKeptGoesForAGraph) {
  constexpr int64_t kKept = 200000;
  emu::GetOptions().memory = int64_t{4} << 20;
  KeptBlocks kept(kKept);
  kept.Watch(real_, nullptr);
  {
    CudaStream stream({}, {}, &kept);
    Begin(&stream);
    Step(&stream, 5, 4, 1);
    void *block = nullptr, *rest = nullptr;
    ASSERT_EQ(kept.Allocate(kKept, &block), cudaSuccess);
    size_t free = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    ASSERT_EQ(cudaMalloc(&rest, free), cudaSuccess);
    kept.Free(block, kKept);
    Step(&stream, 5, 4, 2);
    ExpectExpected(&stream);
    EXPECT_EQ(stream.graphs().n_replayed(), 1);
    cudaFree(rest);
  }
  kept.Close();
}

// Kernels that wait by themselves begin early behind a kernel, in a graph as in front of its first time; the
// first one of a piece stands behind a copy.
TEST_F(LaunchGraphsTest, KernelsThatWaitBeginEarly) {
  enum Case { kApart, kEarly, kEarlyWithoutEdges };
  for (const Case now : {kApart, kEarly, kEarlyWithoutEdges}) {
    LaunchTraits traits;
    traits.early = now != kApart;
    emu::GetOptions().early_edges = now != kEarlyWithoutEdges;
    CudaStream stream(traits);
    Begin(&stream);
    emu::GetCalls() = {};
    for (uint32_t step = 0; step < 3; ++step) {
      EarlyStep(&stream);
    }
    EXPECT_EQ(stream.graphs().n_replayed(), 2);
    EXPECT_EQ(emu::GetCalls().early, now == kApart ? 0 : now == kEarly ? 5 + 2 * 4 : 5);
  }
}

// What is beside happens at any time before what says that it comes behind it, and the line goes on
// meanwhile. watched: the line looks at what is beside while nothing orders the two.
void StepBeside(CudaStream* stream, Beside* b, uint32_t step, bool watched, Beside* expected) {
  Gathering gathering(stream);
  for (int layer = 0; layer < 7; ++layer) {
    const int slot = layer % 2;
    const uint32_t add = 100 * step + static_cast<uint32_t>(layer);
    const auto bits = static_cast<uint8_t>(1 << slot);
    {
      const InOrder order(*stream, {false, 0, bits});
      ASSERT_EQ(cudaSuccess, KVC_LAUNCH_EARLY(attends, dim3(1), dim3(32), 0, *stream, b, slot, add));
    }
    {
      const InOrder order(*stream, {true, static_cast<uint8_t>(slot), 0});
      for (int i = 0; i < 2; ++i)
        ASSERT_EQ(cudaSuccess, KVC_LAUNCH_EARLY(updates, dim3(1), dim3(32), 0, *stream, b, slot, add));
    }
    const InOrder order(*stream, {false, 0, 0});
    ASSERT_EQ(cudaSuccess, KVC_LAUNCH_EARLY(goes_on, dim3(1), dim3(32), 0, *stream, b));
    if (watched) {
      ASSERT_EQ(cudaSuccess, KVC_LAUNCH_EARLY(looks, dim3(1), dim3(32), 0, *stream, b, slot, layer));
    }
    ASSERT_EQ(cudaSuccess, KVC_LAUNCH_EARLY(goes_on, dim3(1), dim3(32), 0, *stream, b));
    expected->x = expected->x * 3 + add + expected->made[slot], expected->left[slot] = expected->x;
    expected->seen[layer] = expected->made[slot];
    for (int i = 0; i < 2; ++i) expected->made[slot] = expected->made[slot] * 5 + expected->left[slot] + add;
    expected->x = (expected->x * 7 + 1) * 7 + 1;
  }
  ASSERT_EQ(cudaSuccess, KVC_LAUNCH_EARLY(goes_on, dim3(1), dim3(32), 0, *stream, b));  // behind everything
  expected->x = expected->x * 7 + 1;
  ASSERT_TRUE(gathering.Issue().ok());
}

TEST_F(LaunchGraphsTest, WhatIsBesideLetsTheLineGoOn) {
  enum Edges { kNone, kEarly, kEarlyAlone, kRefused };
  void* at = nullptr;
  ASSERT_EQ(cudaSuccess, cudaMalloc(&at, sizeof(Beside)));
  auto* b = static_cast<Beside*>(at);
  for (const Edges edges : {kNone, kEarly, kEarlyAlone, kRefused}) {
    for (const bool watched : {false, true}) {
      SCOPED_TRACE(std::to_string(edges) + (watched ? ", watched" : ""));
      if (watched && kRaces) continue;  // RacesWithWhatIsBesideAreFound
      LaunchTraits traits;
      traits.early = edges != kNone;
      traits.tuning.first_piece = watched ? 64 : 16;  // an update may be the last of a piece, and the first
      emu::GetOptions().early_edges = edges != kRefused, emu::GetOptions().mixed_edges = edges != kEarlyAlone;
      CudaStream stream(traits);
      ASSERT_TRUE(stream.Create(real_).ok());
      ASSERT_TRUE(stream.Clear(b, sizeof(Beside), "test").ok());
      Beside expected = {}, got;
      for (uint32_t step = 0; step < 4; ++step) {
        emu::GetCalls() = {};
        StepBeside(&stream, b, step, watched, &expected);
        ASSERT_TRUE(stream.Fetch(b, &got, sizeof got).ok());
        EXPECT_EQ(got.x, expected.x);
        EXPECT_EQ(std::vector<uint32_t>(got.made, got.made + 2),
                  std::vector<uint32_t>(expected.made, expected.made + 2));
        if (step == 0) continue;
        EXPECT_EQ(emu::GetCalls().launches, 0);
        // Launches are latest where the emulated device is: the line was ahead of what is beside it.
        for (int layer = 0; watched && layer < 7; ++layer) EXPECT_EQ(got.seen[layer], expected.seen[layer]);
        // 7 layers' attention, second update and what follows; the first of all is in front of nothing.
        const int64_t early = 7 * (2 + (watched ? 3 : 2)) + 1 - 1;
        if (watched && edges != kNone && edges != kRefused) {
          EXPECT_EQ(emu::GetCalls().early, edges == kEarly ? early : early - 5 - 1) << "six come behind both";
        }
      }
    }
  }
  cudaFree(at);
}

TEST_F(LaunchGraphsTest, RacesWithWhatIsBesideAreFound) {
  if (!kRaces) GTEST_SKIP() << "./dev sanitize races";
  void* at = nullptr;
  ASSERT_EQ(cudaSuccess, cudaMalloc(&at, sizeof(Beside)));
  CudaStream stream{LaunchTraits()};
  ASSERT_TRUE(stream.Create(real_).ok());
  ASSERT_TRUE(stream.Clear(at, sizeof(Beside), "test").ok());
  Beside expected = {};
  for (const bool again : {false, true}) {
    StepBeside(&stream, static_cast<Beside*>(at), 0, true, &expected);
    EXPECT_EQ(stream.Wait("test").ok(), !again) << "one by one everything is in order";
  }
  emu::Recover();
  cudaFree(at);
}

}  // namespace
}  // namespace kvc::cuda
