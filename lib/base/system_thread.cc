#include "lib/base/system_thread.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cstring>
#include <initializer_list>

namespace kvc {
namespace {

static_assert(sizeof(pthread_t) <= sizeof(uintptr_t), "a handle must hold it");

std::atomic<uint32_t> n_forks{0};

void* Enter(void* thread) {
  static_cast<SystemThread*>(thread)->Run();
  return nullptr;
}

}  // namespace

// Signals to the process are for threads of the program. Those that a thread brings on itself stay: the
// system ends a process that blocks them, and what handlers the program has for crashes see nothing.
bool SystemThread::Start(void (*fn)(void*), void* argument) {
  fn_ = fn, argument_ = argument;
  sigset_t all, before;
  sigfillset(&all);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, own);
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
