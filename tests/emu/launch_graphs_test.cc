// What a stream keeps back and sends as graphs gives what single launches give, in the order of the stream,
// and costs the host one call a piece.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "cuda/launch.h"
#include "cuda/staging.h"
#include "lib/engine/session.h"
#include "tests/emu/emulator.h"
#include "tests/support/tiny_session.h"

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
      Gathering gathering(&stream);
      for (uint32_t k = 0; k < 5; ++k) {
        ASSERT_EQ(cudaSuccess, KVC_LAUNCH_EARLY(waits_and_adds, dim3(kMost), dim3(32), 0, stream, x_, k));
        for (uint32_t& value : expected_) value = value * 3 + k;
      }
      ASSERT_TRUE(gathering.Issue().ok());
      ExpectExpected(&stream);
    }
    EXPECT_EQ(stream.graphs().n_replayed(), 2);
    EXPECT_EQ(emu::GetCalls().early, now == kApart ? 0 : now == kEarly ? 5 + 2 * 4 : 5);
  }
}

// The same bits with graphs and without; a step of a session costs a few calls.
TEST_F(LaunchGraphsTest, StepsOfASession) {
  for (const char* policy : {"full", "snapkv:budget=24,window=8", "h2o:budget=24",
                             "snapkv:budget=24,window=8,kv=int8,quant_group=16", "weightedkv:budget=24"}) {
    SCOPED_TRACE(policy);
    std::vector<std::vector<float>> logits;
    std::vector<int64_t> launches;
    for (const char* graphs : {"0", "1"}) {
      ::setenv("KVC_CUDA_GRAPHS", graphs, 1);
      ModelParams params;
      params.device = "emu";
      const test::AlignedBytes bytes = test::TinyModelBytes({});
      auto model = Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), params);
      ASSERT_TRUE(model.ok()) << model.status().message();
      const auto session = test::NewSession(model.value(), policy);
      ASSERT_TRUE(session->Prefill(test::TinyPrompt(60), true).ok());
      test::FeedTokens(*session, test::TinyPrompt(4, 3));
      emu::GetCalls() = {};
      test::FeedTokens(*session, test::TinyPrompt(1, 5));
      launches.push_back(emu::GetCalls().launches);
      EXPECT_EQ(emu::GetCalls().graphs > 0, graphs[0] == '1');
      test::FeedTokens(*session, test::TinyPrompt(70, 7));  // segments become more
      logits.push_back(test::LogitsOf(*session));
    }
    ::unsetenv("KVC_CUDA_GRAPHS");
    EXPECT_EQ(logits[0], logits[1]);
    // docs/cuda.md: 6 a layer, and the embedding; methods have more.
    const int64_t plain = 6 * test::TinyModelOptions().n_layers + 1;
    EXPECT_TRUE(launches[0] == plain || (launches[0] > plain && std::string(policy) != "full"))
        << launches[0];
    EXPECT_EQ(launches[1], 0);
  }
}

}  // namespace
}  // namespace kvc::cuda
