// Threads as the system makes them: one that cannot be had is a value, not an exception.
#pragma once
#include <cstdint>

namespace kvc {

class SystemThread {
 public:
  SystemThread() = default;
  SystemThread(const SystemThread&) = delete;
  SystemThread& operator=(const SystemThread&) = delete;
  // Runs fn(argument) on a new thread, which takes no signals: those stay with the threads of the host.
  // False: the system gives no more. Allocates nothing of ours; this object stays where it is until Join.
  bool Start(void (*fn)(void*), void* argument);
  void Join();
  void Run() { fn_(argument_); }  // for the thread itself

 private:
  void (*fn_)(void*) = nullptr;
  void* argument_ = nullptr;
  uintptr_t handle_ = 0;
};

// How often this process has forked since the first call; 0 for ever where processes do not fork.
uint32_t ForkCount();

}  // namespace kvc
