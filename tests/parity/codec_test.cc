// Stored vectors and quantised activations: known answers, bounds, and the same bits from every table.
#include <gtest/gtest.h>

#include <numeric>

#include "tests/parity/cases.h"

namespace kvc::parity {
namespace {

std::vector<VectorFormat> Formats() {
  std::vector<VectorFormat> formats;
  for (int32_t d = 8; d <= 256; d += 8) {
    for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16}) formats.push_back({type, d, 0});
    for (KvType type : {KvType::kInt8, KvType::kInt4, KvType::kInt2}) {
      formats.push_back({type, d, d});
      for (int32_t group : {8, 32, 64, 128}) {
        if (d % group == 0) formats.push_back({type, d, group});
      }
    }
  }
  return formats;
}

std::string Name(const KernelTable* table, const VectorFormat& f) {
  return std::string(table->name) + ": type " + std::to_string(static_cast<int>(f.type)) + " d " +
         std::to_string(f.d) + " group " + std::to_string(f.group);
}

// Vectors as they are stored, with room behind that must stay as it is.
struct Coded {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales;
  Coded(const VectorFormat& f, int32_t n)
      : codes(static_cast<size_t>(n * CodeBytes(f.type, f.d)) + 1, 0xa5),
        scales(static_cast<size_t>(f.group > 0 ? n * (f.d / f.group) : 0) + 1, 0xa5a5) {}
  bool Untouched() const { return codes.back() == 0xa5 && scales.back() == 0xa5a5; }
};
Coded Encode(const KernelTable& table, const VectorFormat& f, const float* x, int32_t n) {
  Coded coded(f, n);
  table.encode_vectors(f, x, n, coded.codes.data(), coded.scales.data());
  EXPECT_TRUE(coded.Untouched()) << Name(&table, f);
  return coded;
}
void Decode(const KernelTable& table, const VectorFormat& f, const Coded& coded, int32_t n, float* x) {
  table.decode_vectors(f, coded.codes.data(), coded.scales.data(), n, x);
}

TEST(CodecParity, EveryTableReadsTheSameBits) {
  const std::vector<const KernelTable*> tables = Tables();
  for (const VectorFormat& f : Formats()) {
    if (f.group == 0) continue;  // plain numbers are widened; NaN may come out as another
    constexpr int32_t kVectors = 3;
    Random random(static_cast<uint64_t>(f.d));
    Coded coded(f, kVectors);  // every pattern of codes, whoever wrote them
    for (uint8_t& byte : coded.codes) byte = static_cast<uint8_t>(random.Bits());
    for (uint16_t& scale : coded.scales) scale = static_cast<uint16_t>(random.Bits() % 0x7c00);
    std::vector<float> expected(static_cast<size_t>(kVectors * f.d)), got(expected.size());
    Decode(ReferenceKernels(), f, coded, kVectors, expected.data());
    for (const KernelTable* table : tables) {
      Decode(*table, f, coded, kVectors, got.data());
      ASSERT_EQ(0, std::memcmp(expected.data(), got.data(), 4 * got.size())) << Name(table, f);
    }
  }
}

TEST(CodecParity, EveryTableStoresTheSameBitsAndReadsThemBack) {
  for (const VectorFormat& f : Formats()) {
    Random random(static_cast<uint64_t>(f.d));
    std::vector<float> x = random.Floats(3 * f.d, -4, 4);
    for (int32_t i = 0; i < f.d; ++i) x[static_cast<size_t>(f.d + i)] *= 1e-3f;
    const Coded reference = Encode(ReferenceKernels(), f, x.data(), 3);
    for (const KernelTable* table : Tables()) {
      const Coded stored = Encode(*table, f, x.data(), 3);
      ASSERT_EQ(reference.codes, stored.codes) << Name(table, f);
      ASSERT_EQ(reference.scales, stored.scales) << Name(table, f);
      std::vector<float> back(x.size() + 1, 77);
      Decode(*table, f, stored, 3, back.data());
      ASSERT_EQ(77, back.back()) << Name(table, f);
      for (size_t i = 0; i < x.size(); ++i) {
        double bound = 0;
        if (f.type == KvType::kF16) bound = std::fabs(x[i]) * std::ldexp(1, -11) + std::ldexp(1, -25);
        if (f.type == KvType::kBf16) bound = std::fabs(x[i]) * std::ldexp(1, -8);
        if (f.group >
            0) {  // half a step; the scale's own rounding moves the largest codes by up to q_max / 2048 steps
          const size_t first = i / static_cast<size_t>(f.group) * static_cast<size_t>(f.group);
          double top = 0;
          for (size_t j = first; j < first + static_cast<size_t>(f.group); ++j)
            if (std::fabs(x[j]) > top) top = std::fabs(x[j]);
          bound =
              top / (f.type == KvType::kInt8 ? 127 : 7) * (0.502 + (f.type == KvType::kInt8 ? 0.063 : 0.004));
          // No code is 0, and the least of five steps is a sixth of the largest.
          if (f.type == KvType::kInt2) bound = top * 0.501;
        }
        ASSERT_NEAR(x[i], back[i], bound) << Name(table, f) << " at " << i;
      }
    }
  }
}

