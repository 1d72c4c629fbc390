// What the emulated device is made of, for its runtime (runtime.cc) and its driver (driver.cc): streams,
// memory, and the contexts of threads.
#pragma once
#include <cuda.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>

#include <sys/types.h>

#include "tests/emu/emulator.h"
#include "tests/emu/races.h"
#include "tests/support/heap_pause.h"

struct CUctx_st {
  int device;
};
struct CUstream_st {
  struct Task {
    std::function<void()> run;
    bool kernel;
    std::shared_ptr<const kvc::emu::races::Ended> known;  // to the host when it was issued
  };
  std::deque<Task> tasks;
  uint64_t issued = 0, done = 0;
  int device = 0;
  kvc::emu::races::Order order;
};
struct CUevent_st {
  CUstream_st* stream = nullptr;
  uint64_t at = 0;
  std::shared_ptr<kvc::emu::races::Ended> ended;  // when it was reached
};

namespace kvc::emu {

// Physical memory lives until nobody holds it and nothing is mapped to it.
struct Physical {
  size_t bytes;
  bool held = true;
  int maps = 0;
};
struct Mapping {
  CUmemGenericAllocationHandle handle;
  size_t bytes;
};

constexpr int kMostContexts = 8;

// A thread's: contexts are a stack, and where it is empty the runtime makes that of `device`.
struct Contexts {
  CUctx_st* at[kMostContexts] = {};
  int n = 0, device = 0;
  int Device() const { return n > 0 ? at[n - 1]->device : device; }
};
Contexts& GetContexts();
CUctx_st* PrimaryOf(int device);
// Of the thread, as what it says of its captures.
CUstreamCaptureMode& GetCaptureMode();

struct Machine {
  std::recursive_mutex mutex;
  std::map<CUstream_st*, int> streams;
  std::map<uintptr_t, size_t> device, pinned;  // blocks by address
  std::map<CUmemGenericAllocationHandle, Physical> physical;
  std::map<CUdeviceptr, size_t> reserved;
  std::map<CUdeviceptr, Mapping> mapped;
  CUmemGenericAllocationHandle next_handle = 1;
  int64_t used = 0;
  cudaError_t error = cudaSuccess;
  pid_t process = 0;  // that has contexts: a child of it cannot go on with them
  CUstream_st null_stream;
};
Machine& The();

// A call of the runtime: one at a time. What it takes from the heap is a driver's business.
class Lock {
 public:
  explicit Lock(std::recursive_mutex& mutex) : guard_(mutex) {}

 private:
  const std::lock_guard<std::recursive_mutex> guard_;
  const test::HeapPause pause_;
};

bool Forked();

// Nobody has accessed memory that is new.
inline void NoteNew([[maybe_unused]] const void* at, [[maybe_unused]] size_t bytes) {
  if constexpr (races::kOn) races::Forget(at, bytes);
}

}  // namespace kvc::emu
