// Rows as numbers of f16: what the three kernels that make them write is what the definition of f16 makes of
// the rows in f32, bit by bit, and a row times its factor is the row. And when products of them begin.
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
        NormParams p{x.data(),    weight.data(), centres ? bias.data() : nullptr,
                     cols,        1e-5f,         centres,
                     rows.data(), false,         1};
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

// Weights are asked for before the kernel in front has ended, but not those that it makes.
TEST_F(RowHalvesTest, WeightsThatWereJustDecodedAreWaitedFor) {
  constexpr int32_t kN = 9, kCols = 64, kOutputs = 16;
  LaunchTraits traits;
  traits.early = true;
  CudaStream stream(traits);
  ASSERT_TRUE(stream.Create(real_).ok());
  // Codes that are multiplied as they are, and of a group for which there is no product.
  constexpr int32_t kGroups[] = {32, 8};
  constexpr size_t kCodes = kOutputs * kCols;
  alignas(16) int8_t codes[2][kCodes];
  uint16_t scales[2][kCodes / 8];
  alignas(16) uint16_t x[kN * kCols], decoded[kCodes] = {};
  float factors[kN], y[2][kN * kOutputs] = {};
  for (int8_t& code : codes[0]) code = static_cast<int8_t>(random_() % 15 - 7);
  std::copy(codes[0], codes[0] + kCodes, codes[1]);
  std::fill_n(scales[0], 2 * kCodes / 8, FloatToF16(0.5f));
  for (uint16_t& v : x) v = FloatToF16(static_cast<float>(random_() % 9));
  std::fill_n(factors, kN, 1.0f);
  Product p{};
  p.n_parts = 2, p.rows = 2 * kOutputs, p.cols = kCols, p.n = kN, p.scale = 1,
  p.halves = {x, nullptr, factors};
  for (int i = 0; i < 2; ++i)
    p.parts[i] = {reinterpret_cast<const uint8_t*>(codes[i]),
                  scales[i],
                  nullptr,
                  y[i],
                  1,
                  kOutputs,
                  i * kOutputs,
                  kGroups[i],
                  WeightType::kInt8,
                  0};
  emu::GetCalls() = {};
  ASSERT_EQ(cudaSuccess, GemmDecoded(p, {nullptr, decoded, kCodes, nullptr, 0}, stream));
  ASSERT_TRUE(stream.Wait("products").ok());
  EXPECT_EQ(emu::GetCalls().launches, 3) << "a product, codes become f16, a product of those";
  EXPECT_EQ(emu::GetCalls().early, 1);
  for (int32_t at = 0; at < kN * kOutputs; ++at) {
    float sum = 0;  // whole numbers and halves
    for (int32_t c = 0; c < kCols; ++c)
      sum += F16ToFloat(x[at / kOutputs * kCols + c]) * 0.5f * codes[0][at % kOutputs * kCols + c];
    EXPECT_EQ(y[0][at], sum) << at;
    EXPECT_EQ(y[1][at], sum) << at;
  }
}

}  // namespace
}  // namespace kvc::cuda