// So an entry may be decoded and coded again, however often a layer is stored: the largest number has the
// outermost code, whose value gives the same scale again.
TEST(CodecParity, CodesOfWhatCodesSayAreTheSame) {
  for (const VectorFormat& f : Formats()) {
    if (f.group == 0) continue;
    Random random(static_cast<uint64_t>(f.d));
    std::vector<float> x = random.Floats(3 * f.d, -4, 4), back(x.size());
    for (int32_t i = 0; i < f.d; ++i) x[static_cast<size_t>(f.d + i)] *= 1e-3f;
    for (const KernelTable* table : Tables()) {
      const Coded stored = Encode(*table, f, x.data(), 3);
      Decode(*table, f, stored, 3, back.data());
      const Coded again = Encode(*table, f, back.data(), 3);
      ASSERT_EQ(stored.codes, again.codes) << Name(table, f);
      ASSERT_EQ(stored.scales, again.scales) << Name(table, f);
    }
  }
}

// The rule of methods.md 4.3 in double, one channel of a block: scale rounded to f16, half to even, clamp.
std::vector<double> ChannelInDouble(const std::vector<float>& column, double q_max, double* step) {
  double top = 0;
  for (const float x : column) top = std::max(top, std::fabs(double{x}));
  const double wanted = static_cast<float>(top) / static_cast<float>(q_max);
  const double ulp = std::ldexp(1.0, std::max(std::ilogb(wanted > 0 ? wanted : 1), -14) - 10);
  const double half = std::nearbyint(wanted / ulp) * ulp;
  *step = half > 0 ? half : 1;
  std::vector<double> out;
  for (const float x : column)
    out.push_back(*step * std::clamp<double>(std::nearbyint(x / static_cast<float>(*step)), -q_max, q_max));
  return out;
}

// The bits that the reference reads from a block.
void ExpectReadByReference(KvType type, const uint8_t* codes, const uint16_t* scales, int32_t n, int32_t d,
                           const float* got) {
  std::vector<float> reference(static_cast<size_t>(n * d));
  ReferenceKernels().decode_key_block(type, codes, scales, n, d, reference.data());
  EXPECT_EQ(0, std::memcmp(reference.data(), got, 4 * reference.size())) << "d " << d << " n " << n;
}

TEST(CodecParity, KeyBlocksFollowTheRulePerChannel) {
  for (const KernelTable* table : Tables()) {
    for (const KvType type : {KvType::kInt8, KvType::kInt4}) {
      const double q_max = type == KvType::kInt8 ? 127 : 7;
      for (const int32_t d : {8, 24, 64, 72, 128, 200}) {
        for (const int32_t n : {1, 5, 32, 64}) {
          Random random(static_cast<uint64_t>(d + n));
          std::vector<float> x = random.Floats(n * d, -4, 4);
          for (int32_t i = 0; i < n; ++i) {
            x[static_cast<size_t>(i * d + 1)] *= 1000;  // a channel far above the others
            x[static_cast<size_t>(i * d + 2)] = 0;
            x[static_cast<size_t>(i * d + 3)] *= 1e-2f;
          }
          const size_t row = static_cast<size_t>(CodeBytes(type, d));
          std::vector<uint8_t> codes(static_cast<size_t>(n) * row + 1, 0xa5);
          std::vector<uint16_t> scales(static_cast<size_t>(d) + 1, 0xa5a5);
          table->encode_key_block(type, x.data(), n, d, codes.data(), scales.data());
          ASSERT_EQ(codes.back(), 0xa5);
          ASSERT_EQ(scales.back(), 0xa5a5);
          std::vector<float> back(x.size() + 1, 77), last(static_cast<size_t>(d));
          table->decode_key_block(type, codes.data(), scales.data(), n, d, back.data());
          ASSERT_EQ(back.back(), 77);
          ExpectReadByReference(type, codes.data(), scales.data(), n, d, back.data());
          if (HasFailure()) return;
          table->decode_key_block(type, codes.data() + static_cast<size_t>(n - 1) * row, scales.data(), 1, d,
                                  last.data());
          for (int32_t c = 0; c < d; ++c) {
            std::vector<float> column;
            for (int32_t i = 0; i < n; ++i) column.push_back(x[static_cast<size_t>(i * d + c)]);
            double step = 0;
            const std::vector<double> want = ChannelInDouble(column, q_max, &step);
            for (int32_t i = 0; i < n; ++i) {
              const double got = back[static_cast<size_t>(i * d + c)];
              ASSERT_NEAR(got, want[static_cast<size_t>(i)], 1e-6 * std::fabs(got))
                  << table->name << " d " << d << " n " << n << " channel " << c;
              // Half a step; the clamp adds what rounding the scale took from the largest codes.
              ASSERT_LE(std::fabs(got - column[static_cast<size_t>(i)]), step * (0.5 + q_max / 2048 + 1e-3));
            }
            ASSERT_EQ(last[static_cast<size_t>(c)], back[static_cast<size_t>((n - 1) * d + c)]);
          }
        }
      }
    }
  }
}

