#include "tests/support/process_memory.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kvc::test {
namespace {

// A line "name:   n kB" of /proc/self/status, in bytes.
int64_t StatusBytes(const char* name) {
  std::FILE* file = std::fopen("/proc/self/status", "r");
  if (file == nullptr) return -1;
  char line[256];
  int64_t bytes = -1;
  while (bytes < 0 && std::fgets(line, sizeof line, file) != nullptr) {
    const size_t n = std::strlen(name);
    if (std::strncmp(line, name, n) == 0 && line[n] == ':')
      bytes = std::strtoll(line + n + 1, nullptr, 10) * 1024;
  }
  std::fclose(file);
  return bytes;
}

}  // namespace

int64_t AnonymousBytes() { return StatusBytes("RssAnon"); }

int64_t PeakGrowth(const std::function<void()>& work) {
  int ends[2];
  if (::pipe(ends) != 0) return -1;
  const pid_t child = ::fork();
  if (child == 0) {
    const int64_t before = StatusBytes("VmRSS");
    work();
    const int64_t growth = StatusBytes("VmHWM") - before;
    const bool written = ::write(ends[1], &growth, sizeof growth) == sizeof growth;
    ::_exit(written ? 0 : 1);
  }
  ::close(ends[1]);
  int64_t growth = -1;
  int status = 1;
  const bool read = child > 0 && ::read(ends[0], &growth, sizeof growth) == sizeof growth;
  ::close(ends[0]);
  if (child > 0) ::waitpid(child, &status, 0);
  return read && status == 0 ? growth : -1;
}

}  // namespace kvc::test
