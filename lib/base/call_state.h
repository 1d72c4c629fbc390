// Whether a call on a session is running, and whether someone wants it to stop. One atomic, so no request is
// lost or hits a later call.
#pragma once
#include <atomic>
#include <cstdint>

namespace kvc {

class CallState {
 public:
  bool TryBegin() {
    int32_t idle = kIdle;
    return state_.compare_exchange_strong(idle, kRunning, std::memory_order_acquire);
  }
  void End() { state_.store(kIdle, std::memory_order_release); }
  // Any thread. Without a running call nothing happens.
  void RequestCancel() {
    int32_t running = kRunning;
    state_.compare_exchange_strong(running, kCancelled, std::memory_order_relaxed);
  }
  bool cancelled() const { return state_.load(std::memory_order_relaxed) == kCancelled; }

 private:
  enum : int32_t { kIdle = 0, kRunning = 1, kCancelled = 2 };
  std::atomic<int32_t> state_{kIdle};
};

}  // namespace kvc
