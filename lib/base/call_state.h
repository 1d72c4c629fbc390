// Whether a call (on a session, of a loader) is running, how far it is, and whether someone wants it to stop.
// A request to stop stays until a call has answered it, or until it is withdrawn: none is lost between two
// calls or two parts of one.
#pragma once
#include <atomic>

#include "lib/base/status.h"

namespace kvc {

class CallState {
 public:
  bool TryBegin() { return !running_.exchange(true, std::memory_order_acquire); }
  void End() {
    progress_.store(1, std::memory_order_relaxed);
    running_.store(false, std::memory_order_release);
  }
  // kCancelled when someone wants it to stop; `what` is what was to be done.
  Status Check(const char* what) const {
    return cancelled() ? Error(Code::kCancelled, "the %s was cancelled; it may be repeated", what) : Status();
  }
  // Of what the running call was asked for, 0 to 1; 1: nothing that would take long.
  void SetProgress(double share) { progress_.store(share, std::memory_order_relaxed); }
  double progress() const { return progress_.load(std::memory_order_relaxed); }
  // Any thread.
  void RequestCancel() { cancel_.store(true, std::memory_order_relaxed); }
  void ClearCancel() { cancel_.store(false, std::memory_order_relaxed); }
  // Takes the request, if there is one: what comes later is for the next call.
  bool TakeCancel() { return cancel_.exchange(false, std::memory_order_relaxed); }
  bool cancelled() const { return cancel_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> running_{false}, cancel_{false};
  std::atomic<double> progress_{1};
};

}  // namespace kvc
