#include "lib/cache/page_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

#include "lib/ops/cpu/raw.h"
#include "tests/support/heap_faults.h"
#include "tests/support/test_device.h"
#include "tests/support/watched_device.h"

namespace kvc {
namespace {

constexpr int64_t kBytes = 256, kMost = 64 << 20;

using Ids = std::vector<int32_t>;

class PageArenaTest : public testing::Test {
 protected:
  std::unique_ptr<PageArena> Make(int64_t page_bytes, int64_t limit = 0, int64_t most = kMost) {
    meter_ = std::make_shared<MemoryMeter>(limit);
    return std::make_unique<PageArena>(memory_.device(), meter_, page_bytes, most);
  }
  Ids Take(PageArena& arena, int32_t n) {
    Ids ids;
    EXPECT_TRUE(arena.Take(n, &ids).ok());
    return ids;
  }

  test::TestDevice memory_{1};
  const int64_t granule_ = memory_.device()->info().granule;
  std::shared_ptr<MemoryMeter> meter_;
};

TEST_F(PageArenaTest, TakesTheLowestNumbersAscending) {
  const auto arena = Make(kBytes);
  EXPECT_EQ(Take(*arena, 6), (Ids{0, 1, 2, 3, 4, 5}));
  for (int32_t id : {4, 1, 3}) arena->Release(id);
  EXPECT_EQ(Take(*arena, 2), (Ids{1, 3}));
  EXPECT_EQ(Take(*arena, 3), (Ids{4, 6, 7})) << "numbers are used again before new ones are";
  Ids more = {77};
  EXPECT_TRUE(arena->Take(1, &more).ok());
  EXPECT_EQ(more, (Ids{77, 8})) << "behind what is there";
  EXPECT_TRUE(arena->Take(0, &more).ok());
  EXPECT_EQ(more.size(), 2u);
  for (int32_t id = 0; id <= 8; ++id) arena->Release(id);
}

// Against a set: random taking and giving back always gets the lowest free numbers, also far into the tables.
TEST_F(PageArenaTest, AgreesWithASetOfFreeNumbers) {
  const auto arena = Make(kBytes);
  std::mt19937 random(5);
  std::vector<bool> held;
  for (int round = 0; round < 300; ++round) {
    const int32_t n = static_cast<int32_t>(random() % 60);
    Ids expected;
    for (int32_t id = 0; static_cast<int32_t>(expected.size()) < n; ++id) {
      if (static_cast<size_t>(id) == held.size()) held.push_back(false);
      if (!held[static_cast<size_t>(id)]) expected.push_back(id);
    }
    ASSERT_EQ(Take(*arena, n), expected) << round;
    for (int32_t id : expected) held[static_cast<size_t>(id)] = true;
    for (size_t id = 0; id < held.size(); ++id) {
      if (!held[id] || random() % 3 != 0) continue;
      arena->Release(static_cast<int32_t>(id));
      held[id] = false;
    }
  }
  for (size_t id = 0; id < held.size(); ++id)
    if (held[id]) arena->Release(static_cast<int32_t>(id));
  EXPECT_EQ(meter_->used(), 0);
}

TEST_F(PageArenaTest, PagesLieBehindEachOtherAligned) {
  const auto arena = Make(5 * 64);
  const Ids ids = Take(*arena, 200);
  for (int32_t id : ids) {
    EXPECT_EQ(arena->At(id).number(), arena->base().number() + static_cast<uintptr_t>(id * 5 * 64));
    EXPECT_EQ(arena->At(id).number() % 64, 0u);
    std::memset(Raw(arena->At(id)), id, 5 * 64);
  }
  for (int32_t id : ids) EXPECT_EQ(Raw(arena->At(id))[5 * 64 - 1], static_cast<uint8_t>(id));
  arena->Release(ids.data(), ids.size());
}

TEST_F(PageArenaTest, AGranuleGoesWithItsLastPage) {
  const auto arena = Make(kBytes);
  const int32_t per_granule = static_cast<int32_t>(granule_ / kBytes);
  const Ids ids = Take(*arena, per_granule + 1);
  EXPECT_EQ(meter_->used(), 2 * granule_);
  for (int32_t id = 1; id < per_granule; ++id) arena->Release(id);
  EXPECT_EQ(meter_->used(), 2 * granule_);
  arena->Release(ids[0]);
  EXPECT_EQ(meter_->used(), granule_);
  EXPECT_EQ(Take(*arena, 1), Ids{0});
  EXPECT_EQ(meter_->used(), 2 * granule_) << "and comes back with its first";
  arena->Release(0);
  arena->Release(per_granule);
  EXPECT_EQ(meter_->used(), 0);
}

TEST_F(PageArenaTest, PagesOverSeveralGranulesShareTheirEnds) {
  const auto arena = Make(granule_ * 5 / 2);
  EXPECT_EQ(Take(*arena, 2), (Ids{0, 1}));
  EXPECT_EQ(meter_->used(), 5 * granule_);
  arena->Release(0);
  EXPECT_EQ(meter_->used(), 3 * granule_) << "the third granule is the other's too";
  arena->Release(1);
  EXPECT_EQ(meter_->used(), 0);
}

TEST_F(PageArenaTest, TheMeterGetsBackWhatAnArenaHoldsWhenItGoes) {
  auto arena = Make(kBytes);
  Take(*arena, 40);
  EXPECT_GT(meter_->used(), 0);
  arena.reset();
  EXPECT_EQ(meter_->used(), 0);
}

TEST_F(PageArenaTest, SharedPagesStayUntilTheLastReference) {
  const auto arena = Make(kBytes);
  const Ids ids = Take(*arena, 1);
  EXPECT_FALSE(arena->Shared(ids[0]));
  arena->AddReference(ids[0]);
  EXPECT_TRUE(arena->Shared(ids[0]));
  arena->Release(ids[0]);
  EXPECT_FALSE(arena->Shared(ids[0]));
  EXPECT_EQ(meter_->used(), granule_);
  EXPECT_EQ(Take(*arena, 1), Ids{1});
  arena->Release(ids[0]);
  arena->Release(1);
  EXPECT_EQ(meter_->used(), 0);
}

TEST_F(PageArenaTest, TheLimitTakesNothing) {
  const int64_t limit = 10 * granule_;
  const auto arena = Make(granule_, limit);
  Ids ids = Take(*arena, 8);
  const Status status = arena->Take(3, &ids);
  EXPECT_EQ(status.code(), Code::kMemory);
  EXPECT_NE(status.message().find("limit of " + std::to_string(limit)), std::string::npos)
      << status.message();
  EXPECT_EQ(ids.size(), 8u);
  EXPECT_EQ(meter_->used(), 8 * granule_);
  EXPECT_EQ(Take(*arena, 2), (Ids{8, 9}));
  for (int32_t id = 0; id < 10; ++id) arena->Release(id);
  EXPECT_EQ(meter_->used(), 0);
}

// What others hold of the limit is no loss of numbers.
TEST_F(PageArenaTest, ANumberThatFoundNoMemoryIsTheNextOne) {
  const auto arena = Make(granule_, 10 * granule_);
  Ids ids = Take(*arena, 5);
  ASSERT_TRUE(meter_->Take(5 * granule_, "others").ok());
  EXPECT_EQ(arena->Take(1, &ids).code(), Code::kMemory);
  meter_->Give(5 * granule_);
  EXPECT_EQ(Take(*arena, 2), (Ids{5, 6}));
  for (int32_t id = 0; id < 7; ++id) arena->Release(id);
  EXPECT_EQ(meter_->used(), 0);
}

TEST_F(PageArenaTest, GivingBackTakesNoMemory) {
  const auto arena = Make(kBytes);
  for (const int32_t n : {1, 60, 700}) {
    const Ids ids = Take(*arena, n);
    const test::HeapFault none(0, test::HeapFault::kAllFrom);
    arena->Release(ids.data(), ids.size());
    EXPECT_FALSE(none.fired()) << n;
  }
}

TEST_F(PageArenaTest, TheEndOfTheAddressesTakesNothing) {
  constexpr int64_t kLarge = 1 << 20;
  const auto arena = Make(kLarge, 0, 16 * kLarge);
  Ids ids = Take(*arena, 10);
  const int64_t used = meter_->used();
  EXPECT_EQ(arena->Take(7, &ids).code(), Code::kMemory);
  EXPECT_EQ(ids.size(), 10u);
  EXPECT_EQ(meter_->used(), used);
  EXPECT_EQ(Take(*arena, 6), (Ids{10, 11, 12, 13, 14, 15}));
  arena->Release(3);
  EXPECT_EQ(Take(*arena, 1), Ids{3}) << "what is free can be had though there are no more addresses";
}

TEST(PageArena, OneArenaForASizeOfPage) {
  test::TestDevice memory(1);
  const std::shared_ptr<PageArena> small = memory.arenas()->Of(256).value(),
                                   large = memory.arenas()->Of(1024).value();
  EXPECT_NE(small, large);
  EXPECT_EQ(memory.arenas()->Of(256).value(), small);
  EXPECT_EQ(large->page_bytes(), 1024);
}

TEST(PageArena, StaysWhileSomeoneRefersToIt) {
  test::TestDevice memory(1);
  const std::shared_ptr<PageArena> small = memory.arenas()->Of(256).value();
  memory.arenas()->FreeUnused();
  EXPECT_EQ(memory.arenas()->Of(256).value(), small);
}

class WithoutAddresses final : public cpu::CpuDevice {
 public:
  WithoutAddresses() : CpuDevice(std::move(ThreadPool::Create(1).value()), BestKernels()) {}
  int64_t Reserve(int64_t bytes, DeviceBytes* out) override {
    *out = {};
    return none ? 0 : CpuDevice::Reserve(bytes, out);
  }
  bool none = true;
};

// Who comes later, when there are addresses again, must not be given the arena that got none.
TEST(PageArena, NoAddressesAreAFailureOfTheMomentOnly) {
  WithoutAddresses device;
  PageArenas arenas(&device, std::make_shared<MemoryMeter>(0));
  EXPECT_EQ(arenas.Of(256).status().code(), Code::kMemory);
  device.none = false;
  auto arena = arenas.Of(256);
  ASSERT_TRUE(arena.ok());
  Ids ids;
  EXPECT_TRUE(arena.value()->Take(1, &ids).ok());
  arena.value()->Release(ids.data(), 1);
}

TEST_F(PageArenaTest, ManyThreadsAtOnce) {
  const auto arena = Make(kBytes);
  const auto work = [&](uint32_t seed) {
    std::mt19937 random(seed);
    Ids mine;
    for (int i = 0; i < 3000; ++i) {
      if (random() % 2 == 0) {
        Ids ids;
        ASSERT_TRUE(arena->Take(static_cast<int32_t>(1 + random() % 5), &ids).ok());
        for (int32_t id : ids) std::memset(Raw(arena->At(id)), static_cast<int>(seed), kBytes);
        mine.insert(mine.end(), ids.begin(), ids.end());
      } else if (!mine.empty()) {
        const size_t at = random() % mine.size();
        ASSERT_EQ(Raw(arena->At(mine[at]))[random() % kBytes], static_cast<uint8_t>(seed))
            << "someone else wrote here";
        arena->Release(mine[at]);
        mine[at] = mine.back();
        mine.pop_back();
      }
    }
    for (int32_t id : mine) arena->Release(id);
  };
  std::vector<std::thread> threads;
  for (uint32_t t = 1; t <= 4; ++t) threads.emplace_back(work, t);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(meter_->used(), 0);
}

// Forks on several threads refer to the same pages; the last to let go gives them back, once.
TEST_F(PageArenaTest, ManyThreadsShareTheSamePages) {
  const auto arena = Make(kBytes);
  const Ids ids = Take(*arena, 100);
  constexpr int kThreads = 4, kRounds = 2000;
  for (int t = 0; t < kThreads; ++t) {
    for (int32_t id : ids) arena->AddReference(id);
  }
  const auto work = [&](uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < kRounds; ++i) {
      const int32_t id = ids[random() % ids.size()];
      arena->AddReference(id);
      ASSERT_TRUE(arena->Shared(id));
      arena->Release(id);
    }
    arena->Release(ids.data(), ids.size());
  };
  arena->Release(ids.data(), ids.size());
  std::vector<std::thread> threads;
  for (uint32_t t = 1; t <= kThreads; ++t) threads.emplace_back(work, t);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(meter_->used(), 0);
  EXPECT_EQ(Take(*arena, 100), ids);
  arena->Release(ids.data(), ids.size());
}

// A device that counts the calls for memory that goes back.
class Counting final : public test::WatchedDevice {
 public:
  using WatchedDevice::WatchedDevice;
  bool Decommit(DeviceBytes at, int64_t bytes) override {
    ++calls;
    return WatchedDevice::Decommit(at, bytes);
  }
  int64_t calls = 0;
};

// Where memory goes back in any pieces, pages behind each other go together.
TEST(PageArenaReturns, RunsOfPagesAtOnce) {
  Counting device(std::move(OpenDevice("cpu", 1).value()));
  if (device.info().recommits) GTEST_SKIP() << "a granule a call";
  const int64_t granule = device.info().granule;
  const auto meter = std::make_shared<MemoryMeter>(0);
  PageArena arena(&device, meter, granule, kMost);
  const auto calls_for = [&](const Ids& order) {
    Ids ids;
    EXPECT_TRUE(arena.Take(100, &ids).ok());
    const int64_t before = device.calls;
    arena.Release(order.data(), order.size());
    EXPECT_EQ(meter->used(), (100 - static_cast<int64_t>(order.size())) * granule);
    const int64_t calls = device.calls - before;
    for (const int32_t id : ids)
      if (std::find(order.begin(), order.end(), id) == order.end()) arena.Release(id);
    EXPECT_EQ(meter->used(), 0);
    return calls;
  };
  Ids all(100);
  std::iota(all.begin(), all.end(), 0);
  EXPECT_EQ(calls_for(all), 1);
  EXPECT_EQ(calls_for(Ids(all.rbegin(), all.rend())), 1);
  EXPECT_EQ(calls_for({7, 8, 9, 20, 21, 6, 5, 50}), 4);
  EXPECT_EQ(calls_for({}), 0);
}

// A device whose memory may be locked: it stays when it is given back.
class Locking final : public test::WatchedDevice {
 public:
  using WatchedDevice::WatchedDevice;
  bool Decommit(DeviceBytes at, int64_t bytes) override {
    return !locked && WatchedDevice::Decommit(at, bytes);
  }
  bool locked = false;
};

// What stayed counts as held: it costs nothing when it is used again, and may leave when that ends.
TEST(PageArenaOfLockedMemory, CountsWhatStayed) {
  Locking device(std::move(OpenDevice("cpu", 1).value()));
  const int64_t granule = device.info().granule;
  const auto meter = std::make_shared<MemoryMeter>(4 * granule);
  auto arena = std::make_unique<PageArena>(&device, meter, 2 * granule, kMost);
  Ids ids;
  ASSERT_TRUE(arena->Take(2, &ids).ok());
  device.locked = true;
  arena->Release(0);
  EXPECT_EQ(meter->used(), 4 * granule);
  ids.clear();
  ASSERT_TRUE(arena->Take(1, &ids).ok());
  EXPECT_EQ(ids, Ids{0});
  EXPECT_EQ(meter->used(), 4 * granule);
  EXPECT_EQ(arena->Take(1, &ids).code(), Code::kMemory) << "nothing counts twice";
  EXPECT_EQ(meter->used(), 4 * granule);
  arena->Release(1);
  EXPECT_EQ(meter->used(), 4 * granule);
  device.locked = false;
  arena->Release(0);
  EXPECT_EQ(meter->used(), 2 * granule) << "the other's stayed";
  arena.reset();
  EXPECT_EQ(meter->used(), 0);
}

}  // namespace
}  // namespace kvc
