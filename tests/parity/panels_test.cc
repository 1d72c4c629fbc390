// Products with weights in panels against the same oracle and the same promises as in row major, and the
// panels themselves.
#include <gtest/gtest.h>

#include "tests/parity/cases.h"
#include "tests/parity/near_double.h"

namespace kvc::parity {
namespace {

std::vector<MatMulCase> PanelCases() {
  std::vector<MatMulCase> cases;
  for (const MatMulCase& c : MatMulCases()) {
    if (FitsPanels(MatMulData(c).weight())) cases.push_back(c);
  }
  for (WeightType type :
       {WeightType::kF32, WeightType::kF16, WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
    const int32_t group = type == WeightType::kInt8 || type == WeightType::kInt4 ? 32 : 0;
    for (int32_t rows : {1, 15, 16, 17, 31, 32, 33, 48, 64})
      cases.push_back({type, rows, 288, group, rows % 5 + 1});
    for (int32_t n : {10, 11, 12, 13, 23, 24, 25}) cases.push_back({type, 40, 96, group, n});
  }
  return cases;
}

MatMulArgs Packed(const MatMulData& data, const PackedWeight& packed) {
  MatMulArgs a = data.args;
  a.w = &packed.weight;
  return a;
}

TEST(PanelParity, AgreesWithDouble) {
  for (const MatMulCase& c : PanelCases()) {
    MatMulData data(c);
    const PackedWeight packed(data.weight());
    for (const KernelTable* table : Tables()) {
      data.y.assign(data.y.size(), NAN);
      table->matmul_panels(Packed(data, packed));
      ExpectNearDouble(data, table->name);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(PanelParity, CodesGiveTheBitsOfTheReferenceInRowMajor) {
  for (const MatMulCase& c : PanelCases()) {
    if (c.group == 0) continue;
    MatMulData data(c);
    const PackedWeight packed(data.weight());
    ReferenceKernels().matmul(data.args);
    const std::vector<float> reference = data.y;
    for (const KernelTable* table : Tables()) {
      data.y.assign(data.y.size(), NAN);
      table->matmul_panels(Packed(data, packed));
      ASSERT_EQ(0, std::memcmp(reference.data(), data.y.data(), reference.size() * 4))
          << table->name << ": " << data.Name();
    }
  }
}

TEST(PanelParity, EveryTokenAndSplitGivesTheSameBits) {
  for (const MatMulCase& c : PanelCases()) {
    MatMulData data(c);
    const PackedWeight packed(data.weight());
    for (const KernelTable* table : Tables()) {
      table->matmul_panels(Packed(data, packed));
      const std::vector<float> whole = data.y;
      data.y.assign(data.y.size(), NAN);
      const int32_t groups = c.group > 0 ? c.cols / c.group : 0, panels = PanelsOf(c.rows);
      int32_t piece = 1;
      for (int32_t t = 0; t < c.n;
           piece = piece % 13 + 1) {  // tokens in pieces of 1 to 13, panels in three parts
        MatMulArgs a = Packed(data, packed);
        a.n = std::min(piece, c.n - t);
        a.x += int64_t{t} * c.cols, a.xq += int64_t{t} * c.cols, a.xs += int64_t{t} * groups;
        a.sums += int64_t{t} * groups, a.y += int64_t{t} * c.rows;
        const int32_t cuts[] = {0, panels / 5 * kPanelLanes, (panels - panels / 3) * kPanelLanes, c.rows};
        for (int part = 0; part < 3; ++part) {
          a.row_begin = cuts[part], a.row_end = std::min(cuts[part + 1], c.rows);
          table->matmul_panels(a);
        }
        t += a.n;
      }
      ASSERT_EQ(0, std::memcmp(whole.data(), data.y.data(), whole.size() * 4))
          << table->name << ": " << data.Name();
    }
  }
}

TEST(PanelParity, NothingOutsideTheRowsIsWrittenAndNoBiasAddsNothing) {
  for (WeightType type : {WeightType::kF32, WeightType::kInt8, WeightType::kInt4}) {
    MatMulData data({type, 40, 64, type == WeightType::kF32 ? 0 : 32, 2});
    const PackedWeight packed(data.weight());
    for (const KernelTable* table : Tables()) {
      MatMulArgs a = Packed(data, packed);
      a.bias = nullptr;
      table->matmul_panels(a);
      const std::vector<float> whole = data.y;
      data.y.assign(data.y.size(), 7);
      a.row_begin = 16, a.row_end = 37;
      table->matmul_panels(a);
      for (size_t i = 0; i < whole.size(); ++i)
        ASSERT_EQ(i % 40 >= 16 && i % 40 < 37 ? whole[i] : 7, data.y[i]) << table->name << " " << i;
      a.row_begin = a.row_end = 16;
      data.y.assign(data.y.size(), 7);
      table->matmul_panels(a);
      for (float y : data.y) ASSERT_EQ(7, y) << table->name;
    }
  }
}

TEST(PanelParity, ExtremeCodesDoNotOverflow) {
  for (WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
    for (int32_t cols : {512, 65536}) {
      const bool wide = type == WeightType::kInt8;
      for (int low : {wide ? -128 : -8, wide ? 127 : 7}) {
        const uint8_t byte = static_cast<uint8_t>(wide ? low : (low & 15) * 17);
        const std::vector<uint8_t> codes(static_cast<size_t>(16 * cols), byte);
        const std::vector<uint16_t> scales(16, 0x3c00);
        const PackedWeight packed(
            {type, WeightLayout::kRowMajor, 16, cols, cols, codes.data(), scales.data()});
        const float one = 1;
        for (int sign : {-127, 127}) {
          const std::vector<int8_t> x(static_cast<size_t>(cols), static_cast<int8_t>(sign));
          const int32_t sum = sign * cols;
          for (const KernelTable* table : Tables()) {
            std::vector<float> y(16, NAN);
            table->matmul_panels(
                {&packed.weight, nullptr, x.data(), &one, nullptr, y.data(), cols, 16, 1, 0, 16, &sum});
            for (float value : y) ASSERT_EQ(static_cast<float>(low * sign * cols), value) << table->name;
          }
        }
      }
    }
  }
}

TEST(PanelParity, ARowLooksTheSameInEitherLayout) {
  for (const MatMulCase& c : PanelCases()) {
    if (c.n > 3) continue;
    const MatMulData data(c);
    const PackedWeight packed(data.weight());
    for (const KernelTable* table : Tables()) {
      std::vector<float> row(static_cast<size_t>(c.cols)), packed_row(row.size());
      for (int32_t r = 0; r < c.rows; r += 5) {
        table->weight_row(data.weight(), r, row.data());
        table->weight_row(packed.weight, r, packed_row.data());
        ASSERT_EQ(row, packed_row) << table->name << ": " << data.Name();
      }
    }
  }
}

TEST(Panels, UnpackingGivesBackWhatWasPacked) {
  for (const MatMulCase& c : PanelCases()) {
    const MatMulData data(c);
    const Weight& w = data.weight();
    const PackedWeight packed(w);
    const size_t row_bytes = static_cast<size_t>(WeightRowBytes(c.type, c.cols));
    const size_t groups = c.group > 0 ? static_cast<size_t>(c.cols / c.group) : 0;
    std::vector<uint8_t> row(row_bytes);
    std::vector<uint16_t> scales(groups);
    for (int32_t r = 0; r < c.rows; ++r) {
      UnpackRow(packed.weight, r, row.data(), scales.data());
      ASSERT_EQ(
          0, std::memcmp(row.data(), static_cast<const uint8_t*>(w.data) + static_cast<size_t>(r) * row_bytes,
                         row_bytes))
          << data.Name() << " row " << r;
      ASSERT_TRUE(std::equal(scales.begin(), scales.end(), w.scales + static_cast<size_t>(r) * groups))
          << data.Name();
    }
  }
}

// Known answers: where the elements of FORMAT.md lie, written down by hand.
TEST(Panels, LieWhereTheFormatSays) {
  const MatMulData f({WeightType::kF32, 20, 3, 0, 1});
  const PackedWeight pf(f.weight());
  const float* lanes = static_cast<const float*>(pf.weight.data);
  EXPECT_EQ(static_cast<float>(f.WeightValue(5, 2)), lanes[2 * 16 + 5]);
  EXPECT_EQ(static_cast<float>(f.WeightValue(18, 1)), lanes[3 * 16 + 16 + 2]);
  EXPECT_EQ(0.0f, lanes[3 * 16 + 16 + 4]);  // row 20 is not there
  std::vector<uint8_t> codes(16 * 16, 0);
  const std::vector<uint16_t> scales(16 * 2, 0x3c00);
  codes[3 * 16 + 6] = 5;
  const PackedWeight p8({WeightType::kInt8, WeightLayout::kRowMajor, 16, 16, 8, codes.data(), scales.data()});
  const uint8_t* bytes = static_cast<const uint8_t*>(p8.weight.data);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(i == 64 + 3 * 4 + 2 ? 133 : 128, bytes[i]) << i;
  std::fill(codes.begin(), codes.end(), uint8_t{0});
  codes[3 * 8 + 3] = 0x50;  // row 3: column 6 is 0, column 7 is 5
  const PackedWeight p4({WeightType::kInt4, WeightLayout::kRowMajor, 16, 16, 8, codes.data(), scales.data()});
  bytes = static_cast<const uint8_t*>(p4.weight.data);
  for (int i = 0; i < 128; ++i) EXPECT_EQ(i == 3 * 4 + 3 ? 0xd8 : 0x88, bytes[i]) << i;
}

TEST(Panels, HoldWholeUnitsOnly) {
  const auto fits = [](WeightType type, int32_t cols, int32_t group) {
    return FitsPanels({type, WeightLayout::kRowMajor, 5, cols, group, nullptr, nullptr});
  };
  EXPECT_TRUE(fits(WeightType::kF32, 1, 0));
  EXPECT_TRUE(fits(WeightType::kBf16, 67, 0));
  EXPECT_TRUE(fits(WeightType::kInt8, 60, 20));
  EXPECT_FALSE(fits(WeightType::kInt8, 30, 10));
  EXPECT_TRUE(fits(WeightType::kInt4, 48, 24));
  EXPECT_FALSE(fits(WeightType::kInt4, 40, 20));
  EXPECT_FALSE(fits(WeightType::kInt4, 0, 8));
}

}  // namespace
}  // namespace kvc::parity
