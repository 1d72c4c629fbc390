#include "lib/base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <vector>

#include "lib/base/item_ranges.h"
#include "lib/base/log.h"
#include "lib/base/processors.h"
#include "lib/base/system_thread.h"

namespace kvc {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);

inline void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield" ::: "memory");
#endif
}

// Polls `done` for at most kSpin.
template <typename F>
bool SpinUntil(F&& done) {
  const auto start = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      Pause();
    }
  } while (std::chrono::steady_clock::now() - start < kSpin);
  return done();
}

// One word tells everything about the running job: state_ = generation << 17 | open << 16 | workers inside. A
// worker joins by adding one while the job is open; the caller closes it when no item is left and waits for
// those inside only, so a worker that the system has not woken costs nothing. A job's fields change only
// while it is closed and empty.
class Workers {
 public:
  Workers(bool spin, int most) : spin_(spin), workers_(static_cast<size_t>(most)), items_(most + 1) {}
  ~Workers() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_.store(true);
    }
    work_.notify_all();
    for (int i = 0; i < n_workers_; ++i) workers_[static_cast<size_t>(i)].thread.Join();
  }

  // Starts as many as can be had. Allocates nothing of ours.
  void Start() {
    for (Worker& worker : workers_) {
      worker.pool = this, worker.index = n_workers_ + 1;
      if (!worker.thread.Start(Enter, &worker)) break;
      ++n_workers_;
    }
  }

  int n_threads() const { return n_workers_ + 1; }
  // The threads are those of another process: from now on the caller works alone.
  void Forget() { n_workers_ = 0; }

  void Run(int64_t n_items, void (*fn)(void*, int64_t, int), void* context) {
    if (n_items <= 1 || n_workers_ == 0 || running_.exchange(true, std::memory_order_acquire)) {
      for (int64_t i = 0; i < n_items; ++i) fn(context, i, 0);
      return;
    }
    fn_ = fn, context_ = context;
    items_.Share(n_items, n_threads());
    state_.store((state_.load(std::memory_order_relaxed) & ~kLow) + kGeneration + kOpen);
    if (sleepers_.load() > 0) {
      { std::lock_guard<std::mutex> lock(mutex_); }
      work_.notify_all();
    }
    Work(0);
    state_.fetch_and(~kOpen);
    const auto empty = [this] { return (state_.load() & kInside) == 0; };
    if (!empty() && !(spin_ && SpinUntil(empty))) {
      std::unique_lock<std::mutex> lock(mutex_);
      caller_waits_.store(true);
      idle_.wait(lock, empty);
      caller_waits_.store(false);
    }
    running_.store(false, std::memory_order_release);
  }

 private:
  struct Worker {
    Workers* pool = nullptr;
    int index = 0;
    SystemThread thread;
  };
  static constexpr uint64_t kInside = 0xffff, kOpen = 0x10000, kLow = 0x1ffff, kGeneration = 0x20000;

  static void Enter(void* argument) {
    const Worker* worker = static_cast<Worker*>(argument);
    worker->pool->Loop(worker->index);
  }

  void Loop(int index) {
    uint64_t seen = 0;  // generation of the last job joined
    const auto wanted = [this, &seen] {
      const uint64_t s = state_.load();
      return stop_.load(std::memory_order_relaxed) || ((s & kOpen) != 0 && (s & ~kLow) != seen);
    };
    for (;;) {
      if (!(spin_ && SpinUntil(wanted))) {
        std::unique_lock<std::mutex> lock(mutex_);
        sleepers_.fetch_add(1);
        work_.wait(lock, wanted);
        sleepers_.fetch_sub(1);
      }
      if (stop_.load()) return;
      uint64_t s = state_.load();
      while ((s & kOpen) != 0 && !state_.compare_exchange_weak(s, s + 1)) {
      }
      if ((s & kOpen) == 0) continue;
      seen = s & ~kLow;
      Work(index);
      if (((state_.fetch_sub(1) - 1) & kLow) == 0 && caller_waits_.load()) {
        { std::lock_guard<std::mutex> lock(mutex_); }
        idle_.notify_all();
      }
    }
  }

  void Work(int thread) {
    items_.Take(thread, [this, thread](int64_t item) { fn_(context_, item, thread); });
  }

  const bool spin_;
  std::vector<Worker> workers_;
  ItemRanges items_;  // the caller's first
  int n_workers_ = 0;

  // In one line: what wakes a worker tells it the job. Between caches that share nothing a line takes a
  // quarter of a microsecond.
  alignas(64) std::atomic<uint64_t> state_{0};
  void (*fn_)(void*, int64_t, int) = nullptr;
  void* context_ = nullptr;
  alignas(64) std::atomic<bool> running_{false};
  std::atomic<bool> stop_{false}, caller_waits_{false};
  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable work_, idle_;
};

// The workers of a pool stay in the parent of a fork: in the child what refers to them is left alone, since
// its locks and conditions may be those of a thread that does not exist.
class Pool final : public ThreadPool {
 public:
  Pool(bool spin, int n_workers)
      : workers_(std::make_unique<Workers>(spin, n_workers)),
        of_child_(std::make_unique<Workers>(spin, n_workers)) {
    born_ = ForkCount();
    workers_->Start();
    n_threads_ = workers_->n_threads();
  }
  ~Pool() override {
    if (InChild() || alone_) (void)workers_.release();
  }
  int n_threads() const override { return n_threads_; }

  void Run(int64_t n_items, void (*fn)(void*, int64_t, int), void* context) override {
    if (InChild()) Restart();
    workers_->Run(n_items, fn, context);
  }

 private:
  bool InChild() const { return born_.load(std::memory_order_acquire) != ForkCount(); }

  // The first job in a child: it gets the workers that were laid by for it. A child of that child works
  // alone.
  void Restart() {
    std::lock_guard<std::mutex> lock(restart_);
    if (!InChild()) return;
    if (of_child_ != nullptr) {
      (void)workers_.release();
      workers_ = std::move(of_child_);
      workers_->Start();
    } else {
      workers_->Forget();
      alone_ = true;
    }
    born_.store(ForkCount(), std::memory_order_release);
  }

  std::unique_ptr<Workers> workers_, of_child_;
  int n_threads_ = 1;
  bool alone_ = false;
  std::atomic<uint32_t> born_{0};
  std::mutex restart_;
};

}  // namespace

Result<std::unique_ptr<ThreadPool>> ThreadPool::Create(int n_threads) {
  if (n_threads < 0 || n_threads > kMaxThreads) {
    return Error(Code::kInvalid, "threads: %d is outside 0 (one per processor) to %d", n_threads,
                 kMaxThreads);
  }
  const Processors processors = UsableProcessors();
  const int wanted = n_threads > 0 ? n_threads : std::min(processors.fast, kMaxThreads);
  auto pool = std::make_unique<Pool>(wanted <= processors.allowed, wanted - 1);
  if (pool->n_threads() < wanted)
    Log(kLogWarning, "%d threads instead of %d: the system gives no more", pool->n_threads(), wanted);
  return std::unique_ptr<ThreadPool>(std::move(pool));
}

}  // namespace kvc
