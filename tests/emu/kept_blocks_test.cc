// Memory of the device that is freed and kept: prompts after the first take none, no more than the bound is
// kept, it goes before anything is refused, and nobody gets it while somebody still works there.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <cuda_runtime.h>

#include "cuda/stream.h"
#include "lib/engine/session.h"
#include "lib/ops/devices.h"
#include "tests/emu/emulator.h"
#include "tests/support/environment.h"
#include "tests/support/tiny_session.h"
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif

namespace kvc {
namespace {

using emu::Call;

constexpr int64_t kMiB = 1 << 20;

// What the device has taken from the driver.
int64_t Held() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return static_cast<int64_t>(total - free);
}
int64_t Allocated() { return emu::GetCalls().of[static_cast<int>(Call::kAllocate)]; }

class KeptBlocks : public testing::Test {
 protected:
  void TearDown() override { emu::GetOptions() = {}; }

  static std::unique_ptr<Device> Open() {
    auto device = OpenDevice("emu", 1);
    EXPECT_TRUE(device.ok()) << device.status().message();
    return std::move(device.value());
  }
  static DeviceBytes Take(Device& device, int64_t bytes) {
    DeviceBytes at;
    const Status status = device.Allocate(bytes, "a test", &at);
    EXPECT_TRUE(status.ok()) << status.message();
    return at;
  }

  std::shared_ptr<const Model> OpenModel(int64_t memory_limit = 0) {
    return test::OpenEmulated(bytes_, 1, memory_limit);
  }
  // From the beginning, so that nothing grows with the cache.
  static void Turn(Session& session, int n) {
    session.Reset();
    ASSERT_TRUE(session.Prefill(test::TinyPrompt(n, 3), true).ok());
    test::Steps(session, 3);
  }

