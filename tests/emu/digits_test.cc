// A step's products with codes of four bits, whose activations are whole numbers (cuda/digits.h): beside sums
// in f64, where they lose nothing and where they lose what the largest of 32 columns says; and what is no
// number.
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "cuda/network.h"
#include "lib/base/half.h"
#include "tests/emu/kernel_test.h"

namespace kvc::cuda {
namespace {

constexpr int32_t kRows = 37, kVector = 32;

class DigitsTest : public KernelTest {
 protected:
  // Codes and scales (with offsets, of Q4_K) of kRows rows. Scales are powers of two.
  void MakeWeights(int32_t cols, int32_t group, bool offsets) {
    cols_ = cols, group_ = group, offsets_ = offsets;
    std::uniform_int_distribution<int> code(-8, 7), exponent(-3, 2);
    codes_.assign(static_cast<size_t>(kRows * cols), 0);
    packed_.assign(codes_.size() / 8, 0);
    for (size_t i = 0; i < codes_.size(); ++i) {
      codes_[i] = code(random_);
      packed_[i / 8] |= (static_cast<uint32_t>(codes_[i]) & 15u) << (i % 8 * 4);
    }
    scales_.clear();
    for (int32_t i = 0; i < kRows * cols / group; ++i) {
      scales_.push_back(FloatToF16(std::ldexp(1.0f, exponent(random_))));
      if (offsets) scales_.push_back(FloatToF16(static_cast<float>(code(random_))));
    }
  }
  std::vector<float> Multiply(const std::vector<float>& x) {
    std::vector<float> y(kRows, 0.0f);
    OneRow o{};
    Part& w = o.product.parts[0];
    w.data = reinterpret_cast<const uint8_t*>(packed_.data()), w.scales = scales_.data();
    w.y = y.data(), w.factor = 1, w.rows = kRows, w.group = group_;
    w.type = offsets_ ? WeightType::kQ4K : WeightType::kInt4;
    o.product.n_parts = 1, o.product.rows = kRows, o.product.cols = cols_, o.product.n = 1;
    o.product.x = x.data(), o.product.scale = 1;
    EXPECT_TRUE(FitsOneRow(o.product));
    EXPECT_EQ(cudaSuccess, GemvRow(o, *stream_));
    EXPECT_TRUE(stream_->Wait("a product").ok());
    return y;
  }
  struct Sum {
    double value = 0, most_error = 0;
  };
  // most_error: 2^-22 of the largest of 32 columns for each product with them, and what f32 rounds in sums.
  Sum Expected(const std::vector<float>& x, int32_t row) const {
    Sum sum;
    double magnitude = 0;
    for (int32_t c = 0; c < cols_; c += kVector) {
      const size_t group = static_cast<size_t>((row * cols_ + c) / group_) * (offsets_ ? 2 : 1);
      const double scale = double{F16ToFloat(scales_[group])},
                   offset = offsets_ ? double{F16ToFloat(scales_[group + 1])} : 0.0;
      double largest = 0, weights = 0, part = 0;
      for (int32_t i = c; i < c + kVector; ++i) {
        const double weight = codes_[static_cast<size_t>(row * cols_ + i)] * scale + offset;
        const double number = double{x[static_cast<size_t>(i)]};
        part += weight * number;
        weights += std::fabs(scale * 8) + std::fabs(offset);
        largest = std::max(largest, std::fabs(number));
      }
      sum.value += part, magnitude += weights * largest;
      sum.most_error += std::ldexp(weights * largest, -22);
    }
    sum.most_error += magnitude * std::ldexp(1.0, -22);
    return sum;
  }

  std::mt19937 random_{7};
  int32_t cols_ = 0, group_ = 0;
  bool offsets_ = false;
  std::vector<int> codes_;
  std::vector<uint32_t> packed_;
  std::vector<uint16_t> scales_;
};

// Whole numbers of 21 bits and less, with sums that f32 has: nothing is lost.
TEST_F(DigitsTest, WholeNumbersAreExact) {
  for (const bool offsets : {false, true}) {
    for (const int32_t cols : {32, 96, 2272, 1088}) {
      MakeWeights(cols, cols % 64 == 0 ? 64 : 32, offsets);
      std::uniform_int_distribution<int> number(-300, 300);
      std::vector<float> x(static_cast<size_t>(cols));
      for (float& a : x) a = static_cast<float>(number(random_));
      for (int32_t i = 0; i < cols && cols == 32; ++i) x[static_cast<size_t>(i)] *= 511;
      const std::vector<float> y = Multiply(x);
      for (int32_t r = 0; r < kRows; ++r)
        EXPECT_EQ(y[static_cast<size_t>(r)], Expected(x, r).value) << cols << " columns, row " << r;
    }
  }
}

// Vectors of every magnitude, numbers that are small beside their neighbours, none at all.
TEST_F(DigitsTest, LosesWhatTheLargestOf32Says) {
  double worst = 0;
  for (const bool offsets : {false, true}) {
    MakeWeights(2272, 32, offsets);
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> exponent(-30, 12), shift(0, 8);
    for (int turn = 0; turn < 4; ++turn) {
      std::vector<float> x(2272);
      int of_vector = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        if (i % kVector == 0) of_vector = exponent(random_);
        x[i] = i / kVector == 3 ? 0.0f : std::ldexp(normal(random_), of_vector - shift(random_));
      }
      const std::vector<float> y = Multiply(x);
      for (int32_t r = 0; r < kRows; ++r) {
        const Sum expected = Expected(x, r);
        const double off = std::fabs(double{y[static_cast<size_t>(r)]} - expected.value);
        worst = std::max(worst, off / expected.most_error);
        EXPECT_LE(off, expected.most_error) << "row " << r << ", turn " << turn;
      }
    }
  }
  EXPECT_GT(worst, 0) << "nothing was rounded";
}

// The least and the largest that f32 has, and what is none of its numbers.
TEST_F(DigitsTest, EndsOfF32) {
  MakeWeights(64, 32, false);
  constexpr float kMost = std::numeric_limits<float>::max(),
                  kLeast = std::numeric_limits<float>::denorm_min();
  std::vector<float> x(64, kLeast);
  for (const float y : Multiply(x)) EXPECT_LE(std::fabs(y), 1e-30f);
  for (size_t i = 0; i < x.size(); ++i) x[i] = i == 5 ? kMost / 64 : 0.0f;
  const std::vector<float> y = Multiply(x);
  for (int32_t r = 0; r < kRows; ++r) {
    const Sum expected = Expected(x, r);
    EXPECT_NEAR(y[static_cast<size_t>(r)], expected.value, expected.most_error) << r;
  }
  for (const float none : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    x.assign(64, 1.0f);
    x[40] = none;
    for (const float sum : Multiply(x)) EXPECT_TRUE(std::isnan(sum)) << none;
  }
}

}  // namespace
}  // namespace kvc::cuda
