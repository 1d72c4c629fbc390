// Memory of packed weights: blocks of their own, in large pages where the system has them, and back to it.
#include "lib/ops/cpu/weight_arena.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "lib/base/system_memory.h"

namespace kvc::cpu {
namespace {

class WeightArenaTest : public testing::Test {
 protected:
  void SetUp() override {
    uint8_t* at = arena_.Take(1);
    if (at == nullptr) GTEST_SKIP() << "no large pages to be asked for here";
    ASSERT_TRUE(arena_.Return(at, 1));
  }
  WeightArena arena_;
};

TEST_F(WeightArenaTest, BlocksFollowEachOtherAndKeepWhatIsWritten) {
  const int64_t sizes[] = {1, 64, 65, 3 << 20, 127, 200 << 20, 5};  // one is larger than a chunk
  std::vector<uint8_t*> blocks;
  for (const int64_t bytes : sizes) {
    uint8_t* at = arena_.Take(bytes);
    ASSERT_NE(nullptr, at);
    EXPECT_EQ(0u, reinterpret_cast<uintptr_t>(at) % 64);
    at[0] = static_cast<uint8_t>(blocks.size() + 1);
    at[bytes - 1] = static_cast<uint8_t>(blocks.size() + 1);
    blocks.push_back(at);
  }
  EXPECT_EQ(0u, reinterpret_cast<uintptr_t>(blocks[0]) % static_cast<uintptr_t>(HugePageBytes()));
  EXPECT_EQ(blocks[0] + 64, blocks[1]);
  EXPECT_EQ(blocks[1] + 64, blocks[2]);
  EXPECT_EQ(blocks[2] + 128, blocks[3]);
  EXPECT_EQ(blocks[3] + (3 << 20), blocks[4]);
  for (size_t i = 0; i < blocks.size(); ++i) {
    EXPECT_EQ(i + 1, blocks[i][0]);
    EXPECT_EQ(i + 1, blocks[i][sizes[i] - 1]);
  }
  for (size_t i = 0; i < blocks.size(); ++i) EXPECT_TRUE(arena_.Return(blocks[i], sizes[i])) << i;
  EXPECT_FALSE(arena_.Return(blocks[0], sizes[0])) << "its chunk is the system's again";
}

TEST_F(WeightArenaTest, OnlyItsOwnComesBack) {
  uint8_t here = 0;
  EXPECT_FALSE(arena_.Return(&here, 1));
  EXPECT_FALSE(arena_.Return(nullptr, 0));
  uint8_t* at = arena_.Take(64);
  ASSERT_NE(nullptr, at);
  EXPECT_FALSE(arena_.Return(&here, 1));
  EXPECT_TRUE(arena_.Return(at, 64));
}

TEST_F(WeightArenaTest, WhatCannotBeHadIsNull) {
  EXPECT_EQ(nullptr, arena_.Take(INT64_MAX - 64));
  EXPECT_EQ(nullptr, arena_.Take(int64_t{1} << 60));
  uint8_t* at = arena_.Take(64);  // and nothing is spoilt
  ASSERT_NE(nullptr, at);
  EXPECT_TRUE(arena_.Return(at, 64));
}

}  // namespace
}  // namespace kvc::cpu