// What the axis is for: one channel far above the others in every key costs the others nothing.
TEST(CodecParity, OutlierChannelsDoNotHurtTheOthers) {
  constexpr int32_t kTokens = 32, kWide = 64;
  for (const KvType type : {KvType::kInt8, KvType::kInt4}) {
    Random random(5);
    std::vector<float> x = random.Floats(kTokens * kWide, -1, 1), channels(x.size()), tokens(x.size());
    for (int32_t i = 0; i < kTokens; ++i) x[static_cast<size_t>(i * kWide + 7)] += 40;
    std::vector<uint8_t> codes(x.size());
    std::vector<uint16_t> scales(kWide);
    const KernelTable& ref = ReferenceKernels();
    ref.encode_key_block(type, x.data(), kTokens, kWide, codes.data(), scales.data());
    ref.decode_key_block(type, codes.data(), scales.data(), kTokens, kWide, channels.data());
    const VectorFormat format = {type, kWide, 32};
    Decode(ref, format, Encode(ref, format, x.data(), kTokens), kTokens, tokens.data());
    double by_channel = 0, by_token = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      if (i % kWide == 7) continue;
      by_channel += std::pow(channels[i] - x[i], 2), by_token += std::pow(tokens[i] - x[i], 2);
    }
    EXPECT_LT(by_channel * 20, by_token);
  }
}

TEST(CodecParity, KnownInt4Group) {
  const float x[] = {0.45f, -1.4f, 0.2f, 1.0f, 0, 0, 0, 0};
  for (const KernelTable* table : Tables()) {
    const Coded stored = Encode(*table, {KvType::kInt4, 8, 4}, x, 1);
    EXPECT_EQ(0x92, stored.codes[0]) << table->name;  // 2, -7
    EXPECT_EQ(0x51, stored.codes[1]) << table->name;  // 1, 5
    EXPECT_EQ(0, stored.codes[2]);
    EXPECT_EQ(0, stored.codes[3]);
    EXPECT_NEAR(0.2, HalfValue(stored.scales[0]), 1e-4) << table->name;
    EXPECT_EQ(1, HalfValue(stored.scales[1])) << table->name;  // a group of zeros
  }
}

TEST(CodecParity, KnownInt2Groups) {
  const float x[] = {3, -1, 1, -3, 0, 0, 0, 0, 0.5f, -4.0f, 0.4f, 3.9f, -0.6f, 1.4f, 1.5f, -1.4f};
  for (const KernelTable* table : Tables()) {
    SCOPED_TRACE(table->name);
    float back[16];
    Coded stored = Encode(*table, {KvType::kInt2, 4, 4}, x, 1);
    EXPECT_EQ(0x27, stored.codes[0]);  // 3, 1, 2, 0: the first in the lowest bits
    EXPECT_EQ(1, HalfValue(stored.scales[0]));
    stored = Encode(*table, {KvType::kInt2, 16, 4}, x, 1);
    EXPECT_EQ(0, HalfValue(stored.scales[1]));  // of zeros
    Decode(*table, {KvType::kInt2, 16, 4}, stored, 1, back);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(x[i], back[i]);
    for (int i = 4; i < 8; ++i) EXPECT_EQ(0, back[i]);
    // Of the third 7/8 of a third of the largest is best, of the fourth a third of it.
    EXPECT_NEAR(4.0 / 3 * 7 / 8, HalfValue(stored.scales[2]), 1e-3);
    EXPECT_NEAR(0.5, HalfValue(stored.scales[3]), 1e-3);
  }
}

