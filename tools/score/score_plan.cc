#include "tools/score/score_plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "tools/failure.h"
#include "tools/score/random.h"

namespace kvc::tool {
namespace {

std::vector<SizeSums> EmptySums(const ScorePlan& plan, const EstimateOptions& options) {
  const bool with_pairs = options.variant == Variant::kRegression;
  if (with_pairs && plan.n_players() > kMostRegressionPlayers) {
    throw Failure(Format("--variant regression is for at most %d heads, these are %d", kMostRegressionPlayers,
                         plan.n_players()));
  }
  std::vector<SizeSums> all;
  for (const int32_t size : plan.sizes) all.emplace_back(plan.n_players(), size, with_pairs);
  return all;
}

// Adds samples begin .. end - 1 of one run, in order; sizes as in the plan.
void AddSamples(const ScorePlan& plan, const WorkResults& results, Variant variant, uint32_t run,
                uint32_t begin, uint32_t end, std::vector<SizeSums>* all) {
  for (SizeSums& sums : *all) {
    const uint32_t j = static_cast<uint32_t>(sums.size);
    for (auto it = results.lower_bound({run, j, begin});
         it != results.end() && it->first < WorkKey{run, j, end}; ++it) {
      sums.Add(CoalitionOf(plan, it->first), Contribution(variant, it->second.in, it->second.out));
    }
  }
}

ScoreReport ExactReport(const ScorePlan& plan, const WorkResults& results) {
  const size_t n_sets = size_t{1} << plan.n_players();
  std::vector<double> utility(n_sets);
  for (const auto& [key, result] : results) {
    utility[key.sample] = result.in;
    utility[n_sets - 1 - key.sample] = result.out;
  }
  if (results.size() != n_sets / 2) {
    throw Failure(Format("not enough samples: %zu of %zu pairs of coalitions are measured", results.size(),
                         n_sets / 2));
  }
  ScoreReport report;
  report.scores = ShapleyByEnumeration(utility, plan.n_players());
  report.by_run = {report.scores};
  report.n_items = static_cast<int64_t>(results.size());
  report.n_samples = {static_cast<int64_t>(n_sets)};
  report.full = utility[n_sets - 1], report.none = utility[0];
  return report;
}

}  // namespace

Coalition Others(Coalition coalition) {
  for (uint8_t& member : coalition) member = member == 0;
  return coalition;
}

Coalition CoalitionOf(const ScorePlan& plan, const WorkKey& key) {
  const size_t n = static_cast<size_t>(plan.n_players());
  Coalition coalition(n);
  if (plan.exact) {
    for (size_t i = 0; i < n; ++i) coalition[i] = static_cast<uint8_t>(key.sample >> i & 1);
    return coalition;
  }
  const uint32_t n_blocks = plan.balanced ? static_cast<uint32_t>(n) / key.size : 1;
  const std::vector<int32_t> order =
      Permutation(plan.seed, key.run, key.size, key.sample / n_blocks, plan.n_players());
  const size_t begin = size_t{key.sample % n_blocks} * key.size;
  for (size_t i = begin; i < begin + key.size; ++i) coalition[static_cast<size_t>(order[i])] = 1;
  return coalition;
}

std::vector<int32_t> ExamplesOf(const ScorePlan& plan, const WorkKey& key, int32_t n_examples) {
  if (plan.draw_examples == 0 || plan.draw_examples >= n_examples) return {};
  // Permutations of coalitions use blocks from 0; these lie in the upper half of the sample numbers.
  constexpr uint32_t kExamples = 0x80000000u;
  std::vector<int32_t> order = Permutation(plan.seed, key.run, key.size, key.sample | kExamples, n_examples);
  order.resize(static_cast<size_t>(plan.draw_examples));
  std::sort(order.begin(), order.end());
  return order;
}

std::vector<WorkKey> WorkItems(const ScorePlan& plan, uint32_t begin, uint32_t end) {
  std::vector<WorkKey> items;
  if (plan.exact) {
    // One of each pair of complements: the one without the last player.
    for (uint32_t set = 0; set < uint32_t{1} << (plan.n_players() - 1); ++set) {
      uint32_t size = 0;
      for (uint32_t bits = set; bits != 0; bits &= bits - 1) ++size;
      items.push_back({0, size, set});
    }
    return items;
  }
  for (uint32_t sample = begin; sample < end; ++sample) {
    for (int32_t run = 0; run < plan.runs; ++run) {
      for (const int32_t size : plan.sizes)
        items.push_back({static_cast<uint32_t>(run), static_cast<uint32_t>(size), sample});
    }
  }
  return items;
}

int64_t CountWorkItems(const ScorePlan& plan, int64_t n_samples) {
  if (plan.exact) return int64_t{1} << (plan.n_players() - 1);
  return n_samples * plan.runs * static_cast<int64_t>(plan.sizes.size());
}

void CheckPlan(const ScorePlan& plan) {
  const int32_t n = plan.n_players();
  if (n < 1 || n > kMostPlayers)
    throw UsageError(Format("a measurement of %d heads; at most %d are possible", n, kMostPlayers));
  if (plan.exact) return;
  if (plan.sizes.empty() || plan.sizes.size() > static_cast<size_t>(kMostSizes))
    throw UsageError(Format("%zu sizes of coalitions; 1 to %d are possible", plan.sizes.size(), kMostSizes));
  for (const int32_t size : plan.sizes) {
    if (size < 1 || size >= n)
      throw UsageError(Format("--sizes: coalitions have 1 to %d of the %d heads", n - 1, n));
    if (std::count(plan.sizes.begin(), plan.sizes.end(), size) > 1)
      throw UsageError(Format("--sizes: %d stands twice", size));
  }
}

void CheckResults(const ScorePlan& plan, int32_t n_examples, const WorkResults& results,
                  const std::string& path) {
  if (plan.draw_examples > 0) n_examples = std::min(n_examples, plan.draw_examples);
  for (const auto& [key, result] : results) {
    bool good = result.n_examples == n_examples;
    if (plan.exact) {
      uint32_t size = 0;
      for (uint32_t bits = key.sample; bits != 0; bits &= bits - 1) ++size;
      good = good && key.run == 0 && key.size == size && key.sample < CountWorkItems(plan, 0);
    } else {
      good = good && key.run < static_cast<uint32_t>(plan.runs) &&
             key.sample < static_cast<uint32_t>(kMostSamples) &&
             std::count(plan.sizes.begin(), plan.sizes.end(), static_cast<int32_t>(key.size)) == 1;
    }
    if (good) continue;
    throw Failure(Format("%s: run %u, size %u, sample %u on %d examples is no item of this measurement",
                         path.c_str(), key.run, key.size, key.sample, result.n_examples));
  }
}

Shard ParseShard(const std::string& text) {
  int32_t index = 0, count = 0;
  const char* const end = text.data() + text.size();
  const auto part = std::from_chars(text.data(), end, index);
  const bool two = part.ec == std::errc() && part.ptr != end && *part.ptr == '/';
  const auto whole = two ? std::from_chars(part.ptr + 1, end, count) : part;
  if (!two || whole.ec != std::errc() || whole.ptr != end || index < 1 || index > count) {
    throw UsageError("--shard \"" + text + "\": expected I/N with I from 1 to N, such as 2/4");
  }
  return {index - 1, count};
}

CompareRuns::CompareRuns(const ScorePlan& plan, const EstimateOptions& options)
    : plan_(plan), options_(options), sums_(2, EmptySums(plan, options)) {}

bool CompareRuns::Upto(uint32_t end, const WorkResults& results, ConvergencePoint* point) {
  std::vector<std::vector<double>> scores;
  int64_t least = INT64_MAX;
  for (uint32_t run = 0; run < 2; ++run)
    AddSamples(plan_, results, options_.variant, run, begin_, end, &sums_[run]);
  begin_ = end;
  for (const std::vector<SizeSums>& sums : sums_) {
    for (const SizeSums& s : sums) least = std::min(least, s.n_samples);
    try {
      scores.push_back(EstimateScores(sums, options_));
    } catch (const Failure&) {
      return false;
    }
  }
  const std::vector<int32_t> alphas = AlphaCandidates(plan_.n_players());
  *point = {least, MeanAbsoluteDifference(scores[0], scores[1]), Spearman(scores[0], scores[1]),
            LowestOverlap(scores[0], scores[1], alphas[alphas.size() / 2])};
  return true;
}

int32_t SamplesToTellApart(const ScorePlan& plan, const EstimateOptions& options) {
  const int32_t n = plan.n_players(), least = options.variant == Variant::kRegression ? n : 1;
  std::vector<std::vector<SizeSums>> runs(static_cast<size_t>(plan.runs), EmptySums(plan, options));
  for (int32_t sample = 0;; ++sample) {
    for (size_t run = 0; run < runs.size(); ++run) {
      for (SizeSums& sums : runs[run]) {
        sums.Add(CoalitionOf(plan, {static_cast<uint32_t>(run), static_cast<uint32_t>(sums.size),
                                    static_cast<uint32_t>(sample)}),
                 0);
      }
    }
    if (sample + 1 < least) continue;
    try {
      for (const std::vector<SizeSums>& sums : runs) EstimateScores(sums, options);
      return sample + 1;
    } catch (const Failure&) {  // not yet
    }
  }
}

int32_t SamplesToReach(const ScorePlan& plan, int64_t needed) {
  // Scores are means of the runs' means: of n_r samples a run they spread as those of R^2 / sum(1 / n_r)
  // would.
  const size_t n_players = static_cast<size_t>(plan.n_players());
  std::vector<std::vector<int64_t>> counts(plan.sizes.size() * static_cast<size_t>(plan.runs),
                                           std::vector<int64_t>(n_players));
  for (int32_t sample = 0; sample < kMostSamples; ++sample) {
    double least = INFINITY;
    for (size_t s = 0; s < plan.sizes.size(); ++s) {
      std::vector<double> inverse(n_players);
      for (int32_t run = 0; run < plan.runs; ++run) {
        const Coalition members =
            CoalitionOf(plan, {static_cast<uint32_t>(run), static_cast<uint32_t>(plan.sizes[s]),
                               static_cast<uint32_t>(sample)});
        std::vector<int64_t>& own = counts[s * static_cast<size_t>(plan.runs) + static_cast<size_t>(run)];
        for (size_t i = 0; i < n_players; ++i) inverse[i] += 1 / static_cast<double>(own[i] += members[i]);
      }
      least = std::min(least,
                       double{1} * plan.runs * plan.runs / *std::max_element(inverse.begin(), inverse.end()));
    }
    if (least * (1 + 1e-12) >= static_cast<double>(needed)) return sample + 1;
  }
  return kMostSamples + 1;
}

ScoreReport MakeReport(const ScorePlan& plan, const WorkResults& results, const EstimateOptions& options) {
  if (plan.exact) return ExactReport(plan, results);
  for (int32_t run = 0; run < plan.runs; ++run) {
    for (const int32_t size : plan.sizes) {
      const WorkKey first = {static_cast<uint32_t>(run), static_cast<uint32_t>(size), 0};
      const auto found = results.lower_bound(first);
      if (found == results.end() || found->first.run != first.run || found->first.size != first.size)
        throw Failure(Format("not enough samples: there is none of size %d in run %d", size, run));
    }
  }
  ScoreReport report;
  report.n_items = static_cast<int64_t>(results.size());
  report.scores.assign(static_cast<size_t>(plan.n_players()), 0.0);
  uint32_t end = 0;
  for (const auto& [key, result] : results) end = std::max(end, key.sample + 1);
  for (int32_t run = 0; run < plan.runs; ++run) {
    std::vector<SizeSums> sums = EmptySums(plan, options);
    AddSamples(plan, results, options.variant, static_cast<uint32_t>(run), 0, end, &sums);
    for (size_t i = 0; i < sums.size(); ++i) {
      if (run == 0) report.n_samples.push_back(sums[i].n_samples);
      report.n_samples[i] = std::min(report.n_samples[i], sums[i].n_samples);
    }
    report.by_run.push_back(EstimateScores(sums, options));
    report.slices.resize(sums.size(), std::vector<double>(report.scores.size()));
    for (size_t s = 0; s < sums.size(); ++s) {
      const std::vector<double> slice = EstimateScores({sums[s]}, {options.variant, true, false});
      for (size_t i = 0; i < slice.size(); ++i) report.slices[s][i] += slice[i] / plan.runs;
    }
    for (size_t i = 0; i < report.scores.size(); ++i) report.scores[i] += report.by_run.back()[i] / plan.runs;
  }
  ConvergencePoint point;
  CompareRuns compare(plan, options);
  // Samples that are far apart in number have no more points than samples: looking costs as much as adding.
  const size_t n_numbers = 1 + results.size() / (static_cast<size_t>(plan.runs) * plan.sizes.size());
  const uint32_t most = static_cast<uint32_t>(std::min<size_t>(kMostPoints, n_numbers));
  const uint32_t step = kCheckInterval * (1 + end / (kCheckInterval * most));
  for (uint32_t at = 0; plan.runs >= 2 && at < end;) {
    at = std::min(end, at + step);
    if (compare.Upto(at, results, &point)) report.convergence.push_back(point);
  }
  return report;
}

}  // namespace kvc::tool
