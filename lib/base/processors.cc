#include "lib/base/processors.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#endif

namespace kvc {
namespace {

#if defined(__linux__)

// A small file of the system's; empty when it cannot be read.
std::string ReadSmall(const std::string& path) {
  char text[4096];
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return "";
  const size_t n = std::fread(text, 1, sizeof text, file);
  std::fclose(file);
  return std::string(text, n);
}

// Numbers of the processors that the process may run on; empty: unknown.
std::vector<int> Affinity() {
  std::vector<int> out;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return out;  // more processors than the set has room for
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) out.push_back(i);
  }
  return out;
}

// quota / period, in processors; 0: no limit. "max" and -1 say so.
double Share(const std::string& quota, const std::string& period) {
  const double q = std::strtod(quota.c_str(), nullptr), p = std::strtod(period.c_str(), nullptr);
  return q > 0 && p > 0 ? q / p : 0;
}

// The smallest share that a group and those above it have; folder ends in the group's path.
template <typename F>
double LeastShare(const std::string& mount, std::string path, F&& share_in) {
  double least = 0;
  for (;;) {
    const double share = share_in(mount + path);
    if (share > 0 && (least == 0 || share < least)) least = share;
    const size_t cut = path.find_last_of('/');
    if (cut == std::string::npos || path.empty()) return least;
    path.resize(cut);
  }
}

// Processors' worth of time that control groups give; 0: no limit. Lines of /proc/self/cgroup:
// "0::/path" (v2), "4:cpu,cpuacct:/path" (v1).
double GroupShare(const std::string& root) {
  const std::string groups = ReadSmall(root + "/proc/self/cgroup");
  double least = 0;
  for (size_t begin = 0; begin < groups.size();) {
    const size_t end = std::min(groups.find('\n', begin), groups.size());
    const std::string line = groups.substr(begin, end - begin);
    begin = end + 1;
    const size_t first = line.find(':'),
                 second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    double share = 0;
    if (controllers == ",,") {
      share = LeastShare(root + "/sys/fs/cgroup", path, [](const std::string& folder) {
        const std::string text = ReadSmall(folder + "/cpu.max");
        const size_t gap = text.find(' ');
        return gap == std::string::npos ? 0 : Share(text.substr(0, gap), text.substr(gap + 1));
      });
    } else if (controllers.find(",cpu,") != std::string::npos) {
      share = LeastShare(root + "/sys/fs/cgroup/cpu", path, [](const std::string& folder) {
        return Share(ReadSmall(folder + "/cpu.cfs_quota_us"), ReadSmall(folder + "/cpu.cfs_period_us"));
      });
    }
    if (share > 0 && (least == 0 || share < least)) least = share;
  }
  return least;
}

// How many of these processors have at least half the capacity of the fastest; all where it is not told.
int FastOnes(const std::string& root, const std::vector<int>& processors) {
  std::vector<long> capacities;
  for (int i : processors) {
    const std::string file = root + "/sys/devices/system/cpu/cpu" + std::to_string(i) + "/cpu_capacity";
    const long capacity = std::strtol(ReadSmall(file).c_str(), nullptr, 10);
    if (capacity <= 0) return static_cast<int>(processors.size());
    capacities.push_back(capacity);
  }
  if (capacities.empty()) return 0;
  const long most = *std::max_element(capacities.begin(), capacities.end());
  return static_cast<int>(
      std::count_if(capacities.begin(), capacities.end(), [&](long c) { return 2 * c >= most; }));
}

#endif

}  // namespace

Processors UsableProcessors(const std::string& root, int n_online) {
  Processors out;
  out.allowed = out.fast = std::max(1, n_online);
#if defined(__linux__)
  const std::vector<int> processors = Affinity();
  if (!processors.empty()) {
    out.allowed = static_cast<int>(processors.size());
    out.fast = FastOnes(root, processors);
  }
  // Part of a processor's time still needs a thread to use it.
  const double share = std::ceil(GroupShare(root));
  if (share > 0) out.allowed = static_cast<int>(std::min<double>(out.allowed, share));
  out.fast = std::max(1, std::min(out.fast, out.allowed));
#else
  (void)root;
#endif
  return out;
}

Processors UsableProcessors() {
  return UsableProcessors("", static_cast<int>(std::thread::hardware_concurrency()));
}

}  // namespace kvc
