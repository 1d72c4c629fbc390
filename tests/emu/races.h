// Races of kernels: two accesses to a byte of memory that threads share, of which one writes and not both are
// atomic, and that nothing orders. Threads of a block are ordered by its barriers, lanes of a warp by
// __syncwarp (not by what they hand each other in registers), blocks of a launch by nothing but a release
// that another acquires. Launches of a stream follow each other, but for early ones, whose threads may be
// ahead of the kernels in front of them until they wait, and for those of a graph that its edges do not
// order; those of two streams where one waits for an event of the other, or the host waits between. What is
// found does not depend on the order in which the emulator happens to run threads. Only in builds with
// KVC_EMU_RACES, whose kernels are compiled with -fsanitize=thread: that tells of every access, and races.cc,
// instead of ThreadSanitizer, listens.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

namespace kvc::emu {
struct Started;
}
namespace kvc::emu::races {

#if defined(KVC_EMU_RACES)
constexpr bool kOn = true;
#else
constexpr bool kOn = false;
#endif

struct Range {
  uintptr_t begin = 0, end = 0;
  bool holds(uintptr_t at) const { return begin <= at && at < end; }
};

// Launches that have ended before something: of each stream, by its number, all up to one, and all up to one.
struct Ended {
  uint32_t all = 0;
  std::map<uint32_t, uint32_t> of;
  bool Has(uint32_t stream, uint32_t launch) const;
  void Join(const Ended& other);
};
// A stream, and what has ended before anything that comes in it from here on.
struct Order {
  uint32_t number = ++streams;
  Ended ended;
  static inline uint32_t streams = 0;
};
// What the host knows to have ended as it issues something.
std::shared_ptr<const Ended> KnownToHost();
// The host has waited for that; for everything on the device.
void HostWaitsFor(const Ended& ended);
void HostWaitsForAll();
// Something runs in the stream that was issued when the host knew so much.
void BeginTask(Order* stream, const std::shared_ptr<const Ended>& known);
// What ran so far in the stream has ended before anything that comes in it: a copy lies between.
void EndChain(Order* stream);
// What ran so far in the stream, and everything before it.
Ended SoFar(const Order& stream);

// Nobody has accessed what is new there.
void Forget(const void* at, size_t bytes);

// stacks: of the threads, which nobody shares. handed: what lanes hand each other. shared: the dynamic shared
// memory of every block in turn; static shared memory is the host thread's own, and found.
void BeginLaunch(const Started& started, Range stacks, Range handed, Range shared);
// Of the block that runs: what it did before its last barrier is before what blocks do that acquire `at`
// later.
void Release(const void* at);
void Acquire(const void* at);
// The races of the launch; each pair of places in the source was told of on stderr, once a launch.
int EndLaunch();

}  // namespace kvc::emu::races
