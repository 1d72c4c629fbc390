// Threads of the program that uses the library, as kvc_executor describes them.
#pragma once
#include <cstdint>
#include <memory>

#include "lib/base/thread_pool.h"

namespace kvc {

struct HostThreads {
  using Work = void (*)(void* job, int32_t index);
  int n_threads = 0;
  void* context = nullptr;
  // Calls work(job, i) for i in [0, n) and returns when all have returned; null: the program has none.
  void (*run)(void* context, int32_t n, Work work, void* job) = nullptr;
};

// Whose threads a device computes with.
struct ThreadOptions {
  ThreadOptions(int n = 0) : n_threads(n) {}  // NOLINT: most callers have a number and nothing else
  int n_threads;     // of libkvc's own; 0: as many as the process has fast processors
  HostThreads host;  // used instead, where there are any
};

// A pool of either kind.
Result<std::unique_ptr<ThreadPool>> CreatePool(const ThreadOptions& options);

}  // namespace kvc
