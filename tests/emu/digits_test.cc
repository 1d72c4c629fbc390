// A step's products with codes of eight and four bits, whose activations are whole numbers (cuda/digits.h):
// beside sums in f64, where they lose nothing and where they lose what the largest of a vector's columns
// says; and what is no
// number.
#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "cuda/network.h"
#include "lib/base/half.h"
#include "tests/emu/kernel_test.h"

namespace kvc::cuda {
namespace {

constexpr int32_t kRows = 37;
constexpr float kEps = 1e-5f;
constexpr WeightType kTypes[] = {WeightType::kInt8, WeightType::kInt4, WeightType::kQ4K};

class DigitsTest : public KernelTest {
 protected:
  // Codes and scales (with offsets, of Q4_K) of kRows rows. Scales are powers of two.
  void MakeWeights(WeightType type, int32_t cols, int32_t group) {
    type_ = type, cols_ = cols, group_ = group, offsets_ = HasOffsets(type), vector_ = VectorColumns(type);
    const int bits = type == WeightType::kInt8 ? 8 : 4, per_word = 32 / bits;
    least_ = -(1 << (bits - 1));
    std::uniform_int_distribution<int> code(least_, -least_ - 1), offset(-8, 7), exponent(-3, 2);
    codes_.assign(static_cast<size_t>(kRows * cols), 0);
    packed_.assign(codes_.size() / static_cast<size_t>(per_word), 0);
    for (size_t i = 0; i < codes_.size(); ++i) {
      codes_[i] = code(random_);
      packed_[i / static_cast<size_t>(per_word)] |= (static_cast<uint32_t>(codes_[i]) & ((1u << bits) - 1))
                                                    << (static_cast<int>(i) % per_word * bits);
    }
    scales_.clear();
    for (int32_t i = 0; i < kRows * cols / group; ++i) {
      scales_.push_back(FloatToF16(std::ldexp(1.0f, exponent(random_))));
      if (offsets_) scales_.push_back(FloatToF16(static_cast<float>(offset(random_))));
    }
  }
  // The stream of a device with so many multiprocessors.
  void MakeStream(int32_t multiprocessors) {
    LaunchTraits traits;
    traits.multiprocessors = multiprocessors;
    MakeStream(traits);
  }
  void MakeStream(const LaunchTraits& traits) {
    stream_ = std::make_unique<CudaStream>(traits);
    ASSERT_TRUE(stream_->Create(real_).ok());
  }
  // norm: the weights of one in front of it; null: there is none.
  std::vector<float> Multiply(const std::vector<float>& x, const float* norm = nullptr) {
    std::vector<float> y(kRows, 0.0f);
    OneRow o{};
    Part& w = o.product.parts[0];
    w.data = reinterpret_cast<const uint8_t*>(packed_.data()), w.scales = scales_.data();
    w.y = y.data(), w.factor = 1, w.rows = kRows, w.group = group_;
    w.type = type_;
    o.product.n_parts = 1, o.product.rows = kRows, o.product.cols = cols_, o.product.n = 1;
    o.product.x = x.data(), o.product.scale = 1, o.norm = norm, o.eps = kEps;
    EXPECT_TRUE(FitsOneRow(o.product));
    EXPECT_EQ(cudaSuccess, GemvRow(o, *stream_));
    EXPECT_TRUE(stream_->Wait("a product").ok());
    return y;
  }
  struct Sum {
    double value = 0, most_error = 0;
  };
  // most_error: 2^-22 of the largest of a vector's columns for each product with them, and what f32 rounds in
  // sums.
  Sum Expected(const std::vector<float>& x, int32_t row) const {
    Sum sum;
    double magnitude = 0;
    for (int32_t c = 0; c < cols_; c += vector_) {
      const size_t group = static_cast<size_t>((row * cols_ + c) / group_) * (offsets_ ? 2 : 1);
      const double scale = double{F16ToFloat(scales_[group])},
                   offset = offsets_ ? double{F16ToFloat(scales_[group + 1])} : 0.0;
      double largest = 0, weights = 0, part = 0;
      for (int32_t i = c; i < c + vector_; ++i) {
        const double weight = codes_[static_cast<size_t>(row * cols_ + i)] * scale + offset;
        const double number = double{x[static_cast<size_t>(i)]};
        part += weight * number;
        weights += std::fabs(scale * least_) + std::fabs(offset);
        largest = std::max(largest, std::fabs(number));
      }
      sum.value += part, magnitude += weights * largest;
      sum.most_error += std::ldexp(weights * largest, -22);
    }
    sum.most_error += magnitude * std::ldexp(1.0, -22);
    return sum;
  }

