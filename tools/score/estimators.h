// From complementary contributions to head scores (methods.md 3.2 to 3.6). Players are KV heads 0 .. N-1, a
// coalition is the set that keeps its cache, u(S) = U(S) - U(the others).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace kvc::tool {

using Coalition = std::vector<uint8_t>;  // [N], 1 = keeps its cache

// Sums over the sampled coalitions of one size.
class SizeSums {
 public:
  // with_pairs: count the pairs too, which only kRegression looks at and which take N * N numbers.
  SizeSums(int32_t n_players, int32_t size, bool with_pairs = true);
  void Add(const Coalition& coalition, double u);

  const int32_t n_players, size;
  int64_t n_samples = 0;
  double sum_u = 0;
  std::vector<double> sum_in, sum_out;  // [N] of u over coalitions with the player; of -u over those without
  std::vector<int64_t> n_in, n_out;     // [N]
  std::vector<int64_t> n_pairs;         // [N, N], j <= i: coalitions with both players; empty: not counted
};

enum class Variant {
  kLeft,    // coalitions with the player only, as the paper
  kBoth,    // and those without, by the complement identity: about (1 - j/N) of the variance
  kPooled,  // both halves as one mean; sizes N/2 only
  // Own: the additive game nearest to the samples (least squares), whose slices are known exactly. The same
  // limit as the others, as the nearest additive game over all coalitions of a size has the slices of the
  // game itself; but whether a strong player happened to be in a weak one's samples no longer blurs the weak
  // one.
  kRegression,
  // Of single heads, coalitions of one: what a head is worth when all others are masked, U({i}), and what the
  // others lose without it, -U(all but i). Neither is a Shapley value; complementary contributions of size 1
  // are the sum of both.
  kAlone,
  kLeftOut,
};
inline bool OfSingleHeads(Variant v) { return v == Variant::kAlone || v == Variant::kLeftOut; }

// What a coalition counts, of its utility and of that of all others.
double Contribution(Variant variant, double in, double out);

struct EstimateOptions {
  Variant variant = Variant::kBoth;
  bool centre = true;        // without the offset that all players of a slice share
  bool standardise = false;  // each centred slice over its standard deviation
};

// Sliced Shapley values [N] from one SizeSums a size. Throws UsageError for `pooled` at a size other than
// N/2 and for single heads at one other than 1, Failure "not enough samples", with the count that will do,
// when a player has none.
std::vector<double> EstimateScores(const std::vector<SizeSums>& sizes, const EstimateOptions& options);

// Samples of a size after which all of N players are most likely (99 %) in some coalition.
int64_t SamplesNeeded(int32_t n_players, int32_t size, Variant variant);

// Samples with a player that every slice needs so that, with a probability of 1 - delta, no mean over such
// samples of any of n_players (kLeft, offset included) is further than epsilon from its sliced Shapley value:
// Hoeffding for u in
// [-1, 1] and a union over n_sizes slices and the players (theorem 1 of CoKV; methods.md 3.5).
int64_t SamplesForError(double epsilon, double delta, int32_t n_sizes, int32_t n_players);

// Exact values from all 2^N utilities, by bit mask. N at most 24.
std::vector<double> ShapleyByEnumeration(const std::vector<double>& utility, int32_t n_players);
// Slices [N][size - 1] and, if wanted, their means over all coalitions [N].
std::vector<std::vector<double>> SlicesByEnumeration(const std::vector<double>& utility, int32_t n_players,
                                                     std::vector<double>* slice_means = nullptr);

double MeanAbsoluteDifference(const std::vector<double>& a, const std::vector<double>& b);
// Rank correlation; equal values share their mean rank. 0 when one side is constant.
double Spearman(const std::vector<double>& a, const std::vector<double>& b);
// Share of the `count` lowest players of a that are among those of b; equal scores: lower index first.
double LowestOverlap(const std::vector<double>& a, const std::vector<double>& b, int32_t count);
// Players by score, best first; equal scores: lower index first.
std::vector<int32_t> Ranking(const std::vector<double>& scores);

// {N/8, N/4, 3N/8, N/2}, at least 1, each once.
std::vector<int32_t> DefaultSizes(int32_t n_players);
// {1, 5, 10, 15, 20, 30, 40} for N = 256, scaled, rounded half up, in 1 .. N-1, each once.
std::vector<int32_t> AlphaCandidates(int32_t n_players);

}  // namespace kvc::tool