  const test::KeptVariable switch_{"KVC_CUDA_KEEP"};
  const test::AlignedBytes bytes_ = test::TinyModelBytes({});
};

TEST_F(KeptBlocks, APromptAfterTheFirstTakesNoMemory) {
  const auto model = OpenModel();
  for (const std::string policy : {"streaming:budget=24", "snapkv:budget=24,window=8", "full"}) {
    SCOPED_TRACE(policy);
    const auto session = test::NewSession(model, policy.c_str());
    Turn(*session, 40), Turn(*session, 40);
    const int64_t before = Allocated();
    Turn(*session, 40);
    Turn(*session, 33);  // a shorter one does with the same blocks
    EXPECT_EQ(Allocated(), before);
  }
  test::SetVariable("KVC_CUDA_KEEP", "0");
  const auto other = OpenModel();
  const auto session = test::NewSession(other, "streaming:budget=24");
  Turn(*session, 40), Turn(*session, 40);
  const int64_t before = Allocated();
  Turn(*session, 40);
  EXPECT_GT(Allocated(), before) << "nothing is kept";
}

TEST_F(KeptBlocks, GoWithTheLastSessionAndWithTheModel) {
  const int64_t none = Held();
  {
    const auto model = OpenModel();
    const int64_t weights = Held();
    {
      const auto session = test::NewSession(model, "full"), other = test::NewSession(model, "full");
      Turn(*session, 40), Turn(*other, 40);
    }
    EXPECT_EQ(Held(), weights);
    Turn(*test::NewSession(model, "full"), 40);
  }
  EXPECT_EQ(Held(), none);
}

// A limit is of all that is held, so that nothing is kept beside what the meter knows.
TEST_F(KeptBlocks, AreNoneWhereMemoryHasALimit) {
  constexpr int64_t kBlock = 40000;
  const auto model = OpenModel(64 * kMiB);
  Device* const device = model->executor()->device();
  const int64_t before = Held();
  device->Free(Take(*device, kBlock), kBlock);
  EXPECT_EQ(Held(), before);
}

TEST_F(KeptBlocks, AreNoMoreThanTheBound) {
  emu::GetOptions().memory = 64 * kMiB;  // of which one is kept
  const auto device = Open();
  const int64_t before = Held();
  std::vector<DeviceBytes> at;
  for (int i = 0; i < 8; ++i) at.push_back(Take(*device, 300000));
  const DeviceBytes large = Take(*device, 2 * kMiB);
  for (const DeviceBytes& one : at) device->Free(one, 300000);
  EXPECT_EQ(Held(), before + 3 * 300000 + 2 * kMiB);
  device->Free(large, 2 * kMiB);
  EXPECT_EQ(Held(), before + 3 * 300000) << "too large a one displaces none";
  // What a block has more than was asked for counts: 100 KB of one, and two whole ones.
  const DeviceBytes part = Take(*device, 200000);
  EXPECT_EQ(Held(), before + 3 * 300000);
  const DeviceBytes more = Take(*device, 400000);
  device->Free(more, 400000);
  EXPECT_EQ(Held(), before + 2 * 300000 + 400000) << "the oldest went";
  device->Free(part, 200000);
  EXPECT_EQ(Held(), before + 2 * 300000 + 400000);
  const int64_t calls = Allocated();
  const DeviceBytes whole = Take(*device, 300000);
  EXPECT_EQ(Allocated(), calls) << "it is as large again as it was";
  device->Free(whole, 300000);
  const DeviceBytes small = Take(*device, 70000);
  EXPECT_EQ(Allocated(), calls + 1) << "a block of more than twice as much is left alone";
  device->Free(small, 70000);
  device->GiveBackFreed();
  EXPECT_EQ(Held(), before);
}

TEST_F(KeptBlocks, GoBeforeAnythingIsRefused) {
  emu::GetOptions().memory = 64 * kMiB;
  const auto device = Open();
  const int64_t granule = device->info().granule;
  DeviceBytes pages;
  ASSERT_EQ(device->Reserve(granule, &pages), granule);
  const auto fill = [&] {  // all of the memory, of which some is kept
    device->GiveBackFreed();
    const int64_t left = 64 * kMiB - Held(), kept = kMiB / 2;
    const DeviceBytes rest = Take(*device, left - kept);
    device->Free(Take(*device, kept), kept);
    EXPECT_EQ(Held(), 64 * kMiB);
    return std::make_pair(rest, left - kept);
  };
  auto rest = fill();
  const DeviceBytes small = Take(*device, 100000);
  device->Free(rest.first, rest.second), device->Free(small, 100000);
  rest = fill();
  EXPECT_TRUE(device->Commit(pages, granule).ok());
  EXPECT_TRUE(device->Decommit(pages, granule));
  device->Free(rest.first, rest.second);
  rest = fill();
  EXPECT_TRUE(device->NewStream().ok());
  DeviceBytes none;
  device->GiveBackFreed();
  EXPECT_EQ(device->Allocate(2 * kMiB, "a test", &none).code(), Code::kMemory);
  device->Free(rest.first, rest.second);
  device->Unreserve(pages, granule);
}

// What streams have of their own: room for lengths that steps report, and graphs.
TEST_F(KeptBlocks, GoBeforeAStreamGoesWithout) {
  constexpr int64_t kKept = 200000;
  emu::GetOptions().memory = 64 * kMiB;
  cudaStream_t real = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&real, cudaStreamNonBlocking), cudaSuccess);
  cuda::KeptBlocks kept(kMiB);
  kept.Watch(real, nullptr);
  const auto fill = [&] {  // all of the memory, of which some is kept
    void *block = nullptr, *rest = nullptr;
    EXPECT_EQ(kept.Allocate(kKept, &block), cudaSuccess);
    EXPECT_EQ(cudaMalloc(&rest, static_cast<size_t>(64 * kMiB - Held())), cudaSuccess);
    kept.Free(block, kKept);
    EXPECT_EQ(Held(), 64 * kMiB);
    return rest;
  };
  {
    cuda::CudaStream stream({}, {}, &kept);
    ASSERT_TRUE(stream.Create(real).ok());
    void* rest = fill();
    EXPECT_TRUE(stream.reports().Reserve(1000).ok());
    cudaFree(rest);
  }
  kept.Close();
  cudaStreamDestroy(real);
}

