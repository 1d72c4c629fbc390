// One limit for all threads: what fits is had, whatever others ask for meanwhile.
#include "lib/base/memory_meter.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvc {
namespace {

TEST(MemoryMeter, TakesAllOrNothing) {
  MemoryMeter meter(100);
  EXPECT_TRUE(meter.Take(60, "a").ok());
  EXPECT_EQ(meter.Take(41, "b").code(), Code::kMemory);
  EXPECT_EQ(meter.used(), 60);
  EXPECT_TRUE(meter.Take(40, "c").ok());
  meter.Give(100);
  EXPECT_EQ(meter.used(), 0);
  EXPECT_EQ(meter.peak(), 100);
}

TEST(MemoryMeter, SaysWhatIsShort) {
  MemoryMeter meter(1000);
  ASSERT_TRUE(meter.Take(900, "a start").ok());
  EXPECT_EQ(meter.Take(200, "the weights").message(),
            "200 more bytes are needed for the weights: 900 of the limit of 1000 are in use");
}

TEST(MemoryMeter, WhatIsRefusedTakesNothingFromOthers) {
  MemoryMeter meter(1000);
  std::atomic<bool> ends{false};
  std::thread greedy([&] {
    while (!ends.load()) EXPECT_FALSE(meter.Take(2000, "too much").ok());
  });
  int failed = 0;
  for (int i = 0; i < 20000; ++i) {
    const bool taken = meter.Take(64, "little").ok();
    failed += taken ? 0 : 1;
    if (taken) meter.Give(64);
  }
  ends.store(true);
  greedy.join();
  EXPECT_EQ(failed, 0);
  EXPECT_EQ(meter.used(), 0);
}

}  // namespace
}  // namespace kvc
