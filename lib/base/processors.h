// How many processors this process may use, for the default number of threads.
#pragma once
#include <string>

namespace kvc {

struct Processors {
  int allowed = 1;  // that the process may run on: its affinity, and the time its control groups give it
  int fast = 1;  // of these, with at least half the capacity of the fastest one; what libkvc uses by itself
};

// root: in front of /proc and /sys, "" for those of the system. n_online: what the system says besides, 0
// unknown.
// Linux: affinity (sched_getaffinity), cpu.max of control groups v2 and cpu.cfs_quota_us of v1, those above
// the process's own included, cpu_capacity of processors. Elsewhere n_online. At least 1 each. What cannot be
// read does not limit.
Processors UsableProcessors(const std::string& root, int n_online);

// Of this system.
Processors UsableProcessors();

}  // namespace kvc
