// Pages of the cache and the memory of the process.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "lib/cache/page_arena.h"
#include "lib/ops/cpu/raw.h"
#include "tests/support/test_device.h"
#include "tests/support/process_memory.h"

namespace {

bool no_memory = false;  // the system has addresses only

}  // namespace

// Instead of the C library's.
extern "C" int mprotect(void* at, size_t n_bytes, int access) noexcept {
  if (!no_memory) return static_cast<int>(syscall(SYS_mprotect, at, n_bytes, access));
  errno = ENOMEM;
  return -1;
}

namespace kvc {
namespace {

using Ids = std::vector<int32_t>;

class PageMemory : public testing::Test {
 protected:
  std::unique_ptr<PageArena> Make(int64_t page_bytes) {
    meter_ = std::make_shared<MemoryMeter>(0);
    return std::make_unique<PageArena>(memory_.device(), meter_, page_bytes, 64 << 20);
  }
  Ids Take(PageArena& arena, int32_t n) {
    Ids ids;
    EXPECT_TRUE(arena.Take(n, &ids).ok());
    return ids;
  }

  test::TestDevice memory_{1};
  const int64_t granule_ = memory_.device()->info().granule;
  std::shared_ptr<MemoryMeter> meter_;
};

// What is given back leaves the process, though its addresses stay; what is held stays as it was.
TEST_F(PageMemory, FreedPagesLeaveTheProcess) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers hold memory themselves";
  constexpr int32_t kPages = 32 << 10;
  constexpr int64_t kPage = 1024;
  const auto arena = Make(kPage);
  const Ids ids = Take(*arena, kPages);
  for (int32_t id : ids) std::memset(Raw(arena->At(id)), 1 + id % 100, kPage);
  const int64_t full = test::AnonymousBytes();
  // All but every 64th page; of 16 granules one is left.
  for (int32_t id : ids)
    if (id % 64 != 0) arena->Release(id);
  const int64_t few = test::AnonymousBytes();
  EXPECT_LT(few, full - kPages * kPage * 13 / 16);
  EXPECT_EQ(meter_->used(), kPages / 64 * std::max(granule_, kPage));
  for (int32_t id = 0; id < kPages; id += 64)
    EXPECT_EQ(Raw(arena->At(id))[kPage - 1], static_cast<uint8_t>(1 + id % 100));
  for (int32_t id = 0; id < kPages; id += 64) arena->Release(id);
}

TEST_F(PageMemory, ASystemWithoutMemoryTakesNothing) {
  const auto arena = Make(1 << 20);
  Ids ids = Take(*arena, 2);
  arena->Release(0);
  const int64_t used = meter_->used();
  no_memory = true;
  const Status status = arena->Take(3, &ids);
  no_memory = false;
  EXPECT_EQ(status.code(), Code::kMemory);
  EXPECT_EQ(ids.size(), 2u);
  EXPECT_EQ(meter_->used(), used);
  EXPECT_EQ(Take(*arena, 3), (Ids{0, 2, 3}));
}

// What counts as given back has left the process, where a program locks its memory too.
TEST_F(PageMemory, LockedPagesLeaveOrStillCount) {
  if (test::kSanitized || test::kUnderQemu) GTEST_SKIP() << "nothing is locked there";
  constexpr int32_t kPages = 4 << 10;
  constexpr int64_t kPage = 1024, kAll = kPages * kPage;
  const auto arena = Make(kPage);
  const Ids ids = Take(*arena, kPages);
  std::memset(Raw(arena->base()), 7, kAll);
  if (mlock(Raw(arena->base()), kAll) != 0) GTEST_SKIP() << "no memory may be locked: " << errno;
  const int64_t full = test::AnonymousBytes();
  arena->Release(ids.data(), ids.size());
  EXPECT_GE(full - test::AnonymousBytes(), (kAll - meter_->used()) * 15 / 16);
}

int64_t AddressBytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * sysconf(_SC_PAGESIZE);
}

// Where addresses are few, arenas leave some to each other and to what else is computed with.
TEST_F(PageMemory, ALimitOnAddressesIsShared) {
  if (test::kSanitized || test::kUnderQemu) GTEST_SKIP() << "they need all addresses themselves";
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    const rlim_t most = static_cast<rlim_t>(AddressBytes()) + (rlim_t{1} << 30);
    const rlimit limit = {most, most};
    if (setrlimit(RLIMIT_AS, &limit) != 0) _exit(2);
    PageArenas arenas(memory_.device(), std::make_shared<MemoryMeter>(0));
    for (int64_t format = 1; format <= 3; ++format) {
      const auto arena = arenas.Of(format * 1024);
      Ids ids;
      if (!arena.ok() || !arena.value()->Take(1024, &ids).ok()) _exit(3);
    }
    DeviceBuffer<uint8_t> workspace;
    _exit(workspace.Allocate(memory_.own(), 256 << 20, "test").ok() ? 0 : 4);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace kvc
