// The oracle of matrix products: sums in double.
#pragma once
#include <gtest/gtest.h>

#include "tests/parity/cases.h"

namespace kvc::parity {

// Rounding of a sum in at least four lanes is below (terms / 4 + 16) eps times the sum of magnitudes; the
// products of codes are exact, so only the sums over groups round. What a least value takes off is rounded
// against both of the terms that it is the difference of. pairs: of rounded activations, which the oracle
// rounds too; products of two bf16 are exact.
inline void ExpectNearDouble(const MatMulData& data, const std::string& table, bool pairs = false) {
  const MatMulCase& c = data.shape;
  const double terms = c.group > 0 ? (HasBlocks(c.type) ? 8.0 : 4.0) * c.cols / c.group : c.cols;
  const double eps = std::ldexp(1, -24) * (terms / 4 + 16);
  std::vector<double> values(static_cast<size_t>(c.cols)), sizes(values.size());
  for (int32_t r = 0; r < c.rows; ++r) {
    for (size_t k = 0; k < values.size(); ++k) {
      values[k] = data.WeightValue(r, static_cast<int32_t>(k));
      sizes[k] = data.WeightSize(r, static_cast<int32_t>(k));
    }
    for (int32_t t = 0; t < c.n; ++t) {
      double sum = data.Bias(r), size = std::fabs(sum);
      for (size_t k = 0; k < values.size(); ++k) {
        const double x = data.Activation(t, static_cast<int32_t>(k), pairs);
        sum += x * values[k], size += std::fabs(x) * sizes[k];
      }
      const float got = data.y[static_cast<size_t>(t) * static_cast<size_t>(c.rows) + static_cast<size_t>(r)];
      ASSERT_LE(std::fabs(got - sum), eps * size)
          << table << ": " << data.Name() << ", token " << t << " row " << r;
    }
  }
}

}  // namespace kvc::parity
