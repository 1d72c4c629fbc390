// Metrics of answers: values worked by hand.
#include "tools/score/utility.h"

#include <gtest/gtest.h>

#include "tools/failure.h"

namespace kvc::tool {
namespace {

double U(const char* metric, const std::string& text, const std::vector<std::string>& answers,
         const std::vector<std::string>& classes = {}) {
  return TextUtility(ParseMetric(metric), text, answers, classes);
}

TEST(ScoreUtility, F1OfNormalisedWords) {
  EXPECT_EQ(NormalisedText("The  Cat, a dog & an Owl."), "cat dog owl");
  EXPECT_DOUBLE_EQ(U("f1", "The cat!", {"cat"}), 1);
  EXPECT_DOUBLE_EQ(U("f1", "black cat sat", {"black cat"}), 0.8);  // 2 * 2 / (3 + 2)
  EXPECT_DOUBLE_EQ(U("f1", "cat cat", {"cat"}), 2.0 / 3);          // a word counts as often as it is wanted
  EXPECT_DOUBLE_EQ(U("f1", "dog", {"cat", "dog"}), 1);             // the best reference
  EXPECT_DOUBLE_EQ(U("f1", "", {"cat"}), 0);
}

TEST(ScoreUtility, RougeLIsTheLongestCommonSubsequence) {
  EXPECT_DOUBLE_EQ(U("rouge-l", "a b c d", {"a x c d"}), 0.75);
  EXPECT_DOUBLE_EQ(U("rouge-l", "d c b a", {"a b c d"}), 0.25);
  EXPECT_DOUBLE_EQ(U("rouge-l", "x", {"y"}), 0);
}

TEST(ScoreUtility, ClassificationSharesAmongNamesFound) {
  const std::vector<std::string> classes = {"Animal", "Person", "Place", "Other Person"};
  EXPECT_DOUBLE_EQ(U("classification", "Animal", {"Animal"}, classes), 1);
  EXPECT_DOUBLE_EQ(U("classification", "Animal or Place", {"Place"}, classes), 0.5);
  EXPECT_DOUBLE_EQ(U("classification", "Animal", {"Place"}, classes), 0);
  EXPECT_DOUBLE_EQ(U("classification", "Other Person", {"Other Person"}, classes),
                   1);  // its part does not count
}

TEST(ScoreUtility, RetrievalIsTheShareOfRightNumbers) {
  EXPECT_DOUBLE_EQ(U("retrieval", "Paragraph 12, not 3", {"Paragraph 12"}), 0.5);
  EXPECT_DOUBLE_EQ(U("retrieval", "none", {"Paragraph 12"}), 0);
}

TEST(ScoreUtility, CodeTakesTheFirstLineOfCode) {
  EXPECT_DOUBLE_EQ(U("code", "```\n# note\nx = 1\ny = 2", {"x = 1"}), 1);
  // As LongBench has it: newlines in front go, an empty line behind a comment is a line without one.
  EXPECT_DOUBLE_EQ(U("code", "\n\nx = 1\ny = 2", {"x = 1"}), 1);
  EXPECT_DOUBLE_EQ(U("code", "# note\n\nx = 1", {"x = 1"}), 0);
  EXPECT_DOUBLE_EQ(U("code", "x // note\n \nx", {" "}), 1);
  EXPECT_DOUBLE_EQ(U("code", "```\n# note\n", {"x"}), 0);
  EXPECT_DOUBLE_EQ(EditSimilarity("abcd", "bcde"), 0.75);
  EXPECT_DOUBLE_EQ(EditSimilarity("qabxcd", "abycdf"), 2.0 * 4 / 12);
  EXPECT_DOUBLE_EQ(EditSimilarity("", ""), 1);
}

TEST(ScoreUtility, NeedleLooksAtTheReferenceLength) {
  EXPECT_DOUBLE_EQ(U("needle", "Eat a Sandwich", {"eat a sandwich"}), 1);
  EXPECT_DOUBLE_EQ(U("needle", "I would rather eat a sandwich", {"eat a sandwich"}),
                   1.0 / 3);  // "a" of "rather"
}

TEST(ScoreUtility, EveryMetricHasItsName) {
  for (const std::string& name : MetricNames()) EXPECT_NO_THROW(ParseMetric(name)) << name;
  EXPECT_THROW(ParseMetric("bleu"), UsageError);
  EXPECT_FALSE(IsTextMetric(ParseMetric("nll")));
  EXPECT_TRUE(IsTextMetric(ParseMetric("f1")));
}

}  // namespace
}  // namespace kvc::tool
