#include "lib/base/thread_pool.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>
#include <vector>

namespace {
std::atomic<int> g_threads_left{1 << 30};  // how many more threads the system gives
}

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define KVC_CAN_REFUSE_THREADS 1
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attr, void* (*start)(void*),
                              void* arg) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const Create create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  if (g_threads_left.fetch_sub(1) <= 0) return EAGAIN;
  return create(thread, attr, start, arg);
}
#endif

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

#if defined(KVC_CAN_REFUSE_THREADS)
TEST(ThreadPool, FewerThreadsWhenTheSystemGivesNoMore) {
  for (int given : {0, 2}) {
    g_threads_left = given;
    const auto pool = MakePool(16);
    EXPECT_EQ(given + 1, pool->n_threads());
    std::atomic<int> count{0};
    pool->ParallelFor(100, [&](int64_t, int) { ++count; });
    EXPECT_EQ(100, count.load());
    g_threads_left = 1 << 30;
  }
}

TEST(ThreadPool, OneThreadMakesNone) {
  g_threads_left = 1000;
  MakePool(1);
  EXPECT_EQ(1000, g_threads_left.load());
  g_threads_left = 1 << 30;
}
#endif

#if !defined(__SANITIZE_THREAD__)
// Exit status of what `f` gives in a child process; -1 when it does not end by itself within a minute.
template <typename F>
int InAChild(F&& f) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(f());
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int SumUpTo(ThreadPool& pool, int n) {
  std::atomic<int> sum{0};
  pool.ParallelFor(n, [&](int64_t i, int) { sum += static_cast<int>(i); });
  return sum;
}

// The workers stay in the parent; in children and their children work goes on, and closing does not wait.
TEST(ThreadPool, WorksAndClosesInForkedChildren) {
  for (int threads : {1, 4}) {
    auto pool = MakePool(threads);
    EXPECT_EQ(SumUpTo(*pool, 20), 190);
    EXPECT_EQ(InAChild([&] { return pool.reset(), 3; }), 3) << "closed without use";
    EXPECT_EQ(InAChild([&] {
                const int sum = SumUpTo(*pool, 20), grandchild = InAChild([&] {
                                                      const int again = SumUpTo(*pool, 20);
                                                      pool.reset();
                                                      return again;
                                                    });
                pool.reset();
                return sum == 190 && grandchild == 190 ? 5 : 6;
              }),
              5);
    EXPECT_EQ(SumUpTo(*pool, 20), 190) << "the parent goes on";
  }
}
#endif

}  // namespace
}  // namespace kvc
