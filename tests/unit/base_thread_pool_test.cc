#include "lib/base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace kvc {
namespace {

std::unique_ptr<ThreadPool> MakePool(int n) {
  Result<std::unique_ptr<ThreadPool>> pool = ThreadPool::Create(n);
  EXPECT_TRUE(pool.ok()) << pool.status().message();
  return std::move(pool.value());
}

TEST(ThreadPool, EveryItemRunsOnceOnAKnownThread) {
  for (int threads : {1, 2, 3, 8}) {
    const auto pool = MakePool(threads);
    EXPECT_EQ(threads, pool->n_threads());
    for (int64_t n : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<size_t>(n));
      std::atomic<bool> bad{false};
      pool->ParallelFor(n, [&](int64_t item, int thread) {
        ++runs[static_cast<size_t>(item)];
        if (thread < 0 || thread >= threads) bad = true;
      });
      for (const auto& r : runs) ASSERT_EQ(1, r.load());
      ASSERT_FALSE(bad);
    }
  }
}

TEST(ThreadPool, WhatItemsWroteIsSeenAfterwards) {
  const auto pool = MakePool(4);
  std::vector<int64_t> values(257);
  for (int64_t round = 1; round <= 2000; ++round) {
    pool->ParallelFor(257, [&](int64_t item, int) { values[static_cast<size_t>(item)] += item * round; });
  }
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(static_cast<int64_t>(i) * 2001000, values[i]);
}

TEST(ThreadPool, WorkersTakePart) {
  const auto pool = MakePool(3);
  std::atomic<int> arrived{0};
  pool->ParallelFor(3, [&](int64_t, int) {  // ends only when all three items run at the same time
    ++arrived;
    while (arrived.load() < 3) std::this_thread::yield();
  });
  EXPECT_EQ(3, arrived.load());
}

TEST(ThreadPool, WorkersWakeAfterSleeping) {
  const auto pool = MakePool(3);
  for (int round = 0; round < 3; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> arrived{0};
    pool->ParallelFor(3, [&](int64_t, int) {
      ++arrived;
      while (arrived.load() < 3) std::this_thread::yield();
    });
  }
}

TEST(ThreadPool, ANestedCallRunsItsItemsItself) {
  const auto pool = MakePool(4);
  std::atomic<int64_t> sum{0};
  pool->ParallelFor(20, [&](int64_t item, int) {
    const auto self = std::this_thread::get_id();
    pool->ParallelFor(3, [&](int64_t inner, int) {
      EXPECT_EQ(self, std::this_thread::get_id());
      sum += item * inner;
    });
  });
  EXPECT_EQ(190 * 3, sum.load());
}

TEST(ThreadPool, SeveralCallersAllGetTheirItemsDone) {
  const auto pool = MakePool(4);
  std::atomic<int64_t> sum{0};
  const auto caller = [&] {
    for (int round = 0; round < 500; ++round) pool->ParallelFor(20, [&](int64_t item, int) { sum += item; });
  };
  std::thread second(caller), third(caller);
  caller();
  second.join();
  third.join();
  EXPECT_EQ(3 * 500 * 190, sum.load());
}

TEST(ThreadPool, CountsOutOfRangeAreRefusedInWords) {
  for (int n : {-1, 1025}) {
    const Result<std::unique_ptr<ThreadPool>> pool = ThreadPool::Create(n);
    ASSERT_FALSE(pool.ok());
    EXPECT_EQ(Code::kInvalid, pool.status().code());
    EXPECT_NE(std::string::npos, pool.status().message().find(std::to_string(n))) << pool.status().message();
  }
}

TEST(ThreadPool, ZeroMeansOneAProcessor) {
  EXPECT_EQ(std::max(1, static_cast<int>(std::thread::hardware_concurrency())), MakePool(0)->n_threads());
}

}  // namespace
}  // namespace kvc
