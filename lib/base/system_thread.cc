#include "lib/base/system_thread.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cstring>

namespace kvc {
namespace {

static_assert(sizeof(pthread_t) <= sizeof(uintptr_t), "a handle must hold it");

std::atomic<uint32_t> n_forks{0};

void* Enter(void* thread) {
  static_cast<SystemThread*>(thread)->Run();
  return nullptr;
}

}  // namespace

bool SystemThread::Start(void (*fn)(void*), void* argument) {
  fn_ = fn, argument_ = argument;
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool started = pthread_create(&thread, nullptr, Enter, this) == 0;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (started) std::memcpy(&handle_, &thread, sizeof thread);
  return started;
}

void SystemThread::Join() {
  pthread_t thread;
  std::memcpy(&thread, &handle_, sizeof thread);
  pthread_join(thread, nullptr);
}

uint32_t ForkCount() {
  static const int watched =
      pthread_atfork(nullptr, nullptr, [] { n_forks.fetch_add(1, std::memory_order_relaxed); });
  (void)watched;
  return n_forks.load(std::memory_order_relaxed);
}

}  // namespace kvc
