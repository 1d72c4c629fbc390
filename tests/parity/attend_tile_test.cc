// The cached step's attention against the textbook formula in double.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/parity/cases.h"

namespace kvc::parity {
namespace {

constexpr double kTolerance = 2e-5;

std::string Name(const KernelTable* table, const AttendCase& c) {
  return std::string(table->name) + ": type " + std::to_string(static_cast<int>(c.type)) + " n " +
         std::to_string(c.n) + " g " + std::to_string(c.g) + " d " + std::to_string(c.d) + " groups of " +
         std::to_string(c.group) + " values " + std::to_string(static_cast<int>(c.value_type));
}

void ExpectAttention(const AttendData& data, bool masked, const std::string& name) {
  const AttendCase& c = data.shape;
  for (int32_t h = 0; h < c.g; ++h) {
    std::vector<double> out(static_cast<size_t>(c.d));
    double sum = 0;
    for (int32_t t = 0; t < c.n; ++t) {
      const size_t entry = static_cast<size_t>(h * c.n + t);
      if (masked && data.visible[entry] == 0) {
        ASSERT_EQ(-INFINITY, data.logits[entry]) << name;
        continue;
      }
      double z = 0;
      for (int32_t j = 0; j < c.d; ++j) {
        z += static_cast<double>(data.q[static_cast<size_t>(h * c.d + j)]) *
             data.k_values[static_cast<size_t>(t * c.d + j)];
      }
      z /= std::sqrt(static_cast<double>(c.d));
      if (c.cap > 0) z = c.cap * std::tanh(z / c.cap);
      z += t == 0 ? double{data.first_logit} : 0;
      ASSERT_NEAR(z, data.logits[entry], kTolerance) << name;
      sum += std::exp(z);
      for (int32_t j = 0; j < c.d; ++j)
        out[static_cast<size_t>(j)] += std::exp(z) * data.v_values[static_cast<size_t>(t * c.d + j)];
    }
    const size_t head = static_cast<size_t>(h);
    if (sum == 0) {
      ASSERT_EQ(-INFINITY, data.m[head]) << name;
      ASSERT_EQ(0, data.l[head]) << name;
      for (int32_t j = 0; j < c.d; ++j) ASSERT_EQ(0, data.acc[static_cast<size_t>(h * c.d + j)]) << name;
      continue;
    }
    ASSERT_NEAR(std::log(sum), data.m[head] + std::log(data.l[head]), kTolerance) << name;
    for (int32_t j = 0; j < c.d; ++j) {
      const size_t at = static_cast<size_t>(h * c.d + j);
      ASSERT_NEAR(out[static_cast<size_t>(j)] / sum, data.acc[at] / data.l[head], kTolerance)
          << name << " head " << h;
    }
  }
}

TEST(AttendTileParity, AgreesWithDoubleInPagesOf16And64AndAtOnce) {
  for (const AttendCase& c : AttendCases()) {
    AttendData data(c);
    for (const KernelTable* table : Tables()) {
      for (bool masked : {false, true}) {
        for (int32_t page : {16, 64, 1000}) {
          data.Reset();
          for (int32_t begin = 0; begin < c.n; begin += page) {
            table->attend_tile(data.Args(masked, begin, std::min(c.n, begin + page)));
          }
          ExpectAttention(data, masked,
                          Name(table, c) + (masked ? " masked" : "") + " page " + std::to_string(page));
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

// As an entry's does that stands for others.
TEST(AttendTileParity, TheFirstLogitGains) {
  for (const AttendCase& c : AttendCases()) {
    AttendData data(c);
    data.first_logit = 3.25f;
    for (const KernelTable* table : Tables()) {
      for (bool masked : {false, true}) {
        data.Reset();
        for (int32_t begin = 0; begin < c.n; begin += 64)
          table->attend_tile(data.Args(masked, begin, std::min(c.n, begin + 64)));
        ExpectAttention(data, masked, Name(table, c) + (masked ? " masked" : ""));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(AttendTileParity, AnEmptyOrHiddenTileChangesNothing) {
  for (const KernelTable* table : Tables()) {
    AttendData data({KvType::kF32, 20, 5, 24});
    AttendTileArgs a = data.Args(true, 0, 20);
    table->attend_tile(a);
    const std::vector<float> m = data.m, l = data.l, acc = data.acc;
    a.n = 0;
    table->attend_tile(a);
    a.n = 20, a.logits = nullptr;
    data.visible.assign(data.visible.size(), 0);
    table->attend_tile(a);
    EXPECT_EQ(m, data.m) << table->name;
    EXPECT_EQ(l, data.l) << table->name;
    EXPECT_EQ(acc, data.acc) << table->name;
  }
}

TEST(AttendTileParity, WhatIsAskedForMeanwhileChangesNothing) {
  for (const KernelTable* table : Tables()) {
    AttendData data({KvType::kF16, 50, 7, 72});
    table->attend_tile(data.Args(true, 0, 50));
    const std::vector<float> m = data.m, l = data.l, acc = data.acc;
    std::vector<uint8_t> next(5000);
    for (const int64_t bytes : {int64_t{1}, int64_t{64}, int64_t{5000}}) {
      data.Reset();
      AttendTileArgs a = data.Args(true, 0, 50);
      a.next_keys = {next.data(), bytes}, a.next_values = {next.data() + 5000 - bytes, bytes};
      table->attend_tile(a);
      EXPECT_EQ(m, data.m) << table->name;
      EXPECT_EQ(l, data.l) << table->name;
      EXPECT_EQ(acc, data.acc) << table->name;
    }
  }
}

TEST(AttendTileParity, AHeadsResultDoesNotDependOnTheOthers) {
  for (const KernelTable* table : Tables()) {
    AttendData all({KvType::kBf16, 50, 7, 64});
    table->attend_tile(all.Args(true, 0, 50));
    for (int32_t h = 0; h < 7; ++h) {
      AttendData one({KvType::kBf16, 50, 7, 64});
      AttendTileArgs a = one.Args(true, 0, 50);
      a.q += h * 64, a.visible += h * 50, a.logits += h * 50, a.m += h, a.l += h, a.acc += h * 64, a.g = 1;
      table->attend_tile(a);
      EXPECT_EQ(all.l[static_cast<size_t>(h)], one.l[static_cast<size_t>(h)]) << table->name;
      EXPECT_EQ(
          0, std::memcmp(&all.acc[static_cast<size_t>(h * 64)], &one.acc[static_cast<size_t>(h * 64)], 256))
          << table->name;
    }
  }
}

}  // namespace
}  // namespace kvc::parity
