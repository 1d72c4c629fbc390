#include "tools/score/estimators.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "tools/failure.h"
#include "tools/output.h"

namespace kvc::tool {
namespace {

// Solves A x = b in place, A symmetric with its lower half given, [N, N]. False when it has no single
// solution.
bool SolveSymmetric(std::vector<double>* a, std::vector<double>* b) {
  const size_t n = b->size();
  const auto at = [&](size_t i, size_t j) -> double& { return (*a)[i * n + j]; };
  double largest = 0;
  for (size_t i = 0; i < n; ++i) largest = std::max(largest, at(i, i));
  for (size_t i = 0; i < n; ++i) {  // Cholesky: A = L L^T
    for (size_t j = 0; j <= i; ++j) {
      double sum = at(i, j);
      for (size_t k = 0; k < j; ++k) sum -= at(i, k) * at(j, k);
      if (i == j && sum <= 1e-9 * largest) return false;
      at(i, j) = i == j ? std::sqrt(sum) : sum / at(j, j);
    }
  }
  for (size_t i = 0; i < n; ++i) {
    for (size_t k = 0; k < i; ++k) (*b)[i] -= at(i, k) * (*b)[k];
    (*b)[i] /= at(i, i);
  }
  for (size_t i = n; i-- > 0;) {
    for (size_t k = i + 1; k < n; ++k) (*b)[i] -= at(k, i) * (*b)[k];
    (*b)[i] /= at(i, i);
  }
  return true;
}

// Least squares u(S) = sum of b_i over S. With s = sum of b, a player's slice of that game is b_i plus the
// others' share of the rest, (j - 1) / (N - 1) (s - b_i), and the mean of all coalitions is s j / N.
std::vector<double> RegressionSlice(const SizeSums& s) {
  const size_t n = s.sum_in.size();
  std::vector<double> pairs, slice = s.sum_in;
  const bool enough = s.n_samples >= s.n_players;  // fewer equations than unknowns are not worth the work
  if (enough) pairs.assign(s.n_pairs.begin(), s.n_pairs.end());
  if (!enough || !SolveSymmetric(&pairs, &slice)) {
    throw Failure(
        Format("not enough samples: %lld of size %d do not tell %zu players apart; about %lld are needed",
               static_cast<long long>(s.n_samples), s.size, n,
               static_cast<long long>(SamplesNeeded(s.n_players, s.size, Variant::kRegression))));
  }
  const double mean = std::accumulate(slice.begin(), slice.end(), 0.0) / static_cast<double>(n);
  const double share = static_cast<double>(s.n_players - s.size) / (s.n_players - 1);
  for (double& value : slice) value = share * (value - mean);
  return slice;
}

// Whether coalitions with a player are all that counts.
bool OfOneHalf(Variant v) { return v == Variant::kLeft || OfSingleHeads(v); }

// The centred slice of every player (methods.md 3.4).
std::vector<double> CentredSlice(const SizeSums& s, Variant variant) {
  if (variant == Variant::kRegression) return RegressionSlice(s);
  const double n = s.n_players, share = (n - s.size) / n;
  const double mean_u = s.sum_u / static_cast<double>(s.n_samples);
  std::vector<double> slice(s.sum_in.size());
  for (size_t i = 0; i < slice.size(); ++i) {
    const double in = s.sum_in[i] / static_cast<double>(s.n_in[i]);
    if (OfOneHalf(variant)) {
      slice[i] = in - mean_u;
    } else if (variant == Variant::kBoth) {
      slice[i] = share * (in + s.sum_out[i] / static_cast<double>(s.n_out[i]));
    } else {
      slice[i] = (s.sum_in[i] + s.sum_out[i]) / static_cast<double>(s.n_in[i] + s.n_out[i]);
    }
  }
  return slice;
}

void CheckSamples(const SizeSums& s, Variant variant) {
  for (size_t i = 0; i < s.sum_in.size(); ++i) {
    const bool in_missing = s.n_in[i] == 0, out_missing = s.n_out[i] == 0;
    const bool missing = variant == Variant::kPooled ? in_missing && out_missing
                                                     : in_missing || (!OfOneHalf(variant) && out_missing);
    if (!missing) continue;
    throw Failure(Format(
        "not enough samples: player %zu has none of size %d after %lld; about %lld samples a size are needed",
        i, s.size, static_cast<long long>(s.n_samples),
        static_cast<long long>(SamplesNeeded(s.n_players, s.size, variant))));
  }
}

double StandardDeviation(const std::vector<double>& values) {
  const double n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n;
  double squares = 0;
  for (const double x : values) squares += (x - mean) * (x - mean);
  return std::sqrt(squares / n);
}

std::vector<double> Ranks(const std::vector<double>& values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    for (size_t i = begin; i < end; ++i) ranks[order[i]] = static_cast<double>(begin + end - 1) / 2;
    begin = end;
  }
  return ranks;
}

double Binomial(int32_t n, int32_t k) {
  double value = 1;
  for (int32_t i = 1; i <= k; ++i) value = value * (n - k + i) / i;
  return value;
}

int32_t BitCount(size_t bits) {
  int32_t count = 0;
  for (; bits != 0; bits &= bits - 1) ++count;
  return count;
}

void AppendOnce(int32_t value, std::vector<int32_t>* list) {
  if (std::find(list->begin(), list->end(), value) == list->end()) list->push_back(value);
}

}  // namespace