// The rule of methods.md 4.3 in double: of the five steps the one with the least squared error, and of its
// four numbers the nearest for every element.
TEST(CodecParity, TwoBitsTakeTheBestOfFiveSteps) {
  const KernelTable& ref = ReferenceKernels();
  for (const int32_t group : {4, 8, 32, 128}) {
    Random random(static_cast<uint64_t>(group));
    for (int turn = 0; turn < 200; ++turn) {
      std::vector<float> x = random.Floats(group, -1, 1), back(x.size());
      if (turn % 3 == 1) x[0] *= 5;  // one far above the others
      if (turn % 3 == 2) {
        for (float& number : x) number *= number * number;
      }
      const VectorFormat format{KvType::kInt2, group, group};
      const Coded stored = Encode(ref, format, x.data(), 1);
      Decode(ref, format, stored, 1, back.data());
      double top = 0, best = INFINITY, error = 0;
      for (const float number : x) top = std::max(top, std::fabs(double{number}));
      bool offered = false;
      const double step = HalfValue(stored.scales[0]);
      const auto nearest = [](double number, double of) {
        const double size = std::fabs(number), off = std::min(std::fabs(size - of), std::fabs(size - 3 * of));
        return off * off;
      };
      for (int eighths = 4; eighths <= 8; ++eighths) {
        const double one = HalfValue(FloatToF16(static_cast<float>(top * eighths / 24)));
        double squares = 0;
        for (const float number : x) squares += nearest(number, one);
        best = std::min(best, squares), offered = offered || one == step;
      }
      for (size_t i = 0; i < x.size(); ++i) {
        error += nearest(x[i], step);
        ASSERT_NEAR(std::pow(back[i] - x[i], 2), nearest(x[i], step), 1e-6) << i;
      }
      ASSERT_TRUE(offered) << step << " of " << top;
      ASSERT_NEAR(error, best, 1e-5 * best);
    }
  }
}

// The largest number is off by most, where the least of the five steps is taken: three sixths of it are
// coded.
TEST(CodecParity, TwoBitsLoseHalfOfTheLargestAtMost) {
  std::vector<float> x(128, 1), back(x.size());
  x[5] = -6;
  const VectorFormat format{KvType::kInt2, 128, 128};
  for (const KernelTable* table : Tables()) {
    const Coded stored = Encode(*table, format, x.data(), 1);
    Decode(*table, format, stored, 1, back.data());
    EXPECT_EQ(HalfValue(stored.scales[0]), 1) << table->name;
    EXPECT_EQ(back[5], -3) << table->name;
    EXPECT_EQ(back[4], 1) << table->name;
  }
}

TEST(CodecParity, EveryHalfSurvivesAndBorderCasesRoundToEven) {
  for (const KernelTable* table : Tables()) {
    for (KvType type : {KvType::kF16, KvType::kBf16}) {
      for (uint32_t h = 0; h < 0x10000; h += 8) {
        uint16_t in[8], out[8];
        float x[8];
        for (uint32_t i = 0; i < 8; ++i) in[i] = static_cast<uint16_t>(h + i);
        table->decode_vectors({type, 8, 0}, in, nullptr, 1, x);
        table->encode_vectors({type, 8, 0}, x, 1, out, nullptr);
        for (int i = 0; i < 8; ++i) {
          // Of f16 no infinity is stored: HalvesEndAtTheirLargest.
          if (std::isnan(x[i]) || (type == KvType::kF16 && std::isinf(x[i]))) continue;
          ASSERT_EQ(in[i], out[i]) << table->name;
          if (!std::isfinite(x[i])) continue;
          ASSERT_EQ(type == KvType::kF16 ? HalfValue(in[i]) : Bf16Value(in[i]), x[i]) << table->name;
        }
      }
    }
    const float x[8] = {1 + 0x1p-11f, 1 + 3 * 0x1p-11f, 65519, 65520, 0x1p-25f, 0x1.8p-24f, -0.0f, 1e-9f};
    const uint16_t want[8] = {0x3c00, 0x3c02, 0x7bff, 0x7bff, 0, 2, 0x8000, 0};
    uint16_t out[8];
    table->encode_vectors({KvType::kF16, 8, 0}, x, 1, out, nullptr);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(want[i], out[i]) << table->name << " " << x[i];
  }
}

