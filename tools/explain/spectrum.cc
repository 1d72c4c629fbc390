#include "tools/explain/spectrum.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

namespace kvc::tool {
namespace {

// Symmetric, [n, n].
class Symmetric {
 public:
  explicit Symmetric(size_t n) : n_(n), a_(n * n) {}
  size_t size() const { return n_; }
  double& At(size_t i, size_t j) { return a_[i * n_ + j]; }
  double norm() const { return std::sqrt(std::inner_product(a_.begin(), a_.end(), a_.begin(), 0.0)); }

  // Turns rows and columns p and q so that the element they share becomes 0.
  void Rotate(size_t p, size_t q) {
    const double shared = At(p, q), slope = (At(q, q) - At(p, p)) / (2 * shared),
                 t = std::copysign(1, slope) / (std::fabs(slope) + std::hypot(slope, 1)),
                 cos = 1 / std::hypot(t, 1), sin = t * cos;
    for (size_t k = 0; k < n_; ++k) {
      if (k == p || k == q) continue;
      const double to_p = At(p, k), to_q = At(q, k);
      At(p, k) = At(k, p) = cos * to_p - sin * to_q;
      At(q, k) = At(k, q) = sin * to_p + cos * to_q;
    }
    At(p, p) -= t * shared, At(q, q) += t * shared;
    At(p, q) = At(q, p) = 0;
  }

 private:
  size_t n_;
  std::vector<double> a_;
};

// Products of all pairs of the vectors of the shorter side: as large as the matrix has singular values.
Symmetric Gram(const std::vector<float>& rows, size_t width) {
  const size_t n = rows.size() / width, size = std::min(n, width);
  Symmetric gram(size);
  std::vector<double> x(size);
  for (size_t k = 0; k < std::max(n, width); ++k) {
    for (size_t i = 0; i < size; ++i)
      x[i] = static_cast<double>(n < width ? rows[i * width + k] : rows[k * width + i]);
    for (size_t i = 0; i < size; ++i) {
      for (size_t j = 0; j <= i; ++j) gram.At(i, j) += x[i] * x[j];
    }
  }
  for (size_t i = 0; i < size; ++i) {
    for (size_t j = 0; j < i; ++j) gram.At(j, i) = gram.At(i, j);
  }
  return gram;
}

// Jacobi's method, cyclic by row. It converges quadratically: a dozen sweeps are many.
std::vector<double> Eigenvalues(Symmetric a) {
  constexpr int kMostSweeps = 60;
  const double negligible = 1e-17 * a.norm();
  bool turned = true;
  for (int sweep = 0; turned && sweep < kMostSweeps; ++sweep) {
    turned = false;
    for (size_t p = 0; p + 1 < a.size(); ++p) {
      for (size_t q = p + 1; q < a.size(); ++q) {
        if (std::fabs(a.At(p, q)) <= negligible) continue;
        a.Rotate(p, q);
        turned = true;
      }
    }
  }
  std::vector<double> values;
  for (size_t i = 0; i < a.size(); ++i) values.push_back(a.At(i, i));
  return values;
}

}  // namespace

std::vector<double> SingularValues(const std::vector<float>& rows, size_t width) {
  std::vector<double> values = Eigenvalues(Gram(rows, width));
  for (double& v : values) v = std::sqrt(std::max(v, 0.0));  // 0 may come out as less
  std::sort(values.begin(), values.end(), std::greater<double>());
  values.resize(width);
  return values;
}

Spectrum SpectrumOf(const std::vector<double>& singular_values) {
  Spectrum out;
  out.normalized.resize(singular_values.size());
  const double largest = singular_values.empty() ? 0 : singular_values[0];
  if (largest <= 0) return out;
  double sum = 0, energy = 0;
  for (size_t i = 0; i < singular_values.size(); ++i) {
    const double share = singular_values[i] / largest;
    out.normalized[i] = share;
    sum += share, energy += share * share;
  }
  out.top_sum = 1 / sum, out.top_energy = 1 / energy;
  double entropy = 0, held = 0;
  for (const double share : out.normalized) {
    if (share > 0) entropy -= share / sum * std::log(share / sum);
    if (held < 0.9 * energy) ++out.rank_90;
    held += share * share;
  }
  out.effective_rank = std::exp(entropy);
  return out;
}

void AddSpectrum(const Spectrum& from, double weight, Spectrum* to) {
  to->normalized.resize(from.normalized.size());
  for (size_t i = 0; i < from.normalized.size(); ++i) to->normalized[i] += weight * from.normalized[i];
  to->top_energy += weight * from.top_energy, to->top_sum += weight * from.top_sum;
  to->effective_rank += weight * from.effective_rank, to->rank_90 += weight * from.rank_90;
}

}  // namespace kvc::tool