SizeSums::SizeSums(int32_t players, int32_t coalition_size, bool with_pairs)
    : n_players(players),
      size(coalition_size),
      sum_in(static_cast<size_t>(players)),
      sum_out(sum_in.size()),
      n_in(sum_in.size()),
      n_out(sum_in.size()),
      n_pairs(with_pairs ? sum_in.size() * sum_in.size() : 0) {}

void SizeSums::Add(const Coalition& coalition, double u) {
  for (size_t i = 0; i < coalition.size(); ++i) {
    if (coalition[i] != 0) {
      sum_in[i] += u, ++n_in[i];
      if (n_pairs.empty()) continue;
      for (size_t k = 0; k <= i; ++k) n_pairs[i * coalition.size() + k] += coalition[k];
    } else {
      sum_out[i] -= u, ++n_out[i];
    }
  }
  sum_u += u;
  ++n_samples;
}

double Contribution(Variant variant, double in, double out) {
  return variant == Variant::kAlone ? in : variant == Variant::kLeftOut ? -out : in - out;
}

std::vector<double> EstimateScores(const std::vector<SizeSums>& sizes, const EstimateOptions& options) {
  if (sizes.empty()) throw Failure("not enough samples: none was taken");
  std::vector<double> total(static_cast<size_t>(sizes[0].n_players));
  for (const SizeSums& s : sizes) {
    if (options.variant == Variant::kPooled && 2 * s.size != s.n_players) {
      throw UsageError(
          Format("pooled scores need coalitions of half the players: size %d of %d mixes two slices", s.size,
                 s.n_players));
    }
    if (OfSingleHeads(options.variant) && s.size != 1)
      throw UsageError(Format("scores of single heads need coalitions of one, these have %d", s.size));
    CheckSamples(s, options.variant);
    std::vector<double> slice = CentredSlice(s, options.variant);
    const double deviation = options.standardise ? StandardDeviation(slice) : 1;
    const bool has_offset = !options.centre && options.variant != Variant::kPooled;
    const double offset = has_offset ? s.sum_u / static_cast<double>(s.n_samples) : 0;
    for (size_t i = 0; i < slice.size(); ++i) total[i] += (deviation > 0 ? slice[i] / deviation : 0) + offset;
  }
  for (double& value : total) value /= static_cast<double>(sizes.size());
  return total;
}

int64_t SamplesForError(double epsilon, double delta, int32_t n_sizes, int32_t n_players) {
  const double union_of = 2.0 * n_sizes * n_players;
  return static_cast<int64_t>(std::ceil(2 / (epsilon * epsilon) * std::log(union_of / delta)));
}

