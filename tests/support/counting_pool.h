// A pool that works on the caller's thread and counts how often threads would have met. Who includes it
// derives from a class of the library, and is compiled without type information as that is.
#pragma once
#include "lib/base/thread_pool.h"

namespace kvc::test {

class CountingPool final : public ThreadPool {
 public:
  explicit CountingPool(int64_t* runs) : runs_(runs) {}
  int n_threads() const override { return 1; }
  void Run(int64_t n_items, void (*fn)(void*, int64_t, int), void* context) override {
    ++*runs_;
    for (int64_t i = n_items; i-- > 0;) fn(context, i, 0);  // the last first: no order is promised
  }

 private:
  int64_t* runs_;
};

}  // namespace kvc::test
