// How much of the space of a cache's keys, and of its values, is used: their singular values, which is why
// WeightedKV (Yuan et al., arXiv 2503.01330, figure 1) drops keys and merges values. docs/quality.md says
// what the numbers mean.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvc::tool {

// Of the matrix [n, width], row major, all of it finite: [width], descending, 0 from the n-th on. What is
// below 1e-7 of the largest is rounding.
std::vector<double> SingularValues(const std::vector<float>& rows, size_t width);

// Of one matrix, or sums over several. All of a matrix of zeros is 0.
struct Spectrum {
  std::vector<double> normalized;  // [width] singular values over the largest
  double top_energy = 0;           // share of the squares' sum that the largest has
  double top_sum = 0;              // share of the sum that the largest has
  double effective_rank = 0;       // exp of the entropy of the singular values over their sum
  double rank_90 = 0;              // fewest singular values that have 90 % of the squares' sum
};
Spectrum SpectrumOf(const std::vector<double>& singular_values);
void AddSpectrum(const Spectrum& from, double weight, Spectrum* to);

}  // namespace kvc::tool
