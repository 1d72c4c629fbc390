// A pool on the threads of the program: every item runs once, whatever the host makes of its calls.
#include "lib/base/host_threads.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <set>
#include <thread>
#include <vector>

namespace kvc {
namespace {

// An executor whose run is a function of the test's.
struct Host {
  std::function<void(int32_t n, const std::function<void(int32_t)>& work)> run;
  std::atomic<int> calls{0};

  HostThreads Threads(int n_threads) {
    return {n_threads, this, [](void* context, int32_t n, HostThreads::Work work, void* job) {
              auto* host = static_cast<Host*>(context);
              ++host->calls;
              host->run(n, [=](int32_t i) { work(job, i); });
            }};
  }
};

std::unique_ptr<ThreadPool> PoolOn(Host* host, int n_threads) {
  ThreadOptions options;
  options.host = host->Threads(n_threads);
  return std::move(CreatePool(options).value());
}

void InParallel(int32_t n, const std::function<void(int32_t)>& work) {
  std::vector<std::thread> threads;
  for (int32_t i = 0; i < n; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
}

// Every item once, each thread's number in range and with one holder at a time.
void ExpectEveryItemOnce(ThreadPool* pool, int64_t n) {
  std::vector<std::atomic<int>> runs(static_cast<size_t>(n)), busy(static_cast<size_t>(pool->n_threads()));
  std::atomic<bool> bad{false};
  pool->ParallelFor(n, [&](int64_t item, int thread) {
    if (thread < 0 || thread >= pool->n_threads()) {
      bad = true;
      return;
    }
    if (busy[static_cast<size_t>(thread)].exchange(1) != 0) bad = true;
    ++runs[static_cast<size_t>(item)];
    busy[static_cast<size_t>(thread)] = 0;
  });
  ASSERT_FALSE(bad);
  for (const auto& r : runs) ASSERT_EQ(1, r.load());
}

TEST(HostThreads, EveryItemRunsOnceWhateverTheHostDoes) {
  const std::vector<std::pair<const char*, decltype(Host::run)>> kinds = {
      {"at the same time", InParallel},
      {"one after another",
       [](int32_t n, const auto& work) {
         for (int32_t i = 0; i < n; ++i) work(i);
       }},
      {"backwards",
       [](int32_t n, const auto& work) {
         for (int32_t i = n; i > 0; --i) work(i - 1);
       }},
      {"never", [](int32_t, const auto&) {}},
      {"only once", [](int32_t, const auto& work) { work(0); }},
      {"too often", [](int32_t n, const auto& work) { InParallel(3 * n, work); }},
      {"always the same", [](int32_t n, const auto& work) { InParallel(n, [&](int32_t) { work(0); }); }},
      {"numbers of its own",
       [](int32_t n, const auto& work) { InParallel(n, [&](int32_t i) { work(-7 * i); }); }},
  };
  for (const auto& [name, run] : kinds) {
    SCOPED_TRACE(name);
    Host host{run};
    for (int n_threads : {1, 2, 5}) {
      const auto pool = PoolOn(&host, n_threads);
      EXPECT_EQ(n_threads, pool->n_threads());
      for (int64_t n : {0, 1, 2, 3, 64, 1000}) ExpectEveryItemOnce(pool.get(), n);
    }
    EXPECT_EQ(host.calls.load(), 2 * 4);  // not for one thread, nor for none or one item
  }
}

TEST(HostThreads, AskedForAsManyAsThereAreItemsAtMost) {
  std::set<int32_t> asked;
  Host host{[&](int32_t n, const auto& work) {
    asked.insert(n);
    InParallel(n, work);
  }};
  const auto pool = PoolOn(&host, 4);
  for (int64_t n : {2, 3, 4, 5, 100}) pool->ParallelFor(n, [](int64_t, int) {});
  EXPECT_EQ(asked, (std::set<int32_t>{2, 3, 4}));
}

TEST(HostThreads, TheyTakePart) {
  Host host{InParallel};
  const auto pool = PoolOn(&host, 3);
  std::atomic<int> arrived{0};
  pool->ParallelFor(3, [&](int64_t, int) {  // ends only when all three items run at the same time
    ++arrived;
    while (arrived.load() < 3) std::this_thread::yield();
  });
  EXPECT_EQ(3, arrived.load());
}

// So each walks through memory of its own, and the same in every job.
TEST(HostThreads, EachBeginsInTheRangeOfItsNumber) {
  Host host{InParallel};
  const auto pool = PoolOn(&host, 2);
  std::atomic<int> arrived{0};
  std::atomic<int64_t> first[2];
  first[0] = first[1] = -1;
  pool->ParallelFor(100, [&](int64_t item, int thread) {
    if (first[thread] >= 0) return;
    first[thread] = item;
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();  // both begin before either ends
  });
  EXPECT_EQ(std::min(first[0].load(), first[1].load()), 0);
  EXPECT_EQ(std::max(first[0].load(), first[1].load()), 50);
}

// A host that returns before its threads do: the job waits for those inside, and those that come later find
// nothing, or the next job.
TEST(HostThreads, ReturningTooEarlyLosesNothing) {
  std::vector<std::thread> threads;
  Host host{[&](int32_t n, const auto& work) {
    for (int32_t i = 0; i < n; ++i) threads.emplace_back([i, work] { work(i); });
  }};
  const auto pool = PoolOn(&host, 4);
  for (int round = 0; round < 50; ++round) {
    std::atomic<int64_t> sum{0};
    pool->ParallelFor(20, [&](int64_t item, int) { sum += item; });
    ASSERT_EQ(190, sum.load());
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(HostThreads, ASecondCallerWorksAlone) {
  Host host{InParallel};
  const auto pool = PoolOn(&host, 3);
  std::atomic<int64_t> sum{0};
  pool->ParallelFor(10, [&](int64_t item, int) {
    const auto self = std::this_thread::get_id();
    pool->ParallelFor(3, [&](int64_t inner, int) {
      EXPECT_EQ(self, std::this_thread::get_id());
      sum += item * inner;
    });
  });
  EXPECT_EQ(45 * 3, sum.load());
  EXPECT_EQ(1, host.calls.load());
}

}  // namespace
}  // namespace kvc
