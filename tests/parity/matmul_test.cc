// Every matrix product against sums in double, and its promise: a value depends on its token and its row
// alone.
#include <gtest/gtest.h>

#include "tests/parity/cases.h"
#include "tests/parity/near_double.h"

namespace kvc::parity {
namespace {

TEST(MatMulParity, AgreesWithDouble) {
  for (const MatMulCase& c : MatMulCases()) {
    if (c.n > 100) continue;  // the next test ties these to n = 1
    MatMulData data(c);
    for (const KernelTable* table : ProductTables()) {
      data.y.assign(data.y.size(), NAN);
      table->matmul(data.args);
      ExpectNearDouble(data, table->name);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(MatMulParity, EveryTokenAndSplitGivesTheSameBits) {
  for (const MatMulCase& c : MatMulCases()) {
    MatMulData data(c);
    for (const KernelTable* table : ProductTables()) {
      table->matmul(data.args);
      const std::vector<float> whole = data.y;
      data.y.assign(data.y.size(), NAN);
      const int32_t groups = c.group > 0 ? c.cols / c.group : 0;
      int32_t piece = 1;
      for (int32_t t = 0; t < c.n;
           piece = piece % 7 + 1) {  // tokens in pieces of 1 to 7, rows in three uneven parts
        MatMulArgs a = data.args;
        a.n = std::min(piece, c.n - t);
        a.x += int64_t{t} * c.cols, a.xq += int64_t{t} * c.cols, a.xs += int64_t{t} * groups;
        a.sums += int64_t{t} * groups, a.y += int64_t{t} * c.rows;
        const int32_t cuts[] = {0, c.rows / 5, c.rows - c.rows / 3, c.rows};
        for (int part = 0; part < 3; ++part) {
          a.row_begin = cuts[part], a.row_end = cuts[part + 1];
          table->matmul(a);
        }
        t += a.n;
      }
      ASSERT_EQ(0, std::memcmp(whole.data(), data.y.data(), whole.size() * 4))
          << table->name << ": " << data.Name();
    }
  }
}

TEST(MatMulParity, CodesGiveTheBitsOfTheReference) {
  for (const MatMulCase& c : MatMulCases()) {
    if (c.group == 0) continue;
    MatMulData data(c);
    ReferenceKernels().matmul(data.args);
    const std::vector<float> reference = data.y;
    for (const KernelTable* table : ProductTables()) {
      data.y.assign(data.y.size(), NAN);
      table->matmul(data.args);
      ASSERT_EQ(0, std::memcmp(reference.data(), data.y.data(), reference.size() * 4))
          << table->name << ": " << data.Name();
    }
  }
}

TEST(MatMulParity, NoRowsTouchNothingAndNoBiasAddsNothing) {
  for (WeightType type : {WeightType::kF32, WeightType::kInt8}) {
    MatMulData data({type, 8, 64, type == WeightType::kInt8 ? 32 : 0, 2});
    for (const KernelTable* table : ProductTables()) {
      table->matmul(data.args);
      const float with = data.y[3];
      MatMulArgs a = data.args;
      a.bias = nullptr;
      table->matmul(a);
      EXPECT_NEAR(with - data.Bias(3), data.y[3], 1e-5) << table->name;
      data.y.assign(data.y.size(), 7);
      a.row_begin = a.row_end = 4;
      table->matmul(a);
      for (float y : data.y) ASSERT_EQ(7, y) << table->name;
    }
  }
}

TEST(MatMulParity, ExtremeCodesDoNotOverflow) {
  for (WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
    const int32_t cols = 512, low = type == WeightType::kInt8 ? -128 : -8;
    const std::vector<uint8_t> codes(static_cast<size_t>(16 * cols), type == WeightType::kInt8 ? 0x80 : 0x88);
    const std::vector<uint16_t> scales(16, 0x3c00);
    const Weight w{type, WeightLayout::kRowMajor, 16, cols, cols, codes.data(), scales.data()};
    const float one = 1;
    for (int sign : {-127, 127}) {
      const std::vector<int8_t> x(static_cast<size_t>(cols), static_cast<int8_t>(sign));
      for (const KernelTable* table : ProductTables()) {
        std::vector<float> y(16, NAN);
        table->matmul({&w, nullptr, x.data(), &one, nullptr, y.data(), cols, 16, 1, 0, 16});
        for (float value : y) ASSERT_EQ(static_cast<float>(low * sign * cols), value) << table->name;
      }
    }
  }
}

TEST(WeightRowParity, IsTheRow) {
  for (const MatMulCase& c : MatMulCases()) {
    if (c.n != 3) continue;
    const MatMulData data(c);
    for (const KernelTable* table : ProductTables()) {
      std::vector<float> row(static_cast<size_t>(c.cols));
      table->weight_row(data.weight(), c.rows - 2, row.data());
      for (int32_t k = 0; k < c.cols; ++k) {
        ASSERT_EQ(static_cast<float>(data.WeightValue(c.rows - 2, k)), row[static_cast<size_t>(k)])
            << table->name << data.Name();
      }
    }
  }
}

}  // namespace
}  // namespace kvc::parity
