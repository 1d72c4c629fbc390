// The driver that spreads a matrix product over threads.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>

#include "lib/ops/cpu/matmul.h"
#include "lib/ops/cpu/raw.h"
#include "tests/parity/cases.h"

namespace kvc {
namespace {

struct Product {
  Product(const parity::MatMulCase& c, int threads, const KernelTable* table, bool with_bias,
          bool in_panels = false)
      : data(c) {
    const auto pool = std::move(ThreadPool::Create(threads).value());
    const size_t bytes = static_cast<size_t>(MatMulScratchBytes(*table, c.n, c.cols));
    std::vector<uint8_t> scratch(bytes + 128, 0xee);
    uint8_t* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
    std::unique_ptr<parity::PackedWeight> packed;  // not every shape has panels
    if (in_panels) packed = std::make_unique<parity::PackedWeight>(data.weight());
    MatMul({table, pool.get()}, in_panels ? packed->weight : data.weight(),
           with_bias ? data.args.bias : nullptr, data.args.x, data.args.x_stride, c.n, data.y.data(), c.rows,
           aligned);
    for (size_t i = 0; i < 32; ++i) EXPECT_EQ(0xee, aligned[bytes + i]);
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

// In panels the driver rounds rows for kernels that multiply pairs of bf16; an odd row leaves a column over.
TEST(MatMul, FloatWeightsGiveTheKernelsBitsOverTokenTiles) {
  for (int32_t cols : {130, 131}) {
    const parity::MatMulCase c{WeightType::kBf16, 300, cols, 0, 300};
    for (const KernelTable* table : parity::Tables()) {
      for (bool in_panels : {false, true}) {
        const Product whole(c, 3, table, true, in_panels);
        parity::MatMulData direct(c);
        const parity::PackedWeight packed(direct.weight());
        if (in_panels) direct.args.w = &packed.weight;
        (in_panels ? table->matmul_panels : table->matmul)(direct.args);
        ASSERT_EQ(0, std::memcmp(whole.data.y.data(), direct.y.data(), direct.y.size() * 4)) << table->name;
      }
    }
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

// The bf16 part of a product that rounds no rows is what kernels without pairs make of it.
void ExpectExactWhereAsked(const KernelTable& table, ThreadPool* pool, MatrixProduct product,
                           const std::vector<float>& rounded) {
  KernelTable without = table;
  without.round_row = nullptr;
  std::vector<float> y[2] = {rounded, rounded};
  for (const bool exact : {false, true}) {
    product.exact = exact, product.y[1] = y[exact].data();
    Multiply({exact ? &table : &without, pool}, product);
  }
  EXPECT_EQ(y[0], y[1]) << table.name;
  EXPECT_NE(rounded, y[0]) << table.name;
}

// Parts of one matrix that take their rows in three ways: each gets what it gets alone, and every row is made
// once.
TEST(MatMul, PartsOfDifferentTypesGetTheSameRows) {
  constexpr int32_t kRows = 48, kCols = 67 * 32, kTokens = 21;
  for (const KernelTable* table : parity::Tables()) {
    parity::MatMulData whole({WeightType::kF32, 1, kCols, 0, kTokens});
    std::vector<float> x(static_cast<size_t>(kTokens) * kCols), y[3];
    const auto pool = std::move(ThreadPool::Create(3).value());
    std::vector<uint8_t> scratch(static_cast<size_t>(MatMulScratchBytes(*table, kTokens, kCols)) + 64);
    const auto aligned = [&] {
      return scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64);
    };
    Matrix matrix;
    matrix.cols = kCols;
    MatrixProduct product{};
    std::vector<std::unique_ptr<parity::MatMulData>> data;
    std::vector<std::unique_ptr<parity::PackedWeight>> packed;
    for (WeightType type : {WeightType::kInt8, WeightType::kBf16, WeightType::kInt4}) {
      data.push_back(std::make_unique<parity::MatMulData>(
          parity::MatMulCase{type, kRows, kCols, parity::GroupFor(type), 1}));
      packed.push_back(std::make_unique<parity::PackedWeight>(data.back()->weight()));
      const Weight& w = packed.back()->weight;
      Matrix::Part& part = matrix.parts[matrix.n_parts];
      part.type = w.type, part.layout = w.layout, part.rows = w.rows, part.group = w.group;
      part.data = AddressOf(static_cast<const uint8_t*>(w.data)), part.scales = AddressOf(w.scales);
      std::vector<float>& out = y[matrix.n_parts];
      out.assign(static_cast<size_t>(kTokens) * kRows, NAN);
      product.y[matrix.n_parts++] = out.data();
    }
    std::vector<std::atomic<int>> made(kTokens);
    const auto make = [&](int64_t t) {
      std::memcpy(x.data() + t * kCols, whole.args.x + t * kCols, kCols * 4);
      ++made[static_cast<size_t>(t)];
    };
    product.matrix = &matrix, product.x = x.data(), product.n = kTokens, product.make_row = make;
    product.scratch = aligned();
    Multiply({table, pool.get()}, product);
    for (const std::atomic<int>& n : made) EXPECT_EQ(1, n);
    if (table->round_row != nullptr) ExpectExactWhereAsked(*table, pool.get(), product, y[1]);
    for (int i = 0; i < matrix.n_parts; ++i) {
      std::vector<float> alone(y[i].size(), NAN);
      MatMul({table, pool.get()}, packed[static_cast<size_t>(i)]->weight, nullptr, whole.args.x, kCols,
             kTokens, alone.data(), kRows, aligned());
      ASSERT_EQ(0, std::memcmp(alone.data(), y[i].data(), alone.size() * 4)) << table->name << " part " << i;
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
