// Norm, rotation, activation, sums and softmax against double; tails of every length; nothing beyond the end
// touched.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/parity/cases.h"

namespace kvc::parity {
namespace {

const int32_t kLengths[] = {1,  2,  3,  4,  5,  7,  8,   9,   15,  16,   17,
                            31, 32, 33, 63, 64, 65, 100, 128, 288, 1000, 2048};
constexpr float kGuard = 77;

template <typename F>
void ForEach(F&& f) {
  for (const KernelTable* table : Tables()) {
    for (int32_t n : kLengths) {
      f(*table, n, std::string(table->name) + " n " + std::to_string(n));
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

void ExpectEach(const std::vector<double>& want, const std::vector<float>& got, double relative,
                const std::string& name) {
  ASSERT_EQ(want.size() + 1, got.size());
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(want[i], got[i], relative * std::fabs(want[i]) + 1e-37) << name << " at " << i;
  }
  ASSERT_EQ(kGuard, got.back()) << name;
}

std::vector<float> Guarded(std::vector<float> v) {
  v.push_back(kGuard);
  return v;
}

TEST(ElementwiseParity, RmsNorm) {
  ForEach([](const KernelTable& t, int32_t n, const std::string& name) {
    Random random(static_cast<uint64_t>(n));
    const std::vector<float> x = random.Floats(n, -3, 3), weight = random.Floats(n, 0.5f, 2);
    double square = 0;
    for (float v : x) square += static_cast<double>(v) * v;
    std::vector<double> want;
    for (size_t i = 0; i < x.size(); ++i) want.push_back(x[i] / std::sqrt(square / n + 1e-5f) * weight[i]);
    std::vector<float> y(static_cast<size_t>(n) + 1, kGuard), in_place = Guarded(x);
    t.rms_norm(x.data(), weight.data(), 1e-5f, n, y.data());
    ExpectEach(want, y, 4e-6, name);
    t.rms_norm(in_place.data(), weight.data(), 1e-5f, n, in_place.data());
    EXPECT_EQ(y, in_place) << name;
  });
}

// Rows far from zero too: the mean is taken off before anything is squared.
TEST(ElementwiseParity, LayerNorm) {
  for (const float middle : {0.0f, 40.0f}) {
    ForEach([middle](const KernelTable& t, int32_t n, const std::string& name) {
      Random random(static_cast<uint64_t>(n));
      const std::vector<float> x = random.Floats(n, middle - 3, middle + 3),
                               weight = random.Floats(n, 0.5f, 2), bias = random.Floats(n);
      double mean = 0, square = 0;
      for (float v : x) mean += static_cast<double>(v) / n;
      for (float v : x) square += (v - mean) * (v - mean);
      const double scale = 1 / std::sqrt(square / n + 1e-5f);
      for (const float* b : {static_cast<const float*>(nullptr), bias.data()}) {
        std::vector<float> y(static_cast<size_t>(n) + 1, kGuard), in_place = Guarded(x);
        t.layer_norm(x.data(), weight.data(), b, 1e-5f, n, y.data());
        for (size_t i = 0; i < x.size(); ++i) {
          const double want = (x[i] - mean) * scale * weight[i] + (b == nullptr ? 0 : b[i]);
          ASSERT_NEAR(want, y[i], 4e-5) << name << " at " << i;
        }
        ASSERT_EQ(kGuard, y.back()) << name;
        t.layer_norm(in_place.data(), weight.data(), b, 1e-5f, n, in_place.data());
        EXPECT_EQ(y, in_place) << name;
      }
    });
  }
}

TEST(ElementwiseParity, Rope) {
  for (const KernelTable* table : Tables()) {
    for (int32_t d = 8; d <= 256; d += 8) {
      for (RopePairing pairing : {RopePairing::kHalf, RopePairing::kInterleaved}) {
        Random random(static_cast<uint64_t>(d));
        const std::vector<float> x = random.Floats(d);
        std::vector<float> y = Guarded(x), cos, sin;
        for (int32_t j = 0; j < d / 2; ++j)
          cos.push_back(std::cos(0.3f * static_cast<float>(j))),
              sin.push_back(std::sin(0.3f * static_cast<float>(j)));
        table->rope(y.data(), cos.data(), sin.data(), d, pairing);
        for (int32_t j = 0; j < d / 2; ++j) {
          const size_t a = static_cast<size_t>(pairing == RopePairing::kHalf ? j : 2 * j);
          const size_t b = static_cast<size_t>(pairing == RopePairing::kHalf ? j + d / 2 : 2 * j + 1);
          const double c = cos[static_cast<size_t>(j)], s = sin[static_cast<size_t>(j)];
          ASSERT_NEAR(x[a] * c - x[b] * s, y[a], 3e-7) << table->name << " d " << d;
          ASSERT_NEAR(x[b] * c + x[a] * s, y[b], 3e-7) << table->name << " d " << d;
        }
        ASSERT_EQ(kGuard, y.back());
      }
    }
  }
}

// Within a few roundings of f32 from zero to where it is flat; what is not seen stays so.
TEST(ElementwiseParity, SoftCap) {
  for (const float cap : {1.0f, 30.0f, 50.0f}) {
    ForEach([cap](const KernelTable& t, int32_t n, const std::string& name) {
      Random random(static_cast<uint64_t>(n));
      std::vector<float> x = random.Floats(n, -1, 1);
      for (int32_t i = 0; i < n; ++i)
        x[static_cast<size_t>(i)] *= cap * std::exp2(static_cast<float>(i % 24 - 18));
      std::vector<double> want;
      for (float v : x) want.push_back(cap * std::tanh(static_cast<double>(v) / cap));
      x = Guarded(x);
      t.soft_cap(cap, n, x.data());
      ExpectEach(want, x, 6e-7, name);
    });
  }
  for (const KernelTable* table : Tables()) {
    std::vector<float> x = {-INFINITY, 0, -15, 15, 14.999999f, 1e30f, -1e30f, 5};
    table->soft_cap(50, 8, x.data());
    // The definition caps what it is given; the fast kernels are given what is hidden too.
    EXPECT_TRUE(x[0] == -INFINITY || x[0] == -50) << table->name;
    EXPECT_EQ(x[1], 0) << table->name;
    EXPECT_NEAR(x[3], 50 * std::tanh(0.3), 1e-5) << table->name;
    EXPECT_FLOAT_EQ(x[2], -x[3]) << table->name;
    EXPECT_NEAR(x[4], x[3], 1e-5) << table->name;
    EXPECT_FLOAT_EQ(x[5], 50) << table->name;
    EXPECT_FLOAT_EQ(x[6], -50) << table->name;
  }
}

TEST(ElementwiseParity, SiluMul) {
  ForEach([](const KernelTable& t, int32_t n, const std::string& name) {
    Random random(static_cast<uint64_t>(n));
    std::vector<float> gate = random.Floats(n, -20, 20);
    const std::vector<float> up = random.Floats(n);
    std::vector<double> want;
    for (size_t i = 0; i < gate.size(); ++i)
      want.push_back(gate[i] / (1 + std::exp(-static_cast<double>(gate[i]))) * up[i]);
    gate = Guarded(gate);
    t.silu_mul(gate.data(), up.data(), n, gate.data());
    ExpectEach(want, gate, 6e-7, name);
  });
  for (const KernelTable* table : Tables()) {
    const float gate[] = {-1e30f, -200, -89, 0, 89, 1e30f}, up[] = {1, 1, 1, 1, 1, 1};
    float y[6];
    table->silu_mul(gate, up, 6, y);
    for (int i = 0; i < 3; ++i) EXPECT_LE(std::fabs(y[i]), 1e-30f) << table->name << " " << gate[i];
    EXPECT_EQ(0, y[3]);
    EXPECT_EQ(89, y[4]);
    EXPECT_EQ(1e30f, y[5]);
  }
}

// Gates and ups on both sides of the limit, and far beyond it.
TEST(ElementwiseParity, ClampedMul) {
  const float kGain = 1.702f, kLimit = 7;
  const auto want = [&](float gate, float up) {
    const double limit = double{kLimit}, g = std::min(double{gate}, limit),
                 u = std::min(std::max(double{up}, -limit), limit);
    return (u + 1) * g / (1 + std::exp(-static_cast<double>(kGain) * g));
  };
  ForEach([&](const KernelTable& t, int32_t n, const std::string& name) {
    Random random(static_cast<uint64_t>(n));
    std::vector<float> gate = random.Floats(n, -20, 20);
    const std::vector<float> up = random.Floats(n, -20, 20);
    std::vector<double> wanted;
    for (size_t i = 0; i < gate.size(); ++i) wanted.push_back(want(gate[i], up[i]));
    gate = Guarded(gate);
    t.clamped_mul(gate.data(), up.data(), kGain, kLimit, n, gate.data());
    ExpectEach(wanted, gate, 1e-5, name);
  });
  for (const KernelTable* table : Tables()) {
    const float gate[] = {-1e30f, -200, 0, 7, 8, 1e30f}, up[] = {1, 1, 1, 7, 1e30f, -1e30f};
    float y[6];
    table->clamped_mul(gate, up, kGain, kLimit, 6, y);
    for (int i = 0; i < 2; ++i) EXPECT_LE(std::fabs(y[i]), 1e-30f) << table->name << " " << gate[i];
    EXPECT_EQ(y[2], 0) << table->name;
    EXPECT_NEAR(y[3], want(7, 7), 1e-4) << table->name;
    EXPECT_EQ(y[4], y[3]) << table->name;
    EXPECT_NEAR(y[5], want(7, -7), 1e-4) << table->name;
  }
}

TEST(ElementwiseParity, DotAxpyAdd) {
  ForEach([](const KernelTable& t, int32_t n, const std::string& name) {
    Random random(static_cast<uint64_t>(n));
    const std::vector<float> a = random.Floats(n), b = random.Floats(n);
    double dot = 0, size = 0;
    std::vector<double> axpy, sum;
    for (size_t i = 0; i < a.size(); ++i) {
      const double product = static_cast<double>(a[i]) * b[i];
      dot += product, size += std::fabs(product);
      axpy.push_back(b[i] + 1.5 * a[i]);
      sum.push_back(static_cast<double>(b[i]) + a[i]);
    }
    ASSERT_NEAR(dot, t.dot(a.data(), b.data(), n), size * 1e-6) << name;
    std::vector<float> y = Guarded(b);
    t.axpy(1.5f, a.data(), n, y.data());
    for (size_t i = 0; i < axpy.size(); ++i) ASSERT_NEAR(axpy[i], y[i], 4e-7) << name;
    ASSERT_EQ(kGuard, y.back()) << name;
    y = Guarded(b);
    t.add(a.data(), n, y.data());
    for (size_t i = 0; i < sum.size(); ++i) ASSERT_EQ(static_cast<float>(sum[i]), y[i]) << name;
    ASSERT_EQ(kGuard, y.back()) << name;
  });
}

TEST(ElementwiseParity, Softmax) {
  ForEach([](const KernelTable& t, int32_t n, const std::string& name) {
    Random random(static_cast<uint64_t>(n));
    std::vector<float> x = random.Floats(n, -30, 30);
    if (n > 4) x[static_cast<size_t>(n) - 2] = -INFINITY;
    std::vector<double> want;
    double sum = 0;
    for (float v : x) want.push_back(std::exp(static_cast<double>(v))), sum += want.back();
    for (double& v : want) v /= sum;
    x = Guarded(x);
    t.softmax(x.data(), n);
    ExpectEach(want, x, 5e-6, name);
    std::vector<float> hidden = Guarded(std::vector<float>(static_cast<size_t>(n), -INFINITY));
    t.softmax(hidden.data(), n);
    ExpectEach(std::vector<double>(static_cast<size_t>(n)), hidden, 0, name);
  });
}

TEST(ElementwiseParity, Weights) {
  ForEach([](const KernelTable& t, int32_t n, const std::string& name) {
    Random random(static_cast<uint64_t>(n));
    std::vector<float> x = random.Floats(n, -30, 3);
    if (n > 4) x[static_cast<size_t>(n) - 2] = -INFINITY;
    std::vector<double> want;
    for (float v : x) want.push_back(std::exp(static_cast<double>(v) - 3) * 0.25);
    x = Guarded(x);
    t.weights(3, 0.25f, n, x.data());
    ExpectEach(want, x, 5e-6, name);
  });
}

TEST(ElementwiseParity, Raise) {
  ForEach([](const KernelTable& t, int32_t n, const std::string& name) {
    Random random(static_cast<uint64_t>(n) + 1);
    std::vector<float> x = random.Floats(n, -3, 3), y = random.Floats(n, -3, 3);
    if (n > 4) x[1] = y[2] = x[3] = y[3] = -INFINITY;
    std::vector<float> want;
    for (size_t i = 0; i < x.size(); ++i) want.push_back(std::max(y[i], x[i] - 0.75f));
    y = Guarded(y);
    t.raise(x.data(), 0.75f, n, y.data());
    EXPECT_EQ(Guarded(want), y) << name;
  });
}

TEST(ElementwiseParity, AddSquares) {
  ForEach([](const KernelTable& t, int32_t n, const std::string& name) {
    Random random(static_cast<uint64_t>(n) + 2);
    std::vector<float> z = random.Floats(n, -20, 2), y = random.Floats(n, 0, 3);
    if (n > 4) z[static_cast<size_t>(n) - 2] = -INFINITY;
    std::vector<double> want;
    for (size_t i = 0; i < z.size(); ++i)
      want.push_back(static_cast<double>(y[i]) + std::exp(2 * (static_cast<double>(z[i]) - 2.5)));
    y = Guarded(y);
    t.add_squares(z.data(), 2.5f, n, y.data());
    ExpectEach(want, y, 5e-6, name);
  });
}

TEST(ElementwiseParity, LargestNumber) {
  ForEach([](const KernelTable& t, int32_t n, const std::string& name) {
    Random random(static_cast<uint64_t>(n) + 3);
    std::vector<float> x = random.Floats(n, -9, -1);
    EXPECT_EQ(t.largest_number(x.data(), n), *std::max_element(x.begin(), x.end())) << name;
    for (const size_t at : {size_t{0}, x.size() / 2, x.size() - 1}) {
      std::vector<float> one = x;
      one[at] = -0.5f;
      EXPECT_EQ(t.largest_number(one.data(), n), -0.5f) << name << ", " << at;
      for (const float bad : {INFINITY, -INFINITY, NAN}) {
        one[at] = bad;
        EXPECT_TRUE(std::isnan(t.largest_number(one.data(), n))) << name << ", " << at << ": " << bad;
      }
    }
  });
}

TEST(ElementwiseParity, ABadNumberIsNotHidden) {
  for (const KernelTable* table : Tables()) {
    std::vector<float> x(40, 1), weight(40, 1);
    x[33] = NAN;
    EXPECT_TRUE(std::isnan(table->dot(x.data(), weight.data(), 40))) << table->name;
    std::vector<float> y(40);
    table->rms_norm(x.data(), weight.data(), 1e-5f, 40, y.data());
    EXPECT_TRUE(std::isnan(y[0])) << table->name;
    table->layer_norm(x.data(), weight.data(), nullptr, 1e-5f, 40, y.data());
    EXPECT_TRUE(std::isnan(y[0])) << table->name;
    table->silu_mul(x.data(), weight.data(), 40, y.data());
    EXPECT_TRUE(std::isnan(y[33])) << table->name;
    table->softmax(x.data(), 40);
    EXPECT_TRUE(std::isnan(x[0])) << table->name;
    x[33] = NAN;
    table->weights(0, 1, 40, x.data());
    EXPECT_TRUE(std::isnan(x[33])) << table->name;
  }
}

}  // namespace
}  // namespace kvc::parity
