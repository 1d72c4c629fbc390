// Which coalitions are measured, in which order, by whom; and what their utilities say.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tools/score/estimators.h"
#include "tools/score/work_log.h"

namespace kvc::tool {

struct ScorePlan {
  int32_t n_layers = 0, n_kv_heads = 0;
  std::vector<int32_t> layers;  // whose heads play, ascending; empty: all (players.h)
  bool exact = false;           // all 2^N coalitions instead of samples
  std::vector<int32_t> sizes;
  int32_t runs = 2;
  bool balanced = false;      // blocks of one permutation instead of one permutation a sample
  int32_t draw_examples = 0;  // each item is tried on so many examples of its own; 0 = on all
  uint64_t seed = 1;
  int32_t n_players() const {
    return (layers.empty() ? n_layers : static_cast<int32_t>(layers.size())) * n_kv_heads;
  }
};

constexpr int32_t kMostExactPlayers = 16;
// Of a plan, whether asked for or read from a log: beyond what any model or measurement has, and small enough
// that time and memory stay in proportion to the samples there are.
constexpr int32_t kMostPlayers = 1 << 14, kMostRegressionPlayers = 1 << 11, kMostSizes = 64, kMostRuns = 1024,
                  kMostSamples = 1 << 20;
constexpr int32_t kCheckInterval = 5;  // samples of each size between two looks at the stopping rule
constexpr int32_t kMostPoints = 200;   // of a convergence curve

Coalition CoalitionOf(const ScorePlan& plan, const WorkKey& key);
// Examples an item is tried on, ascending; empty = all.
std::vector<int32_t> ExamplesOf(const ScorePlan& plan, const WorkKey& key, int32_t n_examples);
Coalition Others(Coalition coalition);

// Work items of samples begin .. end - 1, by sample, run, size; all of them for the exact method.
std::vector<WorkKey> WorkItems(const ScorePlan& plan, uint32_t begin, uint32_t end);
int64_t CountWorkItems(const ScorePlan& plan, int64_t n_samples);  // of samples 0 .. n_samples - 1

// Throws UsageError: sizes that are none or too many, twice, or not between 1 and N - 1; too many players.
void CheckPlan(const ScorePlan& plan);
// Throws Failure: items that are not of this plan, or were not measured on n_examples examples (of those
// drawn, when it draws some). path: where they are from.
void CheckResults(const ScorePlan& plan, int32_t n_examples, const WorkResults& results,
                  const std::string& path);

struct Shard {
  int32_t index = 0, count = 1;  // item number n belongs to shard n % count
};
Shard ParseShard(const std::string& text);  // "2/4" is the second of four. Throws UsageError

struct ConvergencePoint {
  int64_t n_samples = 0;                      // of each size
  double mae = 0, spearman = 0, overlap = 0;  // between the first two runs; overlap of their lowest heads
};

// The fewest samples of each size and run after which every player can be told from the others: before them
// there are no scores, whatever is measured. Sampled plans only.
int32_t SamplesToTellApart(const ScorePlan& plan, const EstimateOptions& options);

// The fewest samples of each size and run with which every player is in `needed` coalitions of each size, of
// all runs together. kMostSamples + 1: more than that. Sampled plans only.
int32_t SamplesToReach(const ScorePlan& plan, int64_t needed);

struct ScoreReport {
  std::vector<double> scores;               // [N], mean of the runs
  std::vector<std::vector<double>> by_run;  // [run][N]
  std::vector<int64_t> n_samples;           // of each size, least of the runs
  std::vector<std::vector<double>> slices;  // [size][N], centred, mean of the runs; sampled plans
  int64_t n_items = 0;
  std::vector<ConvergencePoint> convergence;  // empty with one run
  double full = 0, none = 0;                  // exact only: U of all players, of none
};

// Sums in the order of the keys, so that the result does not depend on who measured what. Throws Failure "not
// enough samples". results as CheckResults wants them. Time is in proportion to items times heads, memory to
// heads times runs, of which each has an item; kRegression: heads squared and cubed.
ScoreReport MakeReport(const ScorePlan& plan, const WorkResults& results, const EstimateOptions& options);

// What the first two runs agree on as samples come in.
class CompareRuns {
 public:
  CompareRuns(const ScorePlan& plan, const EstimateOptions& options);
  // Of the samples below `end`, which must not fall from call to call; those seen before must not change.
  // False while a player has too few.
  bool Upto(uint32_t end, const WorkResults& results, ConvergencePoint* point);

 private:
  const ScorePlan& plan_;
  const EstimateOptions options_;
  std::vector<std::vector<SizeSums>> sums_;  // [run]
  uint32_t begin_ = 0;
};

}  // namespace kvc::tool
