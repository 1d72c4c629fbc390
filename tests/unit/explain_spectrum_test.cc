// Singular values of kvc eval --explain against numpy's, and what they must be.
#include "tools/explain/spectrum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <numeric>

#include <nlohmann/json.hpp>

namespace kvc::tool {
namespace {

// [{width, rank, in_256ths [n, width], singular [rank], effective_rank}]:
// tests/vectors/make_spectrum_vectors.py.
const nlohmann::json& Vectors() {
  static const nlohmann::json vectors = [] {
    std::ifstream in(KVC_TEST_DATA "/reference/spectra.json");
    return nlohmann::json::parse(in)["spectra"];
  }();
  return vectors;
}

std::vector<float> RowsOf(const nlohmann::json& matrix) {
  std::vector<float> rows;
  for (const auto& x : matrix["in_256ths"]) rows.push_back(x.get<float>() / 256);
  return rows;
}

TEST(ExplainSpectrum, SingularValuesAreThoseOfNumpy) {
  ASSERT_EQ(Vectors().size(), 20u);
  for (const auto& matrix : Vectors()) {
    const size_t width = matrix["width"], rank = matrix["rank"];
    const std::vector<double> found = SingularValues(RowsOf(matrix), width);
    ASSERT_EQ(found.size(), width);
    const double largest = matrix["singular"][0];
    for (size_t i = 0; i < width; ++i) {
      if (i < rank) {
        // The Gram matrix has their squares, exact to the last digits of the largest one's.
        const double known = matrix["singular"][i];
        EXPECT_NEAR(found[i], known, 1e-14 * largest * largest / known) << i << " of " << rank;
      } else {
        EXPECT_LE(found[i], 1e-7 * largest);
      }
    }
    EXPECT_NEAR(SpectrumOf(found).effective_rank, matrix["effective_rank"].get<double>(), 1e-4);
  }
}

TEST(ExplainSpectrum, TheirSquaresSumToThoseOfTheElements) {
  for (const auto& matrix : Vectors()) {
    double elements = 0, squares = 0;
    for (const float x : RowsOf(matrix)) elements += static_cast<double>(x) * static_cast<double>(x);
    for (const double s : SingularValues(RowsOf(matrix), matrix["width"])) squares += s * s;
    EXPECT_NEAR(squares, elements, 1e-13 * elements);
  }
}

TEST(ExplainSpectrum, ADiagonalHasItsOwnElements) {
  const std::vector<double> found = SingularValues({0, -3, 0, 0, 0, 0, 0, 5, 0.5f, 0, 0, 0}, 4);
  EXPECT_EQ(found, (std::vector<double>{5, 3, 0.5, 0}));
}

TEST(ExplainSpectrum, OfOneRankOneCounts) {
  std::vector<float> rows;
  for (int i = 1; i <= 10; ++i) rows.insert(rows.end(), {1.0f * i, -2.0f * i, 2.0f * i});
  const std::vector<double> found = SingularValues(rows, 3);
  EXPECT_NEAR(found[0], 3 * std::sqrt(385.0), 1e-12 * found[0]);
  const Spectrum spectrum = SpectrumOf(found);
  EXPECT_NEAR(spectrum.top_energy, 1, 1e-12);
  EXPECT_NEAR(spectrum.top_sum, 1, 1e-6);
  EXPECT_NEAR(spectrum.effective_rank, 1, 1e-5);
  EXPECT_EQ(spectrum.rank_90, 1);
}

// Hadamard's matrix: its columns are orthogonal and of one length, so no direction is above another.
TEST(ExplainSpectrum, OfOrthogonalColumnsAllCountAlike) {
  constexpr size_t kSize = 16;
  std::vector<float> rows;
  for (size_t i = 0; i < kSize; ++i) {
    for (size_t j = 0; j < kSize; ++j) {
      int bits = 0;
      for (size_t common = i & j; common != 0; common >>= 1) bits += common & 1;
      rows.push_back(bits % 2 == 0 ? 0.25f : -0.25f);
    }
  }
  const std::vector<double> found = SingularValues(rows, kSize);
  EXPECT_EQ(found, std::vector<double>(kSize, 1));
  const Spectrum spectrum = SpectrumOf(found);
  EXPECT_EQ(spectrum.normalized, found);
  EXPECT_EQ(spectrum.top_energy, 1.0 / kSize);
  EXPECT_EQ(spectrum.top_sum, 1.0 / kSize);
  EXPECT_NEAR(spectrum.effective_rank, kSize, 1e-12);
  EXPECT_EQ(spectrum.rank_90, 15);  // 14 of 16 are 87.5 %
}

TEST(ExplainSpectrum, SharesAreByHand) {
  const Spectrum spectrum = SpectrumOf({6, 2, 0});
  EXPECT_EQ(spectrum.normalized, (std::vector<double>{1, 1.0 / 3, 0}));
  EXPECT_NEAR(spectrum.top_energy, 0.9, 1e-15);
  EXPECT_NEAR(spectrum.top_sum, 0.75, 1e-15);
  EXPECT_NEAR(spectrum.effective_rank, std::pow(4 / 3.0, 0.75) * std::pow(4, 0.25), 1e-14);
  EXPECT_EQ(SpectrumOf({6, 3, 0}).rank_90, 2);
  EXPECT_EQ(SpectrumOf({6, 1, 0}).rank_90, 1);
}

TEST(ExplainSpectrum, NothingIsNothing) {
  for (const std::vector<float>& rows : {std::vector<float>(), std::vector<float>(12, 0.0f)}) {
    const std::vector<double> found = SingularValues(rows, 3);
    EXPECT_EQ(found, std::vector<double>(3, 0));
    const Spectrum spectrum = SpectrumOf(found);
    EXPECT_EQ(spectrum.normalized, found);
    EXPECT_EQ(spectrum.top_energy + spectrum.top_sum + spectrum.effective_rank + spectrum.rank_90, 0);
  }
}

// Neither the unit nor which side is longer matters.
TEST(ExplainSpectrum, ScalesAndTransposes) {
  for (const auto& matrix : Vectors()) {
    const size_t width = matrix["width"], rank = matrix["rank"];
    const std::vector<float> rows = RowsOf(matrix);
    const size_t n = rows.size() / width;
    std::vector<float> small, turned(rows.size());
    for (const float x : rows) small.push_back(std::ldexp(x, -100));
    for (size_t i = 0; i < rows.size(); ++i) turned[i % width * n + i / width] = rows[i];
    const std::vector<double> found = SingularValues(rows, width), scaled = SingularValues(small, width),
                              transposed = SingularValues(turned, n);
    for (size_t i = 0; i < rank; ++i) {
      EXPECT_EQ(std::ldexp(found[i], -100), scaled[i]);
      EXPECT_NEAR(found[i], transposed[i], 1e-14 * found[0] * found[0] / found[i]);
    }
  }
}

TEST(ExplainSpectrum, SumsAreWeighted) {
  Spectrum sum;
  AddSpectrum(SpectrumOf({2, 1}), 0.5, &sum);
  AddSpectrum(SpectrumOf({4, 0}), 0.5, &sum);
  EXPECT_EQ(sum.normalized, (std::vector<double>{1, 0.25}));
  EXPECT_NEAR(sum.top_energy, 0.9, 1e-15);
  EXPECT_NEAR(sum.top_sum, (2.0 / 3 + 1) / 2, 1e-15);
  EXPECT_EQ(sum.rank_90, 1.5);
}

}  // namespace
}  // namespace kvc::tool
