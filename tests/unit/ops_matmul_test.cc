// The driver that spreads a matrix product over threads.
#include <gtest/gtest.h>

#include "lib/ops/cpu/matmul.h"
#include "tests/parity/cases.h"

namespace kvc {
namespace {

struct Product {
  Product(const parity::MatMulCase& c, int threads, const KernelTable* table, bool with_bias) : data(c) {
    const auto pool = std::move(ThreadPool::Create(threads).value());
    std::vector<uint8_t> scratch(static_cast<size_t>(MatMulScratchBytes(c.n, c.cols)) + 128, 0xee);
    uint8_t* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
    MatMul({table, pool.get()}, data.weight(), with_bias ? data.args.bias : nullptr, data.args.x,
           data.args.x_stride, c.n, data.y.data(), c.rows, aligned);
    for (int i = 0; i < 32; ++i) EXPECT_EQ(0xee, aligned[MatMulScratchBytes(c.n, c.cols) + i]);
  }
  parity::MatMulData data;
};

TEST(MatMul, TheSameBitsOnAnyNumberOfThreads) {
  for (const parity::MatMulCase& c : parity::MatMulCases()) {
    if (c.cols < 96 && c.n > 3) continue;
    for (const KernelTable* table : parity::Tables()) {
      if (std::string(table->name) == "ref" && c.n > 49) continue;
      const Product one(c, 1, table, true);
      for (int threads = 2; threads <= 4; ++threads) {
        const Product more(c, threads, table, true);
        ASSERT_EQ(0, std::memcmp(one.data.y.data(), more.data.y.data(), one.data.y.size() * 4))
            << table->name << ": " << one.data.Name();
      }
    }
  }
}

TEST(MatMul, FloatWeightsGiveTheKernelsBitsOverTokenTiles) {
  const parity::MatMulCase c{WeightType::kBf16, 300, 130, 0, 300};
  for (const KernelTable* table : parity::Tables()) {
    const Product whole(c, 3, table, true);
    parity::MatMulData direct(c);
    table->matmul(direct.args);
    ASSERT_EQ(0, std::memcmp(whole.data.y.data(), direct.y.data(), direct.y.size() * 4)) << table->name;
  }
}

TEST(MatMul, CodedWeightsRoundActivationsByHalfAStep) {
  for (WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
    for (int32_t n : {1, 200}) {
      const parity::MatMulCase c{type, 70, 256, 64, n};
      const Product product(c, 2, &BestKernels(), false);
      const parity::MatMulData& data = product.data;
      for (int32_t t = 0; t < n; t += 37) {
        for (int32_t r = 0; r < c.rows; ++r) {
          double sum = 0, bound = 1e-5;
          for (int32_t k = 0; k < c.cols; ++k) {
            sum += data.args.x[t * c.cols + k] * data.WeightValue(r, k);
            bound += std::fabs(data.WeightValue(r, k)) * 0.5 / 127;  // |x| is below 1
          }
          ASSERT_NEAR(sum, data.y[static_cast<size_t>(t * c.rows + r)], bound);
        }
      }
    }
  }
}

TEST(MatMul, NothingToDo) {
  const parity::MatMulData data({WeightType::kF32, 4, 8, 0, 1});
  const auto pool = std::move(ThreadPool::Create(1).value());
  float y = 3;
  MatMul({&BestKernels(), pool.get()}, data.weight(), nullptr, data.args.x, 8, 0, &y, 4, nullptr);
  EXPECT_EQ(3, y);
}

}  // namespace
}  // namespace kvc
