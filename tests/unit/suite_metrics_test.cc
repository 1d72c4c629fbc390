// Scores of answers against those of the published definitions (tests/vectors/make_metric_vectors.py).
#include "tools/suite/metrics.h"

#include <gtest/gtest.h>

#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "tools/suite/utf8.h"

namespace kvc::tool {
namespace {

const nlohmann::json& Vectors() {
  static const nlohmann::json vectors = [] {
    std::ifstream in(KVC_TEST_DATA "/reference/metrics.json");
    return nlohmann::json::parse(in);
  }();
  return vectors;
}

TEST(SuiteMetrics, ScoresAreThoseOfTheDefinitions) {
  const std::map<std::string, Metric> known = {
      {"f1", Metric::kTokenF1},          {"rouge-l", Metric::kRougeL},
      {"retrieval", Metric::kRetrieval}, {"retrieval-zh", Metric::kRetrievalZh},
      {"count", Metric::kCount},         {"classification", Metric::kClassification},
      {"edit", Metric::kEditSimilarity}, {"match-all", Metric::kMatchAll},
      {"match-part", Metric::kMatchPart}};
  std::map<std::string, int> between;  // scores that are neither 0 nor 1: the rules decide those
  for (const auto& row : Vectors()["scores"]) {
    const double score = ScoreAnswer(known.at(row[0]), row[1], row[2], row[3]);
    EXPECT_NEAR(score, row[4].get<double>(), 1e-12) << row;
    between[row[0]] += score > 0 && score < 1;
  }
  for (const auto& [name, metric] : known) {
    const int least = metric == Metric::kMatchPart ? 0 : 5;
    EXPECT_GE(between[name], least) << name;
  }
}

TEST(SuiteMetrics, NormalizedTextsAreThoseOfPython) {
  ASSERT_GT(Vectors()["normalized"].size(), 100u);
  for (const auto& row : Vectors()["normalized"])
    EXPECT_EQ(NormalizeAnswer(row[0]), row[1].get<std::string>()) << row;
}

TEST(SuiteMetrics, BrokenBytesStandForThemselves) {
  const std::string broken = "a\xff\xc3(\xe2\x82 \xed\xa0\x80\xf0\x9f\x98\x80";
  EXPECT_EQ(Utf8(CodePoints(broken)), broken);
  EXPECT_EQ(CodePoints("\xf0\x9f\x98\x80"), U"\U0001F600");
  EXPECT_EQ(ScoreAnswer(Metric::kMatchAll, "x " + broken, {broken}, {}), 1);
  EXPECT_EQ(SequenceRatio("", ""), 1);
  EXPECT_EQ(ScoreAnswer(Metric::kRetrieval, "7", {"no number"}, {}), 0);
}

}  // namespace
}  // namespace kvc::tool