  std::mt19937 random_{7};
  WeightType type_ = WeightType::kInt4;
  int32_t cols_ = 0, group_ = 0, vector_ = 0;
  int least_ = 0;
  bool offsets_ = false;
  std::vector<int> codes_;
  std::vector<uint32_t> packed_;
  std::vector<uint16_t> scales_;
};

// Whole numbers of 21 bits and less, with sums that f32 has: nothing is lost.
TEST_F(DigitsTest, WholeNumbersAreExact) {
  for (const WeightType type : kTypes) {
    for (const int32_t cols : {32, 96, 2272, 1088}) {
      MakeWeights(type, cols, cols % 64 == 0 ? 64 : 32);
      const int most = type == WeightType::kInt8 ? 7 : 100;
      std::uniform_int_distribution<int> number(-most, most);
      std::vector<float> x(static_cast<size_t>(cols));
      for (float& a : x) a = static_cast<float>(number(random_));
      for (int32_t i = 0; i < cols && cols == 32 && type == WeightType::kInt4; ++i)
        x[static_cast<size_t>(i)] *= 511;
      const std::vector<float> y = Multiply(x);
      for (int32_t r = 0; r < kRows; ++r)
        EXPECT_EQ(y[static_cast<size_t>(r)], Expected(x, r).value) << cols << " columns, row " << r;
    }
  }
}

// Vectors of every magnitude, numbers that are small beside their neighbours, none at all.
TEST_F(DigitsTest, LosesWhatTheLargestOfAVectorSays) {
  double worst = 0;
  for (const WeightType type : kTypes) {
    MakeWeights(type, 2272, 32);
    std::normal_distribution<float> normal;
    std::uniform_int_distribution<int> exponent(-30, 12), shift(0, 8);
    for (int turn = 0; turn < 4; ++turn) {
      std::vector<float> x(2272);
      int of_vector = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        if (i % static_cast<size_t>(vector_) == 0) of_vector = exponent(random_);
        x[i] = i / static_cast<size_t>(vector_) == 3
                   ? 0.0f
                   : std::ldexp(normal(random_), of_vector - shift(random_));
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
  for (const WeightType type : kTypes) {
    MakeWeights(type, 64, 32);
    constexpr float kMost = std::numeric_limits<float>::max(),
                    kLeast = std::numeric_limits<float>::denorm_min();
    std::vector<float> x(64, kLeast);
    for (const float y : Multiply(x)) EXPECT_LE(std::fabs(y), 1e-30f);
    for (size_t i = 0; i < x.size(); ++i) x[i] = i == 5 ? kMost / 4096 : 0.0f;
    const std::vector<float> y = Multiply(x);
    for (int32_t r = 0; r < kRows; ++r) {
      const Sum expected = Expected(x, r);
      EXPECT_NEAR(y[static_cast<size_t>(r)], expected.value, expected.most_error) << r;
    }
    for (const float none :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      x.assign(64, 1.0f);
      x[40] = none;
      for (const float sum : Multiply(x)) EXPECT_TRUE(std::isnan(sum)) << none;
    }
  }
}

// Which warp of which block has a row does not show.
TEST_F(DigitsTest, TheSameBitsOnDevicesOfEverySize) {
  for (const WeightType type : kTypes) {
    MakeWeights(type, 2272, 32);
    std::normal_distribution<float> normal;
    std::vector<float> x(2272);
    for (float& a : x) a = normal(random_);
    const std::vector<float> expected = Multiply(x);
    for (const int32_t multiprocessors : {2, 3, 132}) {
      MakeStream(multiprocessors);
      EXPECT_EQ(Multiply(x), expected) << multiprocessors;
    }
  }
}

// Before it waits a product asks for weights that it will read, and for nothing else: no vector twice, none
// that it fetches then, all others where it may ask for as many; and it gives the same.
TEST_F(DigitsTest, AsksForWeightsAheadOfTime) {
  if (emu::UsualCapability() < 90) GTEST_SKIP() << "no kernel begins early";
  for (const WeightType type : kTypes) {
    MakeWeights(type, 4640, 32);
    const std::vector<float> x(4640, 1.0f), expected = Multiply(x);
    const int32_t vectors = cols_ / vector_, rows = type == WeightType::kInt8 ? 2 : 4,
                  fetched = 8 / rows * 32;
    for (const int32_t kib : {0, 1, 256}) {
      LaunchTraits traits;
      traits.early = true, traits.multiprocessors = 1, traits.tuning.weights_ahead = kib;
      MakeStream(traits);
      std::vector<int> asked(static_cast<size_t>(kRows * vectors), 0);
      int64_t of_scales = 0, n_asked = 0;
      emu::GetOptions().on_prefetch = [&](const void* at, int64_t bytes) {
        const auto *from = static_cast<const uint8_t*>(at),
                   *codes = reinterpret_cast<const uint8_t*>(packed_.data()),
                   *scales = reinterpret_cast<const uint8_t*>(scales_.data());
        const bool of_codes = from >= codes && from + bytes <= codes + 4 * packed_.size();
        if (!of_codes) {
          EXPECT_TRUE(from >= scales && from + bytes <= scales + 2 * scales_.size()) << "neither";
          of_scales += bytes;
          return;
        }
        for (int64_t i = (from - codes) / 16; i < (from - codes + bytes) / 16; ++i)
          ++asked[static_cast<size_t>(i)], ++n_asked;
      };
      EXPECT_EQ(Multiply(x), expected);
      emu::GetOptions().on_prefetch = nullptr;
      EXPECT_LE(16 * n_asked, kib * 1024);
      EXPECT_EQ(n_asked > 0, kib > 0);
      EXPECT_TRUE(kib == 1 || (of_scales > 0) == (kib > 0));  // a few columns have no 16 bytes of scales
      const int32_t first = rows * WarpsOfRows((kRows + rows - 1) / rows, 1, rows == 2 ? 12 : 10);
      for (int32_t i = 0; i < kRows * vectors; ++i) {
        const bool is_fetched = i / vectors < first && i % vectors < fetched;
        const int n = asked[static_cast<size_t>(i)];
        ASSERT_TRUE(kib < 256 || is_fetched ? n <= (is_fetched ? 0 : 1) : n == 1)
            << "row " << i / vectors << ", vector " << i % vectors << ": " << n << " times of " << kib
            << " KiB";
      }
    }
  }
}

// The norm in front of a product is that of its own kernel, where there is room for x and the norm's weights
// in shared memory, and where there is none.
TEST_F(DigitsTest, TheNormOfRowsOfEveryLength) {
  for (const WeightType type : kTypes) {
    for (const int32_t cols : {64, 2272, 8192, 8320}) {
      MakeWeights(type, cols, 32);
      std::normal_distribution<float> normal;
      const auto n = static_cast<size_t>(cols);
      std::vector<float> x(n), weight(n), y(n);
      for (size_t i = 0; i < n; ++i) x[i] = normal(random_), weight[i] = normal(random_);
      const NormParams norm{x.data(), weight.data(), nullptr, cols, kEps, false, y.data(), false, 1};
      ASSERT_EQ(cudaSuccess, NormRows(norm, 1, *stream_));
      ASSERT_TRUE(stream_->Wait("a norm").ok());
      EXPECT_EQ(Multiply(x, weight.data()), Multiply(y)) << cols;
    }
  }
}

// What the fullest block has to do in each round of n_units groups of rows, or of what seven warps have on
// their way: units are dealt out one by one, as the kernel takes them.
int32_t TimeOfRounds(int32_t n_units, int32_t blocks, int32_t warps) {
  int32_t time = 0;
  for (int32_t first = 0; first < n_units; first += blocks * warps) {
    std::vector<int32_t> of_block(static_cast<size_t>(blocks), 0);
    for (int32_t unit = first; unit < std::min(n_units, first + blocks * warps); ++unit)
      ++of_block[static_cast<size_t>(unit % blocks)];
    time += std::max(*std::max_element(of_block.begin(), of_block.end()), 7);
  }
  return time;
}

// Of outputs and down, q, k and v, and gate and up of an 8B and a 1B model: no last round leaves an H200, an
// A100 or an Orin waiting for memory longer than docs/cuda.md says.
TEST(Rounds, LeaveNoMemoryIdle) {
  const struct {
    int32_t n_units, most;
    int32_t times[3];  // on 132, 108 and 16 multiprocessors
  } cases[] = {{2048, 16, {16, 19, 128}}, {3072, 16, {24, 29, 192}}, {14336, 14, {109, 133, 896}},
               {2048, 12, {16, 19, 128}}, {3072, 12, {24, 29, 192}}, {14336, 12, {109, 133, 896}},
               {1024, 10, {8, 10, 67}},   {1536, 10, {16, 16, 97}},  {7168, 10, {57, 67, 448}},
               {1024, 16, {8, 10, 64}},   {1536, 16, {12, 15, 96}},  {8192, 14, {63, 77, 512}},
               {1024, 12, {8, 10, 64}},   {1536, 12, {12, 16, 96}},  {8192, 12, {63, 76, 512}}};
  for (const auto& c : cases) {
    for (int i = 0; i < 3; ++i) {
      const int32_t blocks = i == 0 ? 132 : i == 1 ? 108 : 16, warps = WarpsOfRows(c.n_units, blocks, c.most);
      EXPECT_LE(warps, c.most);
      EXPECT_GT(warps, 8) << "36 KiB on their way";
      EXPECT_EQ(TimeOfRounds(c.n_units, blocks, warps), c.times[i])
          << c.n_units << " units, " << blocks << " blocks, " << c.most << " warps at most";
    }
  }
}

}  // namespace
}  // namespace kvc::cuda