// A block is freed while its stream still has work there, and goes to another stream, which has none.
TEST_F(KeptBlocks, AreNotTakenWhileAStreamIsAtWorkThere) {
  constexpr int64_t kBytes = 70000;
  const auto device = Open();
  const std::unique_ptr<Stream> first = std::move(device->NewStream().value()),
                                side = std::move(device->NewSideStream().value());
  Stream* const streams[] = {first.get(), side.get()};
  const DeviceBytes other = Take(*device, kBytes);
  for (int works = 0; works < 2; ++works) {
    SCOPED_TRACE(works);
    const std::vector<uint8_t> expected(kBytes, 7);
    const DeviceBytes at = Take(*device, kBytes);
    ASSERT_TRUE(device->Zero(streams[works], at, kBytes).ok());  // the emulated device has not begun it
    device->Free(at, kBytes);
    const DeviceBytes again = Take(*device, kBytes);
    ASSERT_EQ(again.number(), at.number());
    ASSERT_TRUE(device->Write(streams[1 - works], again, expected.data(), kBytes).ok());
    std::vector<uint8_t> found(kBytes);
    ASSERT_TRUE(device->Read(streams[works], other, found.data(), kBytes).ok());  // now it has ended
    ASSERT_TRUE(device->Read(streams[1 - works], again, found.data(), kBytes).ok());
    EXPECT_EQ(found, expected);
    device->Free(again, kBytes);
  }
  device->Free(other, kBytes);
}

// Work that was issued before a block was freed may still read it; what comes later meets nobody's memory.
TEST_F(KeptBlocks, AreSpoiltForWhoeverStillReadsThem) {
  constexpr int64_t kBytes = 4096;
  const auto device = Open();
  const std::unique_ptr<Stream> stream = std::move(device->NewStream().value());
  const DeviceBytes at = Take(*device, kBytes), copy = Take(*device, kBytes);
  const std::vector<uint8_t> written(kBytes, 7);
  ASSERT_TRUE(device->Write(stream.get(), at, written.data(), kBytes).ok());
  const PageCopy job{copy, at, kBytes};
  ASSERT_TRUE(device->Copy(stream.get(), {&job, 1}).ok());
  device->Free(at, kBytes);
  std::vector<uint8_t> found(kBytes);
  ASSERT_TRUE(device->Read(stream.get(), copy, found.data(), kBytes).ok());
  EXPECT_EQ(found, written);
  const auto* block = reinterpret_cast<const uint8_t*>(at.number());  // the emulated device's is the host's
#if defined(__SANITIZE_ADDRESS__)
  EXPECT_TRUE(__asan_address_is_poisoned(block) && __asan_address_is_poisoned(block + kBytes - 1));
#else
  EXPECT_EQ(block[0], 0xff);
  EXPECT_EQ(block[kBytes - 1], 0xff);
#endif
  device->Free(copy, kBytes);
}

TEST_F(KeptBlocks, TakenByManyThreads) {
  constexpr int kThreads = 4, kTurns = 200;
  const auto device = Open();
  const int64_t before = Held();
  const auto work = [&](uint32_t seed) {
    auto stream = device->NewStream();
    ASSERT_TRUE(stream.ok());
    std::mt19937 random(seed);
    struct Block {
      DeviceBytes at;
      std::vector<uint8_t> bytes;
    };
    std::vector<Block> mine;
    for (int turn = 0; turn < kTurns; ++turn) {
      if (mine.size() < 6) {
        const auto n = static_cast<int64_t>(1000 << random() % 9);
        mine.push_back({Take(*device, n), std::vector<uint8_t>(static_cast<size_t>(n), random() % 256)});
        ASSERT_TRUE(device->Write(stream.value().get(), mine.back().at, mine.back().bytes.data(), n).ok());
      } else {
        const size_t i = random() % mine.size();
        std::vector<uint8_t> found(mine[i].bytes.size());
        const auto n = static_cast<int64_t>(found.size());
        ASSERT_TRUE(device->Read(stream.value().get(), mine[i].at, found.data(), n).ok());
        ASSERT_EQ(found, mine[i].bytes);
        device->Free(mine[i].at, n);
        mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(i));
      }
      if (turn % 50 == 49) device->GiveBackFreed();
    }
    for (const Block& b : mine) device->Free(b.at, static_cast<int64_t>(b.bytes.size()));
  };
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  device->GiveBackFreed();
  EXPECT_EQ(Held(), before);
}

// An event that the device refuses, and a kernel that failed: an error, and the block is nobody else's.
TEST_F(KeptBlocks, ADeviceThatFailed) {
  const auto device = Open();
  const int64_t before = Held();
  device->Free(Take(*device, 40000), 40000);
  emu::Break();
  DeviceBytes none;
  EXPECT_EQ(device->Allocate(40000, "a test", &none).code(), Code::kDevice);
  EXPECT_FALSE(none);
  emu::Recover();
  device->Free(Take(*device, 40000), 40000);
  device->GiveBackFreed();
  EXPECT_EQ(Held(), before);
}

}  // namespace
}  // namespace kvc
