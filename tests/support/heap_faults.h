// Counts allocations of the whole program, and makes chosen ones fail. A program that includes this replaces
// operator new.
#pragma once
#include <cstdint>

namespace kvc::test {

// Allocations (every form of operator new, all threads, but in a HeapPause) since the program started.
int64_t HeapAllocations();
// Bytes that operator new has given out and not got back, now and at most since ResetHeapPeak.
int64_t HeapBytes();
int64_t HeapPeak();
void ResetHeapPeak();

// While it lives, the allocation number `at` from its start on fails (0: the first), or that one and all
// later ones.
class HeapFault {
 public:
  enum Mode { kOne, kAllFrom };
  HeapFault(int64_t at, Mode mode);
  ~HeapFault();
  HeapFault(const HeapFault&) = delete;
  HeapFault& operator=(const HeapFault&) = delete;
  // From now on nothing fails.
  void Stop();
  bool fired() const;
};

}  // namespace kvc::test