int64_t SamplesNeeded(int32_t n_players, int32_t size, Variant variant) {
  const double n = n_players, absent = 1 - size / n;
  const double rest =
      OfOneHalf(variant) ? absent : std::max(absent, 1 - absent);  // the likelier way to stay empty
  const int64_t reached =
      rest <= 0 ? 1 : static_cast<int64_t>(std::ceil(std::log(0.01 / n) / std::log(rest)));
  return variant == Variant::kRegression ? std::max(reached, int64_t{2} * n_players) : reached;
}

std::vector<double> ShapleyByEnumeration(const std::vector<double>& utility, int32_t n_players) {
  std::vector<double> values(static_cast<size_t>(n_players));
  for (size_t set = 0; set < utility.size(); ++set) {
    const double weight = 1 / (Binomial(n_players - 1, std::min(BitCount(set), n_players - 1)) * n_players);
    for (size_t i = 0; i < values.size(); ++i) {
      if ((set >> i & 1) == 0) values[i] += (utility[set | size_t{1} << i] - utility[set]) * weight;
    }
  }
  return values;
}

std::vector<std::vector<double>> SlicesByEnumeration(const std::vector<double>& utility, int32_t n_players,
                                                     std::vector<double>* slice_means) {
  const size_t n = static_cast<size_t>(n_players), all = utility.size() - 1;
  std::vector<std::vector<double>> slices(n, std::vector<double>(n));
  if (slice_means != nullptr) slice_means->assign(n, 0.0);
  for (size_t set = 1; set < utility.size(); ++set) {
    const int32_t size = BitCount(set);
    const double u = utility[set] - utility[all ^ set];
    const double with_player = Binomial(n_players - 1, size - 1);
    if (slice_means != nullptr)
      (*slice_means)[static_cast<size_t>(size) - 1] += u / Binomial(n_players, size);
    for (size_t i = 0; i < n; ++i) {
      if ((set >> i & 1) != 0) slices[i][static_cast<size_t>(size) - 1] += u / with_player;
    }
  }
  return slices;
}

double MeanAbsoluteDifference(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::fabs(a[i] - b[i]);
  return a.empty() ? 0 : sum / static_cast<double>(a.size());
}

double Spearman(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> x = Ranks(a), y = Ranks(b);
  const double mean = (static_cast<double>(x.size()) - 1) / 2;
  double xy = 0, xx = 0, yy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean) * (y[i] - mean), xx += (x[i] - mean) * (x[i] - mean),
        yy += (y[i] - mean) * (y[i] - mean);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : 0;
}

std::vector<int32_t> Ranking(const std::vector<double>& scores) {
  std::vector<int32_t> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
  });
  return order;
}

double LowestOverlap(const std::vector<double>& a, const std::vector<double>& b, int32_t count) {
  const auto lowest = [count](const std::vector<double>& scores) {
    std::vector<double> negated;
    for (const double s : scores) negated.push_back(-s);
    std::vector<int32_t> players = Ranking(negated);
    players.resize(std::min(players.size(), static_cast<size_t>(count)));
    std::sort(players.begin(), players.end());
    return players;
  };
  const std::vector<int32_t> x = lowest(a), y = lowest(b);
  std::vector<int32_t> common;
  std::set_intersection(x.begin(), x.end(), y.begin(), y.end(), std::back_inserter(common));
  return x.empty() ? 1 : static_cast<double>(common.size()) / static_cast<double>(x.size());
}

std::vector<int32_t> DefaultSizes(int32_t n_players) {
  std::vector<int32_t> sizes;
  for (int32_t eighths = 1; eighths <= 4; ++eighths) {
    AppendOnce(std::max(1, static_cast<int32_t>(std::lround(n_players * eighths / 8.0))), &sizes);
  }
  return sizes;
}

std::vector<int32_t> AlphaCandidates(int32_t n_players) {
  std::vector<int32_t> alphas;
  for (const int32_t alpha : {1, 5, 10, 15, 20, 30, 40}) {
    const int32_t scaled = static_cast<int32_t>((int64_t{2} * alpha * n_players + 256) / 512);
    AppendOnce(std::clamp(scaled, 1, std::max(1, n_players - 1)), &alphas);
  }
  return alphas;
}

}  // namespace kvc::tool
