// Runs kernels: blocks one after the other in any order, the threads of a block as fibers that give way where
// CUDA's threads would wait. A block that cannot go on (a barrier not all reach, a warp that does not meet)
// is a failure of the launch, with the kernel's name on stderr: this is a program of tests.
#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <utility>
#include <vector>

#include "tests/emu/emulator.h"
#include "tests/emu/races.h"

#include <sys/mman.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define KVC_EMU_ASAN 1
#endif

namespace kvc::emu {

thread_local Thread* self = nullptr;
thread_local Block* block = nullptr;

namespace {

namespace ctx = boost::context::detail;

constexpr size_t kStackBytes = 128 << 10, kMostThreads = 1024, kMostBytes = 96;

enum class State : uint8_t { kNew, kReady, kAtWarp, kAtBlock, kDone };

struct Fiber {
  Thread thread;
  ctx::fcontext_t context = nullptr;
  State state = State::kNew;
  unsigned exchanges = 0;
  unsigned copy_groups = 0;                      // that are closed
  std::deque<std::pair<unsigned, Copy>> copies;  // that it has not waited for, with their groups
};

// What the lanes of a warp hand each other; two, so that the slowest may still read while the first writes
// on.
struct Warp {
  unsigned alive = 0, ready = 0, waiting = 0;  // lanes
  alignas(16) uint8_t values[2][32 * kMostBytes];
};

class Runner {
 public:
  Runner() {
    const size_t bytes = kStackBytes * kMostThreads;
    void* at =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) std::abort();
    stacks_ = static_cast<uint8_t*>(at);
    fibers_.resize(kMostThreads);
    warps_.resize(kMostThreads / 32);
  }
  ~Runner() {
#if defined(KVC_EMU_ASAN)
    // What frames of fibers left marked there would be found in whatever comes to these addresses next.
    __asan_unpoison_memory_region(stacks_, kStackBytes * kMostThreads);
#endif
    ::munmap(stacks_, kStackBytes * kMostThreads);
  }

  bool RunBlock(Block* b, const std::function<void()>& kernel, unsigned order) {
    kernel_ = &kernel;
    block = b;
    n_ = b->dim.x * b->dim.y * b->dim.z;
    const unsigned n_warps = (n_ + 31) / 32;
    for (unsigned i = 0; i < n_; ++i) {
      Fiber& f = fibers_[i];
      f.thread.index = {i % b->dim.x, i / b->dim.x % b->dim.y, i / b->dim.x / b->dim.y};
      f.thread.lane = i % 32, f.thread.warp = i / 32;
      f.thread.meetings = 0, f.thread.waited = false;
      f.exchanges = f.copy_groups = 0, f.copies.clear();
      f.state = State::kNew;
    }
    for (unsigned w = 0; w < n_warps; ++w)
      warps_[w].alive = std::min(32u, n_ - w * 32), warps_[w].ready = warps_[w].alive, warps_[w].waiting = 0;
    unsigned n_done = 0, at_block = 0;
    while (n_done < n_) {
      bool moved = false;
      for (unsigned i = 0; i < n_warps; ++i) {
        const unsigned w = (order & 1) != 0 ? n_warps - 1 - i : i;
        while (warps_[w].ready > 0) {
          moved = true;
          RunWarp(w, &n_done, &at_block);
        }
      }
      if (at_block > 0 && at_block + n_done == n_) {
        OpenBarrier(n_warps);
        ++b->barriers;
        at_block = 0;
        moved = true;
      }
      if (!moved) return false;
    }
    return true;
  }

  races::Range stacks() const {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(stacks_);
    return {begin, begin + kStackBytes * kMostThreads};
  }
  races::Range handed() const {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(warps_.data());
    return {begin, begin + warps_.size() * sizeof(Warp)};
  }

