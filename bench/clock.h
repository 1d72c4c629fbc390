// Time of benchmarks.
#pragma once
#include <time.h>

#include <algorithm>
#include <cstddef>
#include <vector>

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

// Of several measurements of the same: the middle one, and what a tenth of them is not above, or not below.
struct Spread {
  double median = 0, p10 = 0, p90 = 0;
  int n = 0;
};

// Of one at least. The deciles are measurements themselves; of 11 the second and the tenth.
inline Spread SpreadOf(std::vector<double> measured) {
  std::sort(measured.begin(), measured.end());
  const size_t last = measured.size() - 1, tenth = (last + 5) / 10;
  const double middle = (measured[last / 2] + measured[(last + 1) / 2]) / 2;
  return {middle, measured[tenth], measured[last - tenth], static_cast<int>(measured.size())};
}

}  // namespace kvc::bench
