#include "lib/base/log.h"

#include <atomic>
#include <cstdarg>
#include <cstdio>

#include "lib/base/utf8.h"

namespace kvc {
namespace {

// Function, user pointer and level change together: readers take one consistent set by its version, which is
// odd while a setter is at it.
std::atomic<LogFunction> log_function{nullptr};
std::atomic<void*> log_user{nullptr};
std::atomic<int32_t> log_level{kLogError + 1};
std::atomic<uint32_t> log_version{0};

}  // namespace

void SetLog(int32_t min_level, LogFunction fn, void* user) {
  uint32_t even = log_version.load() & ~1u;
  while (!log_version.compare_exchange_weak(even, even + 1)) even &= ~1u;  // one setter at a time
  log_function.store(fn);
  log_user.store(user);
  log_level.store(fn == nullptr ? kLogError + 1 : min_level);
  log_version.store(even + 2);
}

void Log(int32_t level, const char* format, ...) {
  if (level < log_level.load(std::memory_order_relaxed)) return;
  LogFunction fn;
  void* user;
  int32_t least;
  uint32_t version;
  do {
    version = log_version.load();
    fn = log_function.load(), user = log_user.load(), least = log_level.load();
  } while ((version & 1) != 0 || log_version.load() != version);
  if (fn == nullptr || level < least) return;
  char text[1024];
  va_list args;
  va_start(args, format);
  const int n = std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (n >= static_cast<int>(sizeof text))
    text[Utf8Whole(reinterpret_cast<const uint8_t*>(text), sizeof text - 1)] = '\0';
  for (char* c = text; *c != '\0'; ++c) {
    if (static_cast<unsigned char>(*c) < 0x20 || *c == 0x7F) *c = '?';
  }
  fn(user, level, text);
}

}  // namespace kvc