  const void* Exchange(unsigned mask, const void* mine, size_t bytes) {
    Fiber& f = Current();
    Warp& w = warps_[f.thread.warp];
    uint8_t* values = w.values[f.exchanges++ & 1];
    std::memcpy(values + f.thread.lane * bytes, mine, bytes);
    if (mask != ~0u) std::abort();  // kernels meet as whole warps
    f.state = State::kAtWarp;
    Yield();
    return values;
  }
  void WarpBarrier(unsigned mask) {
    const char none = 0;
    Exchange(mask, &none, sizeof none);
    ++self->meetings;
  }
  void Queue(const Copy& copy) { Current().copies.push_back({Current().copy_groups, copy}); }
  void CloseCopies() { ++Current().copy_groups; }
  bool Take(unsigned groups, Copy* copy) {
    Fiber& f = Current();
    if (f.copies.empty() || f.copies.front().first + groups >= f.copy_groups) return false;
    *copy = f.copies.front().second;
    f.copies.pop_front();
    return true;
  }
  void Barrier() {
    Current().state = State::kAtBlock;
    Yield();
  }

 private:
  Fiber& Current() { return *reinterpret_cast<Fiber*>(self); }

  // Every lane that can goes on until it waits; when all that are left wait for each other, they have met.
  // Lanes beyond the block and those that have ended are not waited for, as on a device.
  void RunWarp(unsigned w, unsigned* n_done, unsigned* at_block) {
    Warp& warp = warps_[w];
    const unsigned first = w * 32, end = std::min(n_, first + 32);
    for (unsigned i = first; i < end; ++i) {
      Fiber& f = fibers_[i];
      if (f.state != State::kNew && f.state != State::kReady) continue;
      Resume(i);
      --warp.ready;
      if (f.state == State::kDone) ++*n_done, --warp.alive;
      if (f.state == State::kAtBlock) ++*at_block;
      if (f.state == State::kAtWarp) ++warp.waiting;
    }
    if (warp.waiting == 0 || warp.waiting != warp.alive) return;
    for (unsigned i = first; i < end; ++i) {
      if (fibers_[i].state == State::kAtWarp) fibers_[i].state = State::kReady;
    }
    warp.ready = warp.waiting, warp.waiting = 0;
  }

  void OpenBarrier(unsigned n_warps) {
    for (unsigned i = 0; i < n_; ++i) {
      if (fibers_[i].state == State::kAtBlock) fibers_[i].state = State::kReady;
    }
    for (unsigned w = 0; w < n_warps; ++w) warps_[w].ready = warps_[w].alive, warps_[w].waiting = 0;
  }

  static void Entry(ctx::transfer_t from) {
    Runner* me = static_cast<Runner*>(from.data);
    me->main_ = from.fctx;
#if defined(KVC_EMU_ASAN)
    __sanitizer_finish_switch_fiber(nullptr, &me->main_bottom_, &me->main_size_);
#endif
    (*me->kernel_)();
    block->copies += me->Current().copies.size();
    me->Current().state = State::kDone;
#if defined(KVC_EMU_ASAN)
    __sanitizer_start_switch_fiber(nullptr, me->main_bottom_, me->main_size_);
#endif
    ctx::jump_fcontext(me->main_, nullptr);
  }

  void Resume(unsigned i) {
    Fiber& f = fibers_[i];
    uint8_t* stack = stacks_ + i * kStackBytes;
    if (f.state == State::kNew) {
#if defined(KVC_EMU_ASAN)
      __asan_unpoison_memory_region(stack, kStackBytes);
#endif
      // Stacks begin at different places of a page: else all of a block would share a few lines of the
      // first-level cache.
      const size_t top = kStackBytes - i * 320 % 8192;
      f.context = ctx::make_fcontext(stack + top, top, Entry);
    }
    f.state = State::kReady;
    self = &f.thread;
#if defined(KVC_EMU_ASAN)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, stack, kStackBytes);
#endif
    f.context = ctx::jump_fcontext(f.context, this).fctx;
#if defined(KVC_EMU_ASAN)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    self = nullptr;
  }

  void Yield() {
    Thread* me = self;
#if defined(KVC_EMU_ASAN)
    void* fake = nullptr;
    __sanitizer_start_switch_fiber(&fake, main_bottom_, main_size_);
#endif
    main_ = ctx::jump_fcontext(main_, nullptr).fctx;
#if defined(KVC_EMU_ASAN)
    __sanitizer_finish_switch_fiber(fake, &main_bottom_, &main_size_);
#endif
    self = me;
  }