TEST(CodecParity, HalvesEndAtTheirLargest) {
  for (const KernelTable* table : Tables()) {
    for (const int32_t d : {8, 24, 40}) {  // whole registers, and what is left of one
      const float x[8] = {65504, 65519, -65520, 1e6f, -INFINITY, INFINITY, NAN, -1},
                  want[8] = {65504, 65504, -65504, 65504, -65504, 65504, NAN, -1};
      std::vector<float> in(static_cast<size_t>(d)), back(in.size());
      for (size_t i = 0; i < in.size(); ++i) in[i] = x[i % 8];
      const VectorFormat format = {KvType::kF16, d, 0};
      Decode(*table, format, Encode(*table, format, in.data(), 1), 1, back.data());
      for (size_t i = 0; i < back.size(); ++i) {
        if (std::isnan(want[i % 8])) {
          EXPECT_TRUE(std::isnan(back[i])) << table->name;
        } else {
          EXPECT_EQ(want[i % 8], back[i]) << table->name;
        }
      }
    }
  }
}

TEST(CodecParity, ScalesBeyondHalvesAreLimited) {
  for (const KernelTable* table : Tables()) {
    for (KvType type : {KvType::kInt8, KvType::kInt4}) {
      const float x[16] = {1e30f, -1e30f, 1, 0, 0, 0, 0, 0, 1e-30f, -1e-30f, 0, 0, 0, 0, 0, 0};
      float back[16];
      const VectorFormat format = {type, 16, 8};
      Decode(*table, format, Encode(*table, format, x, 1), 1, back);
      const float largest = 65504.0f * (type == KvType::kInt8 ? 127 : 7);
      EXPECT_EQ(largest, back[0]) << table->name;
      EXPECT_EQ(-largest, back[1]) << table->name;
      for (int i = 2; i < 16; ++i) EXPECT_EQ(0, back[i]) << table->name;
    }
    const float x[16] = {1e30f, -INFINITY, 1, NAN, 0, 0, 0, 0, 1e-30f, -1e-30f, 0, 0, 0, 0, 0, 0};
    float back[16];
    const VectorFormat two_bits = {KvType::kInt2, 16, 8};
    Decode(*table, two_bits, Encode(*table, two_bits, x, 1), 1, back);
    EXPECT_EQ(3 * 65504.0f, back[0]) << table->name;
    EXPECT_EQ(-3 * 65504.0f, back[1]) << table->name;
    for (int i = 2; i < 8; ++i) EXPECT_EQ(65504, back[i]) << table->name;  // there is no 0
    for (int i = 8; i < 16; ++i) EXPECT_EQ(0, back[i]) << table->name;
  }
}

// One of them spoils its group, whose scale is a NaN: what is computed of it is none either.
TEST(CodecParity, WhatIsNoNumberIsReadAsNone) {
  for (KvType type : {KvType::kInt8, KvType::kInt4}) {
    for (int32_t group : {8, 40, 64}) {
      const VectorFormat format = {type, 3 * group, group};
      for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
        for (int32_t at : {group, group + 3, 2 * group - 1}) {
          Random random(static_cast<uint64_t>(at));
          std::vector<float> x = random.Floats(format.d, -4, 4), back(x.size());
          const Coded sound = Encode(ReferenceKernels(), format, x.data(), 1);
          x[static_cast<size_t>(at)] = bad;
          const Coded reference = Encode(ReferenceKernels(), format, x.data(), 1);
          for (const KernelTable* table : Tables()) {
            const Coded stored = Encode(*table, format, x.data(), 1);
            EXPECT_EQ(reference.codes, stored.codes) << Name(table, format);
            EXPECT_EQ(reference.scales, stored.scales) << Name(table, format);
            EXPECT_EQ(sound.scales[0], stored.scales[0]) << Name(table, format);
            EXPECT_EQ(sound.scales[2], stored.scales[2]) << Name(table, format);
            Decode(*table, format, stored, 1, back.data());
            for (int32_t i = 0; i < format.d; ++i)
              EXPECT_EQ(i / group == 1, std::isnan(back[static_cast<size_t>(i)])) << Name(table, format);
          }
        }
      }
    }
    constexpr int32_t kRows = 5, kD = 16;
    std::vector<float> x(kRows * kD, 0.5f), back(x.size());
    x[2 * kD + 7] = NAN, x[4 * kD + 12] = -INFINITY;
    std::vector<uint8_t> codes(static_cast<size_t>(kRows * CodeBytes(type, kD)));
    std::vector<uint16_t> scales(kD);
    for (const KernelTable* table : Tables()) {
      table->encode_key_block(type, x.data(), kRows, kD, codes.data(), scales.data());
      table->decode_key_block(type, codes.data(), scales.data(), kRows, kD, back.data());
      for (int32_t i = 0; i < kRows * kD; ++i)
        EXPECT_EQ(i % kD == 7 || i % kD == 12, std::isnan(back[static_cast<size_t>(i)])) << table->name;
    }
  }
}

