#include "lib/base/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

namespace kvc {
namespace {

// Function, user pointer and level change together: readers take one consistent set by its version.
std::atomic<LogFunction> log_function{nullptr};
std::atomic<void*> log_user{nullptr};
std::atomic<int32_t> log_level{kLogError + 1};
std::atomic<uint32_t> log_version{0};

}  // namespace

void SetLog(int32_t min_level, LogFunction fn, void* user) {
  log_version.fetch_add(1, std::memory_order_acq_rel);  // odd: being changed
  log_function.store(fn);
  log_user.store(user);
  log_level.store(fn == nullptr ? kLogError + 1 : min_level);
  log_version.fetch_add(1, std::memory_order_acq_rel);
}

void Log(int32_t level, const char* format, ...) {
  if (level < log_level.load(std::memory_order_relaxed)) return;
  const uint32_t version = log_version.load(std::memory_order_acquire);
  const LogFunction fn = log_function.load();
  void* user = log_user.load();
  if (fn == nullptr || (version & 1) != 0 || log_version.load(std::memory_order_acquire) != version) return;
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  fn(user, level, text);
}

}  // namespace kvc
