// Rows as numbers of f16: what the three kernels that make them write is what the definition of f16 makes of
// the rows in f32, bit by bit, and a row times its factor is the row.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "cuda/network.h"
#include "lib/base/half.h"
#include "tests/emu/kernel_test.h"

namespace kvc::cuda {
namespace {

constexpr int32_t kRows = 7;
// No vectors, whole ones, some left over, more numbers than threads; the longest that shared memory holds.
constexpr int32_t kColumns[] = {1, 38, 96, 100, 4104, 24576};

struct Halves {
  std::vector<uint16_t> high, low;
  std::vector<float> factors;
  bool operator==(const Halves& o) const { return high == o.high && low == o.low && factors == o.factors; }
};

class RowHalvesTest : public KernelTest {
 protected:
  // Every row of another magnitude.
  static constexpr int kExponents[kRows] = {0, 14, 15, 60, -1, -4, -60};
  std::vector<float> Random(int32_t cols, bool of_magnitudes = false) {
    std::normal_distribution<float> normal;
    std::vector<float> x(static_cast<size_t>(kRows) * static_cast<size_t>(cols));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = std::ldexp(normal(random_), of_magnitudes ? kExponents[i / static_cast<size_t>(cols)] : 0);
    return x;
  }
  template <typename Launch>
  Halves Run(int32_t cols, bool low, const Launch& launch) {
    const size_t n = static_cast<size_t>(kRows) * static_cast<size_t>(cols);
    Halves out{std::vector<uint16_t>(n + 8, 0x7e00), std::vector<uint16_t>(low ? n + 8 : 0, 0x7e00),
               std::vector<float>(kRows)};
    const auto aligned = [](std::vector<uint16_t>& v) {  // a vector's memory is that of malloc
      EXPECT_EQ(reinterpret_cast<uintptr_t>(v.data()) % 16, 0u);
      return v.data();
    };
    const RowHalves y{aligned(out.high), low ? aligned(out.low) : nullptr, out.factors.data()};
    EXPECT_EQ(cudaSuccess, launch(y));
    EXPECT_TRUE(stream_->Wait("a kernel").ok());
    for (size_t i = n; i < out.high.size(); ++i) EXPECT_EQ(out.high[i], 0x7e00) << "behind the last row";
    return out;
  }
  // What the definition says of rows in f32: the largest number decides what a row is taken times.
  static Halves Expected(const std::vector<float>& x, int32_t cols, bool low) {
    Halves out{std::vector<uint16_t>(x.size() + 8, 0x7e00),
               std::vector<uint16_t>(low ? x.size() + 8 : 0, 0x7e00),
               {}};
    for (size_t row = 0; row < kRows; ++row) {
      const size_t width = static_cast<size_t>(cols);
      float largest = 0;
      for (size_t i = row * width; i < (row + 1) * width; ++i) largest = std::max(largest, std::fabs(x[i]));
      int exponent = 0;
      std::frexp(largest, &exponent);  // largest < 2^exponent
      const bool inside = largest == 0 || (largest >= 0.25f && largest < 32768);
      const int shift = inside ? 0 : std::min(15 - exponent, 80);
      out.factors.push_back(std::ldexp(1.0f, -shift));
      for (size_t i = row * width; i < (row + 1) * width; ++i) {
        const float v = std::ldexp(x[i], shift);
        out.high[i] = FloatToF16(v);
        if (low) out.low[i] = FloatToF16(v - F16ToFloat(out.high[i]));
      }
    }
    return out;
  }
  std::mt19937 random_{17};
};

TEST_F(RowHalvesTest, OfActivations) {
  for (const int32_t cols : kColumns) {
    for (const bool low : {false, true}) {
      SCOPED_TRACE(testing::Message() << cols << " columns, " << low);
      const std::vector<float> x = Random(cols, true);
      const Halves got =
          Run(cols, low, [&](const RowHalves& y) { return RoundRows(x.data(), kRows, cols, y, *stream_); });
      EXPECT_TRUE(got == Expected(x, cols, low));
      for (size_t i = 0; low && i < x.size(); ++i) {
        const size_t row = i / static_cast<size_t>(cols);
        const double sum =
            static_cast<double>(F16ToFloat(got.high[i])) + static_cast<double>(F16ToFloat(got.low[i]));
        EXPECT_LE(std::fabs(sum * static_cast<double>(got.factors[row]) - static_cast<double>(x[i])),
                  std::ldexp(8.0, kExponents[row] - 23));  // of a row's largest
      }
    }
  }
}

TEST_F(RowHalvesTest, OfNorms) {
  for (const int32_t cols : kColumns) {
    for (const bool low : {false, true}) {
      for (const bool centres : {false, true}) {
        SCOPED_TRACE(testing::Message() << cols << " columns, " << low << centres);
        const std::vector<float> x = Random(cols, true), bias = Random(cols);
        std::vector<float> weight = Random(cols), rows(x.size());
        if (cols == 96) weight[5] = 1e6f;  // f16 has no such number
        NormParams p{x.data(),
                     weight.data(),
                     centres ? bias.data() : nullptr,
                     cols,
                     1,
                     1e-5f,
                     centres,
                     rows.data(),
                     false,
                     1};
        ASSERT_EQ(cudaSuccess, NormRows(p, kRows, *stream_));
        ASSERT_TRUE(stream_->Wait("a kernel").ok());
        p.y = nullptr;
        const Halves got =
            Run(cols, low, [&](const RowHalves& y) { return NormHalves(p, kRows, y, *stream_); });
        EXPECT_TRUE(got == Expected(rows, cols, low));
        EXPECT_EQ(cols == 96,
                  std::any_of(got.factors.begin(), got.factors.end(), [](float f) { return f > 1; }));
      }
    }
  }
}

TEST_F(RowHalvesTest, OfActivationsOfTwo) {
  for (const int32_t cols : kColumns) {
    for (const bool low : {false, true}) {
      for (const Activation kind : {Activation::kSilu, Activation::kGeluTanh, Activation::kClampedSwiglu}) {
        SCOPED_TRACE(testing::Message() << cols << " columns, " << low << static_cast<int>(kind));
        std::vector<float> gate = Random(cols, true);
        const std::vector<float> up = Random(cols, true), before = gate;
        const ActivateParams p{gate.data(), up.data(), static_cast<int64_t>(gate.size()), {kind, 1.7f, 7}};
        const Halves got =
            Run(cols, low, [&](const RowHalves& y) { return ActivateHalves(p, cols, y, *stream_); });
        EXPECT_EQ(gate, before);
        ASSERT_EQ(cudaSuccess, Activate(p, *stream_));
        ASSERT_TRUE(stream_->Wait("a kernel").ok());
        EXPECT_TRUE(got == Expected(gate, cols, low));
      }
    }
  }
}

}  // namespace
}  // namespace kvc::cuda
