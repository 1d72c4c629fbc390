#include "tools/watch.h"

#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "tools/output.h"

namespace kvc::tool {

struct Watch::State {
  std::mutex mutex;
  std::condition_variable wake;
  bool done = false;
  std::thread thread;

  void Show(const std::string& label, const std::function<double()>& share) {
    Progress progress(label);
    std::unique_lock<std::mutex> lock(mutex);
    auto pause = std::chrono::milliseconds(500);
    while (!wake.wait_for(lock, pause, [this] { return done; })) {
      pause = std::chrono::milliseconds(100);
      const double now = share();
      if (now < 1) progress.Update(now, 1);
    }
  }
};

Watch::Watch(const std::string& label, std::function<double()> share) {
  if (isatty(STDERR_FILENO) == 0) return;
  state_ = std::make_unique<State>();
  try {
    state_->thread = std::thread([this, label, share = std::move(share)] { state_->Show(label, share); });
  } catch (const std::system_error&) {  // no thread to show it: the work goes on
  }
}

Watch::~Watch() {
  if (state_ == nullptr || !state_->thread.joinable()) return;
  {
    const std::lock_guard<std::mutex> lock(state_->mutex);
    state_->done = true;
  }
  state_->wake.notify_one();
  state_->thread.join();
}

}  // namespace kvc::tool
