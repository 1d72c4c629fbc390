// What a test's own machinery takes from the heap is not what the test counts (heap_faults.h).
#pragma once
namespace kvc::test {

inline thread_local int heap_pauses = 0;

class HeapPause {
 public:
  HeapPause() { ++heap_pauses; }
  ~HeapPause() { --heap_pauses; }
  HeapPause(const HeapPause&) = delete;
  HeapPause& operator=(const HeapPause&) = delete;
};

}  // namespace kvc::test
