// Memory that can be opened and closed as one: a range of addresses, the part of it that is in use
// inaccessible unless somebody is inside. Thread-safe.
#pragma once
#include <cstdint>
#include <mutex>

namespace kvc::test {

class Fence {
 public:
  static Fence& OfProcess();  // lives for ever

  // Whole pages; null: no address or no memory for the record. Small blocks come filled with NaN: what an
  // operation reads before one wrote it shows.
  void* Allocate(int64_t bytes) { return Take(bytes, true); }
  // Addresses; what is behind them costs nothing until it is written.
  void* Reserve(int64_t bytes) { return Take(bytes, false); }
  void Release(void* at);
  // The content goes; the addresses stay.
  void Forget(void* at, int64_t bytes);

  void Enter();
  void Leave();
  int64_t bytes() const;

  class Inside {
   public:
    Inside() { OfProcess().Enter(); }
    ~Inside() { OfProcess().Leave(); }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;
  };

 private:
  // Neighbours in the order of addresses, gaps between them free.
  struct Extent {
    uint8_t* at;
    int64_t bytes;
    Extent* next;
  };

  Fence();
  void* Take(int64_t bytes, bool fill);
  void Protect(bool open);

  mutable std::mutex mutex_;
  uint8_t* base_ = nullptr;
  int64_t size_ = 0, used_ = 0, held_ = 0;  // used_: up to the end of the last extent
  int inside_ = 0;
  Extent* first_ = nullptr;
};

}  // namespace kvc::test
