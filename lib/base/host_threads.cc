#include "lib/base/host_threads.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "lib/base/item_ranges.h"

namespace kvc {
namespace {

// A job is what those who call Enter while it is open work on together, whoever they are and however many:
// what the host does not call for, the caller does itself, and what it calls for too often or too late finds
// nothing. state_ = open << 16 | workers inside. The index that the host gives says where one begins, so that
// a thread which has the same one in every job walks through the same memory; it may be anything.
class HostPool final : public ThreadPool {
 public:
  explicit HostPool(const HostThreads& host) : host_(host), items_(host.n_threads) {}
  int n_threads() const override { return host_.n_threads; }

  void Run(int64_t n_items, void (*fn)(void*, int64_t, int), void* context) override {
    if (n_items <= 1 || host_.n_threads == 1 || running_.exchange(true, std::memory_order_acquire)) {
      for (int64_t i = 0; i < n_items; ++i) fn(context, i, 0);
      return;
    }
    fn_ = fn, context_ = context;
    const int32_t n = n_items < host_.n_threads ? static_cast<int32_t>(n_items) : host_.n_threads;
    items_.Share(n_items, n);
    joined_.store(0, std::memory_order_relaxed);
    state_.store(kOpen);
    host_.run(host_.context, n, Enter, this);
    Join(0);  // what was left
    state_.fetch_and(~kOpen);
    while (state_.load() != 0) std::this_thread::yield();  // a host that returned too early
    running_.store(false, std::memory_order_release);
  }

 private:
  static constexpr uint32_t kOpen = 0x10000;

  static void Enter(void* job, int32_t index) {
    auto* pool = static_cast<HostPool*>(job);
    uint32_t s = pool->state_.load();
    while ((s & kOpen) != 0 && !pool->state_.compare_exchange_weak(s, s + 1)) {
    }
    if ((s & kOpen) == 0) return;
    pool->Join(index);
    pool->state_.fetch_sub(1);
  }

  // Each who joins gets a number of its own: two with one number would share scratch.
  void Join(int32_t index) {
    const int thread = joined_.fetch_add(1, std::memory_order_relaxed);
    if (thread >= host_.n_threads) return;  // as many as there may be are at it, or were
    items_.Take(std::max(index, 0), [this, thread](int64_t item) { fn_(context_, item, thread); });
  }

  const HostThreads host_;
  void (*fn_)(void*, int64_t, int) = nullptr;
  void* context_ = nullptr;
  ItemRanges items_;
  alignas(64) std::atomic<int> joined_{0};
  alignas(64) std::atomic<uint32_t> state_{0};
  std::atomic<bool> running_{false};
};

}  // namespace

Result<std::unique_ptr<ThreadPool>> CreatePool(const ThreadOptions& options) {
  if (options.host.run == nullptr) return ThreadPool::Create(options.n_threads);
  return std::unique_ptr<ThreadPool>(std::make_unique<HostPool>(options.host));
}

}  // namespace kvc
