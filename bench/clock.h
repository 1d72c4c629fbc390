// Time of benchmarks.
#pragma once
#include <time.h>

#include <algorithm>

namespace kvc::bench {

// Processor time of this thread, in seconds: other programs on the machine disturb it least.
inline double Now() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// The shortest of the runs of about `least` seconds, in seconds.
template <typename F>
double BestSeconds(double least, F&& f) {
  double best = 1e9;
  const double begin = Now();
  while (Now() - begin < least) {
    const double start = Now();
    f();
    best = std::min(best, Now() - start);
  }
  return best;
}

}  // namespace kvc::bench
