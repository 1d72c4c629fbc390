// The model's worker threads. One ParallelFor runs at a time; a second caller runs its items itself.
#pragma once
#include <cstdint>
#include <memory>
#include <type_traits>

#include "lib/base/status.h"

namespace kvc {

constexpr int kMaxThreads = 1024;  // that a pool may be asked for

class ThreadPool {
 public:
  // n_threads counts the calling thread; 0 = one per fast processor that the process may use (processors.h).
  // Fewer are used when threads cannot be made.
  static Result<std::unique_ptr<ThreadPool>> Create(int n_threads);
  virtual ~ThreadPool() = default;
  virtual int n_threads() const = 0;
  // Calls fn(context, item, thread) for item in [0, n_items), in any order, on any thread; returns when all
  // are done. thread is in [0, n_threads). fn must not throw. Allocates nothing.
  virtual void Run(int64_t n_items, void (*fn)(void* context, int64_t item, int thread), void* context) = 0;

  // One item is not worth a meeting.
  template <typename F>  // void f(int64_t item, int thread) noexcept
  void ParallelFor(int64_t n_items, F&& f) {
    if (n_items == 1) return f(0, 0);
    Run(
        n_items,
        [](void* c, int64_t item, int thread) {
          (*static_cast<std::remove_reference_t<F>*>(c))(item, thread);
        },
        const_cast<void*>(static_cast<const void*>(&f)));
  }
};

}  // namespace kvc
