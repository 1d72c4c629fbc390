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
  for (WeightType type : {WeightType::kQ4K, WeightType::kQ6K}) {
    const int32_t group = GroupFor(type);
    for (int32_t rows : {1, 15, 16, 17, 31, 32, 33, 48, 64})
      cases.push_back({type, rows, 256 * (rows % 3 + 1), group, rows % 5 + 1});
    for (int32_t n : {10, 11, 12, 13, 23, 24, 25}) cases.push_back({type, 40, 256, group, n});
  }
  return cases;
}

MatMulArgs Packed(const MatMulData& data, const PackedWeight& packed) {
  MatMulArgs a = data.args;
  a.w = &packed.weight;
  return a;
}

MatMulArgs WithoutPairs(MatMulArgs a) {
  a.xb = nullptr;
  return a;
}

TEST(PanelParity, AgreesWithDouble) {
  for (const MatMulCase& c : PanelCases()) {
    MatMulData data(c);
    const PackedWeight packed(data.weight());
    for (const KernelTable* table : ProductTables()) {
      data.y.assign(data.y.size(), NAN);
      table->matmul_panels(Packed(data, packed));
      ExpectNearDouble(data, table->name, TakesPairs(*table, c.type));
      if (HasFatalFailure()) return;
      if (!TakesPairs(*table, c.type)) continue;
      data.y.assign(data.y.size(), NAN);
      table->matmul_panels(WithoutPairs(Packed(data, packed)));
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
    for (const KernelTable* table : ProductTables()) {
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
    for (const KernelTable* table : ProductTables()) {
      table->matmul_panels(Packed(data, packed));
      const std::vector<float> whole = data.y;
      data.y.assign(data.y.size(), NAN);
      const int32_t panels = PanelsOf(c.rows);
      int32_t piece = 1;
      for (int32_t t = 0; t < c.n;
           piece = piece % 13 + 1) {  // tokens in pieces of 1 to 13, panels in three parts
        MatMulArgs a = FromToken(Packed(data, packed), t, std::min(piece, c.n - t));
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

// Ties, numbers beside them, the largest that does not become infinite, and what has no number; any length.
TEST(PanelParity, RowsOfPairsAreRoundedToTheNearest) {
  Random random(11);
  std::vector<float> x;
  for (uint32_t bits : {0x3f808000u, 0x3f818000u, 0x3f808001u, 0x3f807fffu, 0xbf808000u, 0x7f7f7fffu,
                        0x7f7f8000u, 0x7f800000u, 0xff800000u, 0x7fc00001u, 0x80000000u})
    x.push_back(BitsToFloat(bits));
  while (x.size() < 77) x.push_back(random.Uniform(-3, 3));
  for (const KernelTable* table : ProductTables()) {
    if (table->round_row == nullptr) continue;
    for (int32_t cols = 1; cols <= 77; ++cols) {
      std::vector<uint16_t> out(80, 0x1234);
      table->round_row(x.data(), cols, out.data());
      for (int32_t k = 0; k < 80; ++k) {
        const uint16_t want = k < cols                  ? FloatToBf16(x[static_cast<size_t>(k)])
                              : k < PairedColumns(cols) ? uint16_t{0}
                                                        : uint16_t{0x1234};
        ASSERT_EQ(want, out[static_cast<size_t>(k)]) << table->name << ": " << k << " of " << cols;
      }
    }
  }
}

// A processor chooses how panels are read (ProcessorFeatures::streams); here every way, on any of them.
TEST(PanelParity, HowPanelsAreReadDoesNotShow) {
  for (const MatMulCase& c : PanelCases()) {
    MatMulData data(c);
    const PackedWeight packed(data.weight());
    for (const KernelTable* table : ProductTables()) {
      std::vector<float> first;
      for (const Streams streams : {Streams::kSeveral, Streams::kOne, Streams::kOneFar}) {
        data.y.assign(data.y.size(), NAN);
        for (int32_t t = 0; t < c.n; ++t) {  // one token at a time, which is where it is looked at
          MatMulArgs a = FromToken(Packed(data, packed), t, 1);
          a.streams = streams;
          table->matmul_panels(a);
        }
        if (first.empty()) first = data.y;
        ASSERT_EQ(0, std::memcmp(first.data(), data.y.data(), first.size() * 4))
            << table->name << ": " << data.Name();
      }
    }
  }
}

TEST(PanelParity, NothingOutsideTheRowsIsWrittenAndNoBiasAddsNothing) {
  for (WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8, WeightType::kInt4,
                          WeightType::kQ4K, WeightType::kQ6K}) {
    MatMulData data({type, 40, 256, GroupFor(type), 2});
    const PackedWeight packed(data.weight());
    for (const KernelTable* table : ProductTables()) {
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
          for (const KernelTable* table : ProductTables()) {
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

// Every byte of the blocks 255, d and least 1: the greatest scales and codes there are.
TEST(PanelParity, ExtremeBlocksDoNotOverflow) {
  for (WeightType type : {WeightType::kQ4K, WeightType::kQ6K}) {
    const WeightTypeInfo& info = InfoOf(type);
    const bool q4 = type == WeightType::kQ4K;
    std::vector<uint8_t> blocks(static_cast<size_t>(16 * info.block_bytes), 255);
    for (size_t at = 0; at < blocks.size(); at += static_cast<size_t>(info.block_bytes)) {
      for (size_t i = 0; i < (q4 ? 2u : 1u); ++i) {
        blocks[at + (q4 ? 0 : 208) + 2 * i] = 0;
        blocks[at + (q4 ? 1 : 209) + 2 * i] = 0x3c;
      }
      for (size_t i = 0; !q4 && i < 16; ++i) blocks[at + 192 + i] = 0x80;  // -128
    }
    const PackedWeight packed({type, WeightLayout::kRowMajor, 16, 256, info.group, blocks.data(), nullptr});
    // A column: 63 * 15 - 63, and -128 * 31.
    const int value = q4 ? 63 * 14 : -128 * 31;
    for (int sign : {-127, 127}) {
      const std::vector<int8_t> x(256, static_cast<int8_t>(sign));
      const std::vector<float> xs(static_cast<size_t>(256 / info.group), 1);
      const std::vector<int32_t> sums(xs.size(), sign * info.group);
      for (const KernelTable* table : ProductTables()) {
        std::vector<float> y(16, NAN);
        table->matmul_panels({&packed.weight, nullptr, x.data(), xs.data(), nullptr, y.data(), 256, 16, 1, 0,
                              16, sums.data()});
        for (float got : y) ASSERT_EQ(static_cast<float>(value * sign * 256), got) << table->name;
      }
    }
  }
}

TEST(PanelParity, ARowLooksTheSameInEitherLayout) {
  for (const MatMulCase& c : PanelCases()) {
    if (c.n > 3) continue;
    const MatMulData data(c);
    const PackedWeight packed(data.weight());
    for (const KernelTable* table : ProductTables()) {
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
    const size_t groups = static_cast<size_t>(RowScales(w));
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

// The same of blocks: one number of each kind in row 3 of a block, and the byte where it must be.
TEST(Panels, OfBlocksLieWhereTheFormatSays) {
  std::vector<uint8_t> q4(16 * 144, 0), q6(16 * 210, 0);
  uint8_t* block = q4.data() + 3 * 144;
  block[0] = 1, block[3] = 2;  // d, least
  block[4] = 5, block[8] = 6;  // scale and least of group 0
  block[16 + 32 + 6] = 0x70;   // column 64 + 32 + 6: code 7
  const PackedWeight p4({WeightType::kQ4K, WeightLayout::kRowMajor, 16, 256, 32, q4.data(), nullptr});
  std::vector<uint8_t> expected(16 * 148, 0);
  expected[2 * 3] = 1, expected[32 + 2 * 3 + 1] = 2;
  expected[64 + 3] = 5, expected[64 + 128 + 3] = 6;
  expected[320 + 102 / 8 * 64 + 3 * 4 + 2] = 0x70;  // column 102: 6 of eight, the third of the upper four
  EXPECT_EQ(0, std::memcmp(expected.data(), p4.weight.data, expected.size()));
  block = q6.data() + 3 * 210;
  block[64 + 9] = 0xb0;          // column 128 + 64 + 9: low bits 11
  block[128 + 32 + 9] = 2 << 4;  // its high bits: 2
  block[192 + 12] = 0x85, block[208] = 1;
  const PackedWeight p6({WeightType::kQ6K, WeightLayout::kRowMajor, 16, 256, 16, q6.data(), nullptr});
  expected.assign(16 * 212, 0);
  expected[2 * 3] = 1, expected[64 + 12 * 16 + 3] = 0x85;
  uint8_t* three = expected.data() + 320 + 12 * 192 + 3 * 4;  // group 12, column 9 of it
  three[64 + 1] = 11, three[128 + 1] = 2 << 4;
  EXPECT_EQ(0, std::memcmp(expected.data(), p6.weight.data, expected.size()));
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
  EXPECT_TRUE(fits(WeightType::kQ4K, 512, 32));
  EXPECT_FALSE(fits(WeightType::kQ4K, 512, 16));
  EXPECT_FALSE(fits(WeightType::kQ4K, 384, 32));
  EXPECT_TRUE(fits(WeightType::kQ6K, 256, 16));
  EXPECT_FALSE(fits(WeightType::kQ6K, 256, 32));
}

}  // namespace
}  // namespace kvc::parity
