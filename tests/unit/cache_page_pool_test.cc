#include "lib/cache/page_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <set>
#include <thread>

namespace kvc {
namespace {

constexpr int64_t kBytes = 256;

TEST(PagePool, TakesExactlyWhatIsAskedFor) {
  auto meter = std::make_shared<MemoryMeter>(0);
  PagePool pool(kBytes, meter);
  std::vector<int32_t> ids;
  ASSERT_TRUE(pool.Take(5, 0, &ids).ok());
  EXPECT_EQ(std::set<int32_t>(ids.begin(), ids.end()).size(), 5u);
  EXPECT_EQ(pool.bytes_held(), 5 * kBytes);
  EXPECT_EQ(meter->used(), 5 * kBytes);
  ASSERT_TRUE(pool.Take(1, 8, &ids).ok());  // a row at least
  EXPECT_EQ(ids.size(), 6u);
  EXPECT_EQ(pool.bytes_held(), 13 * kBytes);
  ASSERT_TRUE(pool.Take(7, 8, &ids).ok());  // the rest of it
  EXPECT_EQ(pool.bytes_held(), 13 * kBytes);
  for (int32_t id : ids) std::memset(pool.Data(id), id, kBytes);
  for (int32_t id : ids)
    EXPECT_EQ(pool.Data(id)[kBytes - 1], static_cast<uint8_t>(id)) << "pages do not overlap";
  for (int32_t id : ids) EXPECT_EQ(reinterpret_cast<uintptr_t>(pool.Data(id)) % 64, 0u);
  for (int32_t id : ids) pool.Release(id);
  EXPECT_EQ(meter->used(), 0);
}

TEST(PagePool, AnExtentGoesWhenItsLastPageDoes) {
  PagePool pool(kBytes, std::make_shared<MemoryMeter>(0));
  std::vector<int32_t> first, second;
  ASSERT_TRUE(pool.Take(4, 0, &first).ok());
  ASSERT_TRUE(pool.Take(4, 0, &second).ok());
  for (int i = 0; i < 3; ++i) pool.Release(first[static_cast<size_t>(i)]);
  EXPECT_EQ(pool.bytes_held(), 8 * kBytes);
  pool.Release(first[3]);
  EXPECT_EQ(pool.bytes_held(), 4 * kBytes);
  std::vector<int32_t> third;
  ASSERT_TRUE(pool.Take(2, 0, &third).ok());  // numbers are used again
  for (int32_t id : third) EXPECT_LT(id, 8);
  for (int32_t id : second) pool.Release(id);
  for (int32_t id : third) pool.Release(id);
  EXPECT_EQ(pool.bytes_held(), 0);
}

TEST(PagePool, SharedPagesStayUntilTheLastReference) {
  PagePool pool(kBytes, std::make_shared<MemoryMeter>(0));
  std::vector<int32_t> ids;
  ASSERT_TRUE(pool.Take(1, 0, &ids).ok());
  EXPECT_FALSE(pool.Shared(ids[0]));
  pool.AddReference(ids[0]);
  EXPECT_TRUE(pool.Shared(ids[0]));
  pool.Release(ids[0]);
  EXPECT_FALSE(pool.Shared(ids[0]));
  EXPECT_EQ(pool.bytes_held(), kBytes);
  pool.Release(ids[0]);
  EXPECT_EQ(pool.bytes_held(), 0);
}

TEST(PagePool, AnExtentOfTheirOwnGoesWithItsPages) {
  auto meter = std::make_shared<MemoryMeter>(12 * kBytes);
  PagePool pool(kBytes, meter);
  std::vector<int32_t> first, own;
  ASSERT_TRUE(pool.Take(1, 8, &first).ok());  // seven are free
  ASSERT_TRUE(pool.TakeExtent(3, &own).ok());
  EXPECT_EQ(own.size(), 3u);
  EXPECT_EQ(pool.bytes_held(), 11 * kBytes);
  EXPECT_EQ(pool.TakeExtent(2, &own).code(), Code::kMemory);
  EXPECT_EQ(own.size(), 3u);
  pool.Release(first[0]);
  EXPECT_EQ(pool.bytes_held(), 3 * kBytes) << "none of them lies among the older ones";
  for (int32_t id : own) pool.Release(id);
  EXPECT_EQ(meter->used(), 0);
}

TEST(PagePool, TheLimitTakesNothing) {
  auto meter = std::make_shared<MemoryMeter>(10 * kBytes);
  PagePool pool(kBytes, meter);
  std::vector<int32_t> ids;
  ASSERT_TRUE(pool.Take(8, 0, &ids).ok());
  const Status status = pool.Take(3, 0, &ids);
  EXPECT_EQ(status.code(), Code::kMemory);
  EXPECT_NE(status.message().find("limit of 2560"), std::string::npos) << status.message();
  EXPECT_EQ(ids.size(), 8u);
  EXPECT_EQ(meter->used(), 8 * kBytes);
  EXPECT_TRUE(pool.Take(2, 0, &ids).ok());
  for (int32_t id : ids) pool.Release(id);
}

TEST(PagePool, ManyThreadsAtOnce) {
  auto meter = std::make_shared<MemoryMeter>(0);
  PagePool pool(kBytes, meter);
  const auto work = [&](uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<int32_t> mine;
    for (int i = 0; i < 3000; ++i) {
      if (random() % 2 == 0) {
        std::vector<int32_t> ids;
        ASSERT_TRUE(
            pool.Take(static_cast<int32_t>(1 + random() % 5), static_cast<int32_t>(random() % 4), &ids).ok());
        for (int32_t id : ids) std::memset(pool.Data(id), static_cast<int>(seed), kBytes);
        mine.insert(mine.end(), ids.begin(), ids.end());
      } else if (!mine.empty()) {
        const size_t at = random() % mine.size();
        ASSERT_EQ(pool.Data(mine[at])[random() % kBytes], static_cast<uint8_t>(seed))
            << "someone else wrote here";
        pool.Release(mine[at]);
        mine[at] = mine.back();
        mine.pop_back();
      }
    }
    for (int32_t id : mine) pool.Release(id);
  };
  std::vector<std::thread> threads;
  for (uint32_t t = 1; t <= 4; ++t) threads.emplace_back(work, t);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(pool.bytes_held(), 0);
  EXPECT_EQ(meter->used(), 0);
}

}  // namespace
}  // namespace kvc
