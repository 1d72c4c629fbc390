// Work items: who does which, what their coalitions are, and that reports do not depend on the order of the
// work.
#include "tools/score/score_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <numeric>
#include <optional>
#include <set>

#include "tests/support/tiny_model.h"
#include "tools/failure.h"
#include "tools/score/examples.h"
#include "tools/score/headkv.h"
#include "tools/score/players.h"
#include "tools/score/random.h"
#include "tools/score/score_file.h"

namespace kvc::tool {
namespace {

ScorePlan Plan(int32_t n_layers = 3, int32_t n_kv_heads = 4) {
  ScorePlan plan;
  plan.n_layers = n_layers, plan.n_kv_heads = n_kv_heads, plan.sizes = {3, 6};
  return plan;
}

int32_t Size(const Coalition& coalition) { return std::accumulate(coalition.begin(), coalition.end(), 0); }

// A game with interactions: heads 0 and 1 work together, the others add a little each.
double Utility(const Coalition& c) {
  double u = c[0] && c[1] ? 0.5 : 0;
  for (size_t i = 2; i < c.size(); ++i) u += 0.01 * static_cast<double>(i) * c[i];
  return u;
}

WorkResults Measure(const ScorePlan& plan, const std::vector<WorkKey>& items) {
  WorkResults results;
  for (const WorkKey& key : items) {
    const Coalition coalition = CoalitionOf(plan, key);
    results[key] = {1, Utility(coalition), Utility(Others(coalition))};
  }
  return results;
}

TEST(ScorePlan, CoalitionsHaveTheirSizeAndComplement) {
  const ScorePlan plan = Plan();
  for (const WorkKey& key : WorkItems(plan, 0, 20)) {
    const Coalition coalition = CoalitionOf(plan, key);
    EXPECT_EQ(Size(coalition), static_cast<int32_t>(key.size));
    EXPECT_EQ(Size(Others(coalition)), 12 - static_cast<int32_t>(key.size));
    EXPECT_EQ(coalition, CoalitionOf(plan, key));  // anyone can make it again
  }
}

TEST(ScorePlan, BalancedSamplesReachEveryPlayerEquallyOften) {
  ScorePlan plan = Plan();
  plan.balanced = true;
  std::vector<int> counts(12);
  for (uint32_t sample = 0; sample < 8; ++sample) {
    const Coalition coalition = CoalitionOf(plan, {0, 3, sample});
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += coalition[i];
  }
  EXPECT_EQ(counts, std::vector<int>(12, 2));
}

TEST(ScorePlan, ItemsAreEachOnceAndShardsShareThem) {
  const ScorePlan plan = Plan();
  const std::vector<WorkKey> items = WorkItems(plan, 0, 10);
  EXPECT_EQ(items.size(), 10u * 2 * 2);
  EXPECT_EQ(std::set<WorkKey>(items.begin(), items.end()).size(), items.size());
  EXPECT_EQ(ParseShard("2/4").index, 1);
  EXPECT_EQ(ParseShard("2/4").count, 4);
  for (const char* wrong : {"0/4", "5/4", "2", "2/", "a/b", "2/4x", "-1/2", ""})
    EXPECT_THROW(ParseShard(wrong), UsageError) << wrong;
}

TEST(ScorePlan, DrawnExamplesDifferFromItemToItem) {
  ScorePlan plan = Plan();
  EXPECT_TRUE(ExamplesOf(plan, {0, 3, 0}, 10).empty());  // all
  plan.draw_examples = 2;
  std::vector<int> counts(10);
  for (uint32_t sample = 0; sample < 500; ++sample) {
    const std::vector<int32_t> examples = ExamplesOf(plan, {0, 3, sample}, 10);
    ASSERT_EQ(examples.size(), 2u);
    EXPECT_LT(examples[0], examples[1]);
    for (const int32_t e : examples) ++counts[static_cast<size_t>(e)];
  }
  for (const int count : counts) EXPECT_NEAR(count, 100, 50);
}

TEST(ScorePlan, ReportsFindTheHeadsThatMatter) {
  const ScorePlan plan = Plan();
  const ScoreReport report = MakeReport(plan, Measure(plan, WorkItems(plan, 0, 400)), {});
  const std::vector<int32_t> best = Ranking(report.scores);
  EXPECT_EQ(std::set<int32_t>(best.begin(), best.begin() + 2), (std::set<int32_t>{0, 1}));
  EXPECT_EQ(report.n_samples, (std::vector<int64_t>{400, 400}));
  ASSERT_FALSE(report.convergence.empty());
  EXPECT_EQ(report.convergence.back().n_samples, 400);
  EXPECT_LT(report.convergence.back().mae, report.convergence.front().mae);
  EXPECT_LT(report.convergence.back().mae, 1.0 / plan.n_players());
}

TEST(ScorePlan, TellsHowManySamplesAreNeeded) {
  for (const Variant variant : {Variant::kLeft, Variant::kBoth, Variant::kRegression}) {
    for (const bool balanced : {false, true}) {
      ScorePlan plan = Plan();
      plan.balanced = balanced;
      const EstimateOptions options{variant, true, false};
      const int32_t needed = SamplesToTellApart(plan, options);
      const auto report = [&](int32_t n) {
        return MakeReport(plan, Measure(plan, WorkItems(plan, 0, static_cast<uint32_t>(n))), options);
      };
      EXPECT_EQ(report(needed).scores.size(), 12u);
      EXPECT_THROW(report(needed - 1), Failure);
      EXPECT_LE(needed, 10 * plan.n_players());
    }
  }
}

// A score is the mean of what the runs say, each a mean itself: how many samples that is worth.
TEST(ScorePlan, SamplesToReachAreTheFewestThatDo) {
  for (const auto& [needed, runs] : {std::pair(1, 2), {7, 2}, {60, 2}, {55, 5}}) {
    ScorePlan plan = Plan();
    plan.runs = runs;
    const int32_t samples = SamplesToReach(plan, needed);
    const auto least = [&](int32_t n) {
      double lowest = INFINITY;
      for (const int32_t size : plan.sizes) {
        std::vector<std::vector<double>> counts(static_cast<size_t>(plan.n_players()),
                                                std::vector<double>(static_cast<size_t>(plan.runs)));
        for (const WorkKey& key : WorkItems(plan, 0, static_cast<uint32_t>(n))) {
          const Coalition members = CoalitionOf(plan, key);
          for (size_t i = 0; key.size == static_cast<uint32_t>(size) && i < members.size(); ++i)
            counts[i][key.run] += members[i];
        }
        for (const std::vector<double>& of_runs : counts) {
          double variance = 0;
          for (const double count : of_runs) variance += 1 / (count * plan.runs * plan.runs);
          lowest = std::min(lowest, 1 / variance);
        }
      }
      return lowest * (1 + 1e-12);
    };
    EXPECT_GE(least(samples), needed);
    EXPECT_LT(least(samples - 1), needed);
  }
}

// The mean of the slices is the score without what all heads share.
TEST(ScorePlan, SlicesAreThePartsOfTheScores) {
  const ScorePlan plan = Plan();
  for (const Variant variant : {Variant::kLeft, Variant::kBoth, Variant::kRegression}) {
    const ScoreReport report =
        MakeReport(plan, Measure(plan, WorkItems(plan, 0, 200)), {variant, true, false});
    ASSERT_EQ(report.slices.size(), plan.sizes.size());
    for (size_t i = 0; i < report.scores.size(); ++i) {
      double mean = 0;
      for (const std::vector<double>& slice : report.slices)
        mean += slice[i] / static_cast<double>(plan.sizes.size());
      EXPECT_NEAR(mean, report.scores[i], 1e-12);
    }
  }
}

// Filled in another order, or merged from parts, the sums are the same bits.
TEST(ScorePlan, ReportsDoNotDependOnTheOrderOfWork) {
  const ScorePlan plan = Plan();
  std::vector<WorkKey> items = WorkItems(plan, 0, 60);
  const std::vector<double> expected = MakeReport(plan, Measure(plan, items), {}).scores;
  std::reverse(items.begin(), items.end());
  EXPECT_EQ(MakeReport(plan, Measure(plan, items), {}).scores, expected);
  WorkResults merged;
  for (size_t shard = 0; shard < 4; ++shard) {
    std::vector<WorkKey> part;
    for (size_t i = shard; i < items.size(); i += 4) part.push_back(items[i]);
    MergeResults(Measure(plan, part), "part", &merged);
  }
  EXPECT_EQ(MakeReport(plan, merged, {}).scores, expected);
}

TEST(ScorePlan, ExactValuesOfAllCoalitions) {
  ScorePlan plan = Plan(2, 4);
  plan.exact = true, plan.sizes.clear(), plan.runs = 1;
  WorkResults results = Measure(plan, WorkItems(plan, 0, 0));
  EXPECT_EQ(results.size(), 128u);
  const ScoreReport report = MakeReport(plan, results, {});
  EXPECT_NEAR(report.scores[0], 0.25, 1e-12);  // the pair shares its half
  EXPECT_NEAR(report.scores[1], 0.25, 1e-12);
  EXPECT_NEAR(report.scores[7], 0.07, 1e-12);
  results.erase(results.begin());
  EXPECT_THROW(MakeReport(plan, results, {}), Failure);
}

TEST(HeadKv, FindsTheNeedle) {
  double overlap = 0;
  const TokenSpan span = FindNeedle({5, 6, 7, 1, 2, 3, 9, 2}, {1, 2, 3}, &overlap);
  EXPECT_EQ(span.begin, 3u);
  EXPECT_EQ(span.end, 6u);
  EXPECT_EQ(overlap, 1);
  FindNeedle({5, 6, 7}, {1, 2}, &overlap);
  EXPECT_EQ(overlap, 0);
  FindNeedle({1}, {1, 2}, &overlap);
  EXPECT_EQ(overlap, 0);
}

TEST(HeadKv, StrongestEntriesInsideTheSpanCount) {
  double score = 0;
  AddRetrieval({.1f, .4f, .3f, .2f}, {1, 3}, &score);  // two strongest, both inside
  EXPECT_NEAR(score, (.4 + .3) / 2, 1e-7);
  AddRetrieval({.5f, .1f, .3f, .1f}, {1, 3}, &score);  // one of the two strongest
  EXPECT_NEAR(score, (.4 + .3) / 2 + .3 / 2, 1e-7);
}

// Layers with a window: their heads are no players, keep their caches, and score 0.
TEST(ScorePlan, HeadsOfLayersWithAWindowDoNotPlay) {
  ScorePlan plan = Plan(4, 2);
  plan.layers = {0, 3}, plan.sizes = {1, 2};
  EXPECT_EQ(plan.n_players(), 4);
  EXPECT_EQ(KeptHeads(plan, {1, 0, 0, 1}), (Coalition{1, 0, 1, 1, 1, 1, 0, 1}));
  EXPECT_EQ(TableOf(plan, {1, 2, 3, 4}), (std::vector<double>{1, 2, 0, 0, 0, 0, 3, 4}));
  EXPECT_EQ(OfPlayers(plan, {1, 2, 9, 9, 9, 9, 3, 4}), (std::vector<double>{1, 2, 3, 4}));
  // The game is that of a model which has the players alone.
  ScorePlan small = Plan(2, 2);
  small.sizes = plan.sizes;
  for (const bool exact : {false, true}) {
    plan.exact = small.exact = exact;
    plan.runs = small.runs = exact ? 1 : 2;
    const std::vector<WorkKey> items = WorkItems(plan, 0, 40);
    ASSERT_EQ(items.size(), WorkItems(small, 0, 40).size());
    const WorkResults results = Measure(plan, items);
    const ScoreReport report = MakeReport(plan, results, {});
    EXPECT_EQ(report.scores, MakeReport(small, Measure(small, WorkItems(small, 0, 40)), {}).scores);
    const Json file = ScoreJson(plan, {}, {}, report, "name");
    EXPECT_EQ(file["layers"], Json({0, 3}));
    EXPECT_EQ(file["shape"], Json({4, 2}));
    EXPECT_EQ(file["scores"][1], Json({0.0, 0.0}));
    EXPECT_EQ(file["scores"][2], Json({0.0, 0.0}));
    EXPECT_EQ(file["scores"][3], ScoreJson(small, {}, {}, report, "name")["scores"][1]);
  }
  // Where all layers play no file says so.
  EXPECT_EQ(KeptHeads(small, {1, 0, 0, 1}), (Coalition{1, 0, 0, 1}));
  EXPECT_FALSE(LogHeader(small, {}).contains("layers"));
}

// What is asked, of a task of ten tokens and its question.
class ScoreExamples : public testing::Test {
 protected:
  ScoreExamples() {
    EXPECT_TRUE(test::WriteTinyModel({}, model_path_).ok());
    kvc_model_params params = DefaultModelParams();
    params.n_threads = 1;
    model_.emplace(model_path_, "cpu", params);
    std::ofstream(task_path_)
        << R"({"context": "abcdefghi", "questions": [{"question": "jkl", "answer": "m"}]})"
        << "\n";
  }
  ~ScoreExamples() override {
    model_.reset();  // a file that is mapped cannot be removed everywhere
    std::remove(model_path_.c_str()), std::remove(task_path_.c_str());
  }
  ExampleSet Read(ExampleOptions options) const {
    options.files = {task_path_}, options.max_answer = 1;
    return ReadExamples(*model_, options);
  }
  const std::string model_path_ = testing::TempDir() + "kvc_score_examples.kvc",
                    task_path_ = testing::TempDir() + "kvc_score_examples.jsonl";
  std::optional<Model> model_;
};

TEST_F(ScoreExamples, LongPromptsKeepTheirFirstAndLastHalf) {
  ExampleOptions options;
  const TokenList all = Read(options).prefixes[0];
  ASSERT_EQ(all.size(), 10u);
  const std::pair<int32_t, std::vector<size_t>> cut[] = {
      {4, {0, 1, 8, 9}}, {5, {0, 1, 7, 8, 9}}, {1, {9}}, {10, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}}};
  for (const auto& [limit, kept] : cut) {
    options.max_prompt = limit;
    TokenList expected;
    for (const size_t i : kept) expected.push_back(all[i]);
    const ExampleSet set = Read(options);
    EXPECT_EQ(set.prefixes[0], expected) << limit;
    EXPECT_EQ(set.examples[0].fed.size(), 3u) << "the question is not cut";
  }
}

TEST_F(ScoreExamples, TheLastTokensOfAPromptAreFedBehindTheMasking) {
  ExampleOptions options;
  const ExampleSet asked = Read(options);
  TokenList all = asked.prefixes[0];
  all.insert(all.end(), asked.examples[0].fed.begin(), asked.examples[0].fed.end());
  ASSERT_EQ(all.size(), 13u);
  options.ask = false;
  for (const int32_t split : {0, 2, 3, 12, 40}) {
    options.split = split;
    const ExampleSet set = Read(options);
    const auto at = all.end() - std::min(split, 12);  // one token is read at least
    EXPECT_EQ(set.prefixes[0], TokenList(all.begin(), at)) << split;
    EXPECT_EQ(set.examples[0].fed, TokenList(at, all.end())) << split;
  }
  options.split = 3;  // the question: as it is asked
  EXPECT_EQ(Read(options).prefixes, asked.prefixes);
  EXPECT_EQ(Read(options).examples[0].fed, asked.examples[0].fed);
}

}  // namespace
}  // namespace kvc::tool
