// How many threads are used by default: the process's affinity, control groups and slow processors, the
// latter two from files as the system lays them out (cgroups(7); Documentation/admin-guide/cgroup-v2.rst,
// ABI/testing/ sysfs-devices-system-cpu of Linux).
#include "lib/base/processors.h"

#include <gtest/gtest.h>

#if defined(__linux__)

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/tiny_model.h"

namespace kvc {
namespace {

class ProcessorsTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(sched_getaffinity(0, sizeof set_, &set_), 0);
    n_ = CPU_COUNT(&set_);
  }
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path at(root() + path);
    std::filesystem::create_directories(at.parent_path());
    std::ofstream(at) << text;
  }
  // Capacities of the processors that this process may run on, in turn.
  void Capacities(const std::vector<int>& values) {
    size_t at = 0;
    for (int i = 0; i < CPU_SETSIZE; ++i) {
      if (CPU_ISSET(i, &set_))
        Write("/sys/devices/system/cpu/cpu" + std::to_string(i) + "/cpu_capacity",
              std::to_string(values[at++ % values.size()]) + "\n");
    }
  }
  std::string root() const { return folder_ / "root"; }
  Processors Ask() const { return UsableProcessors(root(), 1000); }

  test::TempFolder folder_;
  cpu_set_t set_;
  int n_ = 0;
};

TEST_F(ProcessorsTest, WithoutFilesTheyAreThoseOfTheAffinity) {
  EXPECT_EQ(Ask().allowed, n_);
  EXPECT_EQ(Ask().fast, n_);
  EXPECT_EQ(UsableProcessors().allowed, UsableProcessors("", n_).allowed);
}

TEST_F(ProcessorsTest, AThreadThatMayUseOneProcessorHasOne) {
  int first = 0;
  while (!CPU_ISSET(first, &set_)) ++first;
  Processors seen;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    seen = Ask();
  }).join();
  EXPECT_EQ(seen.allowed, 1);
  EXPECT_EQ(seen.fast, 1);
}

TEST_F(ProcessorsTest, QuotaOfControlGroups) {
  struct Case {
    const char* text;
    int most;  // 0: no limit
  };
  for (const Case& c : {Case{"max 100000\n", 0},
                        {"100000 100000\n", 1},
                        {"150000 100000\n", 2},
                        {"1000 100000\n", 1},
                        {"", 0},
                        {"rubbish", 0},
                        {"-1 100000\n", 0},
                        {"100000 0\n", 0},
                        {"9999999999999 1\n", 0}}) {
    Write("/proc/self/cgroup", "0::/user.slice/app.scope\n");
    Write("/sys/fs/cgroup/user.slice/app.scope/cpu.max", c.text);
    EXPECT_EQ(Ask().allowed, c.most == 0 ? n_ : std::min(n_, c.most)) << c.text;
  }
}

TEST_F(ProcessorsTest, AGroupAboveLimitsToo) {
  Write("/proc/self/cgroup", "0::/a/b/c\n");
  Write("/sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/a/cpu.max", "50000 100000\n");
  EXPECT_EQ(Ask().allowed, 1);
  Write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(Ask().allowed, n_);
  Write("/sys/fs/cgroup/cpu.max", "100000 100000\n");
  EXPECT_EQ(Ask().allowed, 1);
}

TEST_F(ProcessorsTest, QuotaOfTheFirstVersion) {
  Write("/proc/self/cgroup", "12:pids:/x\n4:cpu,cpuacct:/docker/1\n0::/\nno colons\n");
  Write("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "-1\n");
  Write("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(Ask().allowed, n_);
  Write("/sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us", "20000\n");
  EXPECT_EQ(Ask().allowed, 1);
}

TEST_F(ProcessorsTest, SlowOnesAreNotUsedByThemselves) {
  Capacities({1024, 250});
  const Processors mixed = Ask();
  EXPECT_EQ(mixed.allowed, n_);
  EXPECT_EQ(mixed.fast, (n_ + 1) / 2);
  Capacities({1024, 512});
  EXPECT_EQ(Ask().fast, n_);
  Capacities({250});
  EXPECT_EQ(Ask().fast, n_) << "equal ones are all fast";
  Capacities({0});
  EXPECT_EQ(Ask().fast, n_) << "not told";
}

}  // namespace
}  // namespace kvc

#endif
