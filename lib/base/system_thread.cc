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

// Signals to the process are for threads of the program. Those that a thread brings on itself stay: the
// system ends a process that blocks them, and what handlers the program has for crashes see nothing.
sigset_t SignalsOfOthers() {
  sigset_t all;
  sigfillset(&all);
  for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) sigdelset(&all, own);
  return all;
}

// Of those, what the thread that starts another may block meanwhile. Not the signals by which runtimes stop
// their threads to collect garbage (Mono and Boehm's collector real-time ones, SIGPWR and SIGXCPU; HotSpot
// SIGUSR2): pthread_create waits for locks of the C library that a thread which is stopped already may hold
// (pthread_join does), and a collector that waits for this one would wait for ever. Should one of these reach
// the new thread before it has blocked them, the host's handler runs there, as on any thread.
sigset_t SignalsToHold() {
  sigset_t held = SignalsOfOthers();
  for (const int stop : {SIGUSR1, SIGUSR2, SIGXCPU}) sigdelset(&held, stop);
#ifdef SIGPWR
  sigdelset(&held, SIGPWR);
#endif
#ifdef SIGRTMIN
  for (int stop = SIGRTMIN; stop <= SIGRTMAX; ++stop) sigdelset(&held, stop);
#endif
  return held;
}

void* Enter(void* thread) {
  const sigset_t blocked = SignalsOfOthers();
  pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
  static_cast<SystemThread*>(thread)->Run();
  return nullptr;
}

}  // namespace

bool SystemThread::Start(void (*fn)(void*), void* argument) {
  fn_ = fn, argument_ = argument;
  const sigset_t held = SignalsToHold();
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &held, &before);
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
