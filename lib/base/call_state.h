// Whether a call on a session is running, and whether someone wants it to stop. A request to stop stays until
// a call has returned kCancelled for it, or until it is withdrawn: none is lost between two calls or two
// parts of one.
#pragma once
#include <atomic>

namespace kvc {

class CallState {
 public:
  bool TryBegin() { return !running_.exchange(true, std::memory_order_acquire); }
  void End() { running_.store(false, std::memory_order_release); }
  // Any thread.
  void RequestCancel() { cancel_.store(true, std::memory_order_relaxed); }
  void ClearCancel() { cancel_.store(false, std::memory_order_relaxed); }
  bool cancelled() const { return cancel_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> running_{false}, cancel_{false};
};

}  // namespace kvc
