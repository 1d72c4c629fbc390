// The fence kills who should die (tests/fence): without this, a suite that passes behind it would say
// nothing.
#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "lib/ops/cpu/raw.h"
#include "lib/ops/device_buffer.h"
#include "lib/ops/devices.h"
#include "tests/fence/fence.h"
#include "tests/fence/fenced_device.h"
#include "tests/support/emulated.h"
#include "tests/support/environment.h"

namespace kvc::test {
namespace {

constexpr char kOutside[] = "outside an operation";

// Reads where the compiler cannot see that nobody needs the value.
uint8_t Touch(DevicePtr<const uint8_t> at) { return *const_cast<const volatile uint8_t*>(Raw(at)); }

class FenceTest : public testing::Test {
 protected:
  void SetUp() override {
    // The other style starts this program again, of which the system would have to know that it is emulated.
    GTEST_FLAG_SET(death_test_style, kUnderQemu ? "fast" : "threadsafe");
    device_ = std::move(NewFencedDevice(2).value());
    stream_ = std::move(device_->NewStream().value());
  }
  std::unique_ptr<Device> device_;
  std::unique_ptr<Stream> stream_;
};
using FenceDeathTest = FenceTest;

TEST_F(FenceDeathTest, MemoryIsOpenInsideOperationsOnly) {
  DeviceBuffer<uint8_t> block;
  ASSERT_TRUE(block.Allocate({device_.get(), nullptr}, 3, "test").ok());
  EXPECT_DEATH(Touch(block.at()), kOutside);
  const uint8_t in[] = {1, 2, 3};
  uint8_t out[3] = {};
  ASSERT_TRUE(device_->Write(stream_.get(), block.raw(), in, 3).ok());
  ASSERT_TRUE(device_->Read(stream_.get(), block.at(), out, 3).ok());
  EXPECT_EQ(0, std::memcmp(in, out, 3));
  EXPECT_DEATH(Touch(block.at()), kOutside);
  EXPECT_DEATH(*Raw(block.at()) = 1, kOutside);
}

TEST_F(FenceDeathTest, ArenasAreFenced) {
  DeviceBytes at;
  const int64_t granule = device_->info().granule;
  ASSERT_GE(device_->Reserve(4 * granule, &at), 4 * granule);
  ASSERT_TRUE(device_->Commit(at + granule, granule).ok());
  ASSERT_TRUE(device_->Zero(stream_.get(), at + granule, granule).ok());
  EXPECT_DEATH(Touch(at + granule), kOutside);
  device_->Decommit(at + granule, granule);
  device_->Unreserve(at, 4 * granule);
}

TEST_F(FenceDeathTest, WeightsAreCopiedBehindIt) {
  const std::vector<float> rows(16 * 8, 0.5f), bias(16, 2.0f);
  Vector vector;
  ASSERT_TRUE(device_->PrepareVector(bias.data(), 16, &vector).ok());
  EXPECT_DEATH(Touch(vector.at.As<const uint8_t>()), kOutside);
  for (MatrixUse use : {MatrixUse::kProducts, MatrixUse::kRows}) {
    Weight w;
    w.rows = 16, w.cols = 8, w.data = rows.data();
    Matrix m;
    ASSERT_TRUE(device_->Prepare({&w, 1}, {&vector.at, 1}, use, &m).ok());
    EXPECT_EQ(device_->PreparedBytes({&w, 1}, use), m.bytes);
    EXPECT_NE(AddressOf(rows.data()).number(), m.parts[0].data.number());
    EXPECT_EQ(vector.at.number(), m.parts[0].bias.number());
    EXPECT_DEATH(Touch(m.parts[0].data), kOutside);
    device_->Free(m.memory, m.bytes);
  }
  device_->Free(vector.memory, vector.bytes);
}

TEST_F(FenceDeathTest, TheEnvironmentPutsItInFront) {
  const test::KeptVariable kept("KVC_TEST_FENCED");
  test::SetVariable("KVC_TEST_FENCED", "1");
  for (const char* name : {"auto", "cpu"}) {
    Result<std::unique_ptr<Device>> device = OpenDevice(name, 1);
    ASSERT_TRUE(device.ok());
    DeviceBuffer<uint8_t> block;
    ASSERT_TRUE(block.Allocate({device.value().get(), nullptr}, 1, "test").ok());
    EXPECT_DEATH(Touch(block.at()), kOutside);
  }
  test::SetVariable("KVC_TEST_FENCED", nullptr);
  EXPECT_EQ(nullptr, FencedCpu());
}

TEST_F(FenceTest, OperationsOfSeveralThreadsDoNotCloseItForEachOther) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] {
      DeviceBuffer<int32_t> block;
      ASSERT_TRUE(block.Allocate({device_.get(), nullptr}, 4096, "test").ok());
      std::vector<int32_t> in(4096, i), out(4096);
      for (int turn = 0; turn < 200; ++turn) {
        ASSERT_TRUE(device_->Write(nullptr, block.raw(), in.data(), block.bytes()).ok());
        ASSERT_TRUE(device_->Read(nullptr, block.at().As<const uint8_t>(), out.data(), block.bytes()).ok());
        ASSERT_EQ(in, out);
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST_F(FenceTest, WhatIsFreedIsFree) {
  const int64_t before = Fence::OfProcess().bytes();
  const int64_t page = device_->info().granule;
  DeviceBuffer<uint8_t> a, b, c;
  for (DeviceBuffer<uint8_t>* block : {&a, &b, &c})
    ASSERT_TRUE(block->Allocate({device_.get(), nullptr}, page, "test").ok());
  EXPECT_EQ(before + 3 * page, Fence::OfProcess().bytes());
  const uintptr_t hole = b.at().number();
  b.Free();
  ASSERT_TRUE(b.Allocate({device_.get(), nullptr}, page, "test").ok());
  EXPECT_EQ(hole, b.at().number());
  for (DeviceBuffer<uint8_t>* block : {&a, &b, &c}) block->Free();
  EXPECT_EQ(before, Fence::OfProcess().bytes());
}

}  // namespace
}  // namespace kvc::test
