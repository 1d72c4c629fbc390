// Races of kernels: two accesses to a byte of memory that threads share, of which one writes and not both are
// atomic, and that nothing orders. Threads of a block are ordered by its barriers, lanes of a warp by their
// meetings, blocks of a launch by nothing but a release that another acquires. Launches follow each other,
// but for early ones, whose threads may be ahead of the kernels in front of them until they wait, and for
// those of a graph that its edges do not order. What is found does not depend on the order in which the
// emulator happens to run threads. Only in builds with KVC_EMU_RACES, whose kernels are compiled with
// -fsanitize=thread: that tells of every access, and races.cc, instead of ThreadSanitizer, listens.
#pragma once
#include <cstddef>
#include <cstdint>

namespace kvc::emu {
struct Started;
}
namespace kvc::emu::races {

struct Range {
  uintptr_t begin = 0, end = 0;
  bool holds(uintptr_t at) const { return begin <= at && at < end; }
};

// stacks: of the threads, which nobody shares. shared: the dynamic shared memory of every block in turn;
// static shared memory is the host thread's own, and found.
void BeginLaunch(const Started& started, Range stacks, Range shared);
// Whatever ran so far has ended before anything that comes: copies lie between, or the host has waited.
void EndChain();
// Of the block that runs: what it did before its last barrier is before what blocks do that acquire `at`
// later.
void Release(const void* at);
void Acquire(const void* at);
// The races of the launch; each pair of places in the source was told of on stderr, once a launch.
int EndLaunch();

}  // namespace kvc::emu::races
