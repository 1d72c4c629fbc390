// The worker threads where the system gives none, and in forked children.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <thread>

#include "lib/base/thread_pool.h"
#include "tests/support/emulated.h"

namespace {
std::atomic<int> g_threads_left{1 << 30};  // how many more threads the system gives
sigset_t g_blocked;                        // by the thread that has asked for one last
}  // namespace

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
#define KVC_CAN_REFUSE_THREADS 1
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attr, void* (*start)(void*),
                              void* arg) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const Create create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  pthread_sigmask(SIG_SETMASK, nullptr, &g_blocked);
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

// While a thread is made, the C library may wait for one that a collector of garbage has stopped, and that
// collector for this one.
TEST(ThreadPool, WhoStartsAThreadCanBeStopped) {
  sigset_t before, behind;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  MakePool(2);
  for (int stop = SIGRTMIN; stop <= SIGRTMAX; ++stop) EXPECT_EQ(sigismember(&g_blocked, stop), 0) << stop;
  for (const int stop : {SIGPWR, SIGXCPU, SIGUSR1, SIGUSR2})
    EXPECT_EQ(sigismember(&g_blocked, stop), 0) << stop;
  for (const int other : {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGPROF, SIGCHLD})
    EXPECT_EQ(sigismember(&g_blocked, other), 1) << other << ": the new thread is born with it";
  pthread_sigmask(SIG_SETMASK, nullptr, &behind);
  for (int number = 1; number <= SIGRTMAX; ++number)
    EXPECT_EQ(sigismember(&behind, number), sigismember(&before, number)) << number;
}

TEST(ThreadPool, OneThreadMakesNone) {
  g_threads_left = 1000;
  MakePool(1);
  EXPECT_EQ(1000, g_threads_left.load());
  g_threads_left = 1 << 30;
}
#endif

// Signals to the process go to threads of the program. What a thread itself has done wrong is its own:
// blocked, it would end the process without the handler that the program has for it.
TEST(ThreadPool, WorkersLeaveSignalsToOthersButNotTheirFaults) {
  const auto pool = MakePool(2);
  std::atomic<int> arrived{0};
  sigset_t blocked;
  sigemptyset(&blocked);
  pool->ParallelFor(2, [&](int64_t, int thread) {
    if (thread == 1) pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    ++arrived;
    while (arrived.load() < 2) std::this_thread::yield();  // both threads take part
  });
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS})
    EXPECT_EQ(sigismember(&blocked, fault), 0) << fault;
  for (const int other :
       {SIGINT, SIGTERM, SIGHUP, SIGALRM, SIGUSR1, SIGPROF, SIGCHLD, SIGABRT, SIGUSR2, SIGXCPU})
    EXPECT_EQ(sigismember(&blocked, other), 1) << other;
}

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
  if (test::kUnderQemu) {
    GTEST_SKIP() << "QEMU 7.2 fails an assertion of its own where the forked child of a program with threads "
                    "makes one";
  }
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