  uint8_t* stacks_ = nullptr;
  std::vector<Fiber> fibers_;
  std::vector<Warp> warps_;
  const std::function<void()>* kernel_ = nullptr;
  unsigned n_ = 0;
  ctx::fcontext_t main_ = nullptr;
#if defined(KVC_EMU_ASAN)
  const void* main_bottom_ = nullptr;
  size_t main_size_ = 0;
#endif
};

thread_local Runner* current = nullptr;  // while a block runs

Runner& OfThread() {
  thread_local std::unique_ptr<Runner> runner(new Runner());
  return *runner;
}

}  // namespace

const void* Exchange(unsigned mask, const void* mine, size_t bytes) {
  if (bytes > kMostBytes) std::abort();
  return current->Exchange(mask, mine, bytes);
}
void WarpBarrier(unsigned mask) { current->WarpBarrier(mask); }
void BlockBarrier() { current->Barrier(); }
// Not in the header: they are no accesses of the kernel's.
void WaitForEarlier() {
  ++block->waits;
  self->waited = true;
}
void ReleaseCount([[maybe_unused]] const void* count) {
#if defined(KVC_EMU_RACES)
  races::Release(count);
#endif
}
void AcquireCount([[maybe_unused]] const void* count) {
#if defined(KVC_EMU_RACES)
  races::Acquire(count);
#endif
}
void Prefetch(const void* at, int64_t bytes) {
  const auto& told = GetOptions().on_prefetch;
  if (told) told(at, bytes);
}
void QueueCopy(const Copy& copy) { current->Queue(copy); }
void CloseCopies() { current->CloseCopies(); }
bool TakeCopy(unsigned groups, Copy* copy) { return current->Take(groups, copy); }

bool RunGrid(const Started& started, const std::function<void()>& kernel) {
  const Options& options = GetOptions();
  const dim3 grid = started.grid, dim = started.block;
  const size_t shared = started.shared;
  const char* const name = started.name;
  if (started.early) ++GetCalls().early;
  GetCalls().kernels.insert(name);
  const unsigned n = grid.x * grid.y * grid.z;
  // Exactly as long as asked for, full of what is neither a number nor an index.
  std::unique_ptr<uint8_t[]> memory(new uint8_t[shared + 16]);
  uint8_t* at = reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(memory.get()) + 15) & ~uintptr_t{15});
#if defined(KVC_EMU_ASAN)
  __asan_poison_memory_region(at + shared, memory.get() + shared + 16 - (at + shared));
#endif
  bool good = true;
  current = &OfThread();
#if defined(KVC_EMU_RACES)
  races::BeginLaunch(started, current->stacks(), current->handed(),
                     {reinterpret_cast<uintptr_t>(at), reinterpret_cast<uintptr_t>(at) + shared});
#endif
  for (unsigned i = 0; i < n && good; ++i) {
    // Orders that a device could take: forward, backward, or with a stride that meets every block once.
    unsigned b = i;
    if (options.order == 1) b = n - 1 - i;
    if (options.order == 2) {
      unsigned stride = n / 2 + 1;
      while (std::gcd(stride, n) != 1) ++stride;
      b = static_cast<unsigned>(uint64_t{i} * stride % n);
    }
    Block one;
    one.index = {b % grid.x, b / grid.x % grid.y, b / grid.x / grid.y};
    one.dim = dim, one.grid = grid, one.shared = at, one.number = b;
    std::memset(at, 0xff, shared);
    good = current->RunBlock(&one, kernel, options.order == 0 ? 0 : b + 1);
    if (!good)
      std::fprintf(stderr, "emulator: %s: block %u of %u cannot go on: its threads wait for each other\n",
                   name, b, n);
    if (good && one.copies > 0) {
      std::fprintf(stderr, "emulator: %s: threads of block %u end with %zu copies on their way\n", name, b,
                   one.copies);
      good = false;
    }
    if (good && started.early && one.waits != dim.x * dim.y * dim.z) {
      std::fprintf(stderr, "emulator: %s: %u threads of block %u have not waited for what lies before it\n",
                   name, dim.x * dim.y * dim.z - one.waits, b);
      good = false;
    }
  }
#if defined(KVC_EMU_ASAN)
  __asan_unpoison_memory_region(memory.get(), shared + 16);
#endif
  block = nullptr;
#if defined(KVC_EMU_RACES)
  good = races::EndLaunch() == 0 && good;
#endif
  return good;
}

}  // namespace kvc::emu