TEST(QuantizeRowParity, SameBitsHalfAStepAndZeros) {
  for (int32_t group : {8, 16, 32, 40, 64, 128, 512}) {
    Random random(static_cast<uint64_t>(group));
    std::vector<float> x = random.Floats(4 * group, -5, 5);
    for (int32_t i = 0; i < group; ++i) x[static_cast<size_t>(group + i)] = 0;
    for (int32_t i = 0; i < group; ++i) x[static_cast<size_t>(2 * group + i)] *= 1e-44f;
    std::vector<int8_t> reference(x.size());
    std::vector<float> reference_scales(4);
    std::vector<int32_t> reference_sums(4);
    ReferenceKernels().quantize_row(x.data(), 4 * group, group, reference.data(), reference_scales.data(),
                                    reference_sums.data());
    EXPECT_EQ(1, reference_scales[1]);
    for (const KernelTable* table : Tables()) {
      std::vector<int8_t> codes(x.size());
      std::vector<float> scales(4);
      std::vector<int32_t> sums(4);
      table->quantize_row(x.data(), 4 * group, group, codes.data(), scales.data(), sums.data());
      for (int32_t g = 0; g < 4; ++g)
        ASSERT_EQ(std::accumulate(&codes[static_cast<size_t>(g * group)],
                                  &codes[static_cast<size_t>(g * group)] + group, 0),
                  sums[static_cast<size_t>(g)])
            << table->name << " group " << group;
      ASSERT_EQ(reference_sums, sums);
      ASSERT_EQ(reference, codes) << table->name << " group " << group;
      ASSERT_EQ(reference_scales, scales) << table->name << " group " << group;
      for (size_t i = 0; i < x.size(); ++i) {
        const double step = scales[i / static_cast<size_t>(group)];
        ASSERT_NEAR(x[i], codes[i] * step, step * 0.50001) << table->name << " group " << group;
      }
    }
  }
}

// The products of a group that one of them has spoilt are NaN in every row, those of other tokens are not.
TEST(QuantizeRowParity, WhatIsNoNumberSpoilsItsGroup) {
  for (int32_t group : {8, 32, 40, 128}) {
    const MatMulCase shape = {WeightType::kInt8, 5, 2 * group, group, 3};
    for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
      for (int32_t at : {0, 3, group - 1}) {
        MatMulData data(shape);
        std::vector<float> x(data.args.x, data.args.x + 3 * shape.cols);
        x[static_cast<size_t>(shape.cols + group + at)] = bad;
        for (const KernelTable* table : Tables()) {
          std::vector<int8_t> codes(x.size(), 77);
          std::vector<float> scales(6);
          std::vector<int32_t> sums(6, 77);
          for (size_t t = 0; t < 3; ++t)
            table->quantize_row(&x[t * static_cast<size_t>(shape.cols)], shape.cols, group,
                                &codes[t * static_cast<size_t>(shape.cols)], &scales[2 * t], &sums[2 * t]);
          for (size_t g = 0; g < 6; ++g) EXPECT_EQ(g == 3, std::isnan(scales[g])) << table->name;
          EXPECT_EQ(sums[3], 0) << table->name;
          EXPECT_EQ(std::vector<int8_t>(&codes[static_cast<size_t>(3 * group)],
                                        &codes[static_cast<size_t>(3 * group)] + group),
                    std::vector<int8_t>(static_cast<size_t>(group)))
              << table->name;
          MatMulArgs a = data.args;
          a.x = x.data(), a.xq = codes.data(), a.xs = scales.data(), a.sums = sums.data();
          table->matmul(a);
          for (size_t i = 0; i < 15; ++i) EXPECT_EQ(i / 5 == 1, std::isnan(data.y[i])) << table->name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvc::parity
