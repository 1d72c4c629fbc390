// Tasks made after RULER: what is asked can be answered from the text, and the text is as long as it may be.
#include "tools/suite/ruler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "tests/support/question_sets.h"
#include "tools/suite/utf8.h"

namespace kvc::tool {
namespace {

int64_t CountWords(const std::string& text) { return static_cast<int64_t>(SplitWords(text).size()); }

RulerOptions Options(int32_t length) {
  RulerOptions options;
  options.length = length, options.n_items = 2, options.seed = 5;
  for (int i = 0; i < 50; ++i)
    options.essay += "It was late. Was it? He said so, and " + std::to_string(i) + " went on!\n";
  options.questions = {ParseQuestionSet(SquadText(40, 40), "squad"),
                       ParseQuestionSet(HotpotText(100), "hotpot")};
  return options;
}

size_t CountText(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(SuiteRuler, TextsFillTheLengthAndAreDeterministic) {
  for (const RulerTask& known : RulerTasks()) {
    for (const int32_t length : {900, 6000}) {
      const SuiteTask task = MakeRulerTask(known.name, Options(length), CountWords);
      const SuiteTask again = MakeRulerTask(known.name, Options(length), CountWords);
      ASSERT_EQ(task.items.size(), 2u);
      std::set<std::string> contexts;
      for (size_t i = 0; i < task.items.size(); ++i) {
        const SuiteItem& item = task.items[i];
        const int64_t n = CountWords(item.context + item.question) + task.max_tokens;
        EXPECT_LE(n, length) << known.name;
        EXPECT_GE(n, length * 9 / 10 - 60) << known.name << " " << length;
        EXPECT_EQ(item.context + item.question, again.items[i].context + again.items[i].question);
        contexts.insert(item.context);
      }
      EXPECT_EQ(contexts.size(), 2u) << known.name;
    }
  }
}

// The expected values are those that the text states for the keys of the question, and no others.
TEST(SuiteRuler, NeedlesAnswerTheirQuestions) {
  const std::map<std::string, size_t> expected = {
      {"niah_single_1", 1},   {"niah_single_2", 1},   {"niah_single_3", 1},   {"niah_multikey_1", 1},
      {"niah_multikey_2", 1}, {"niah_multikey_3", 1}, {"niah_multivalue", 4}, {"niah_multiquery", 4}};
  const std::regex needle("special magic (words|numbers|uuids) for ([a-z0-9-]+) is: ([a-z0-9-]+)\\.");
  for (const auto& [name, n] : expected) {
    const SuiteTask task = MakeRulerTask(name, Options(2000), CountWords);
    EXPECT_EQ(task.metric, Metric::kMatchAll);
    for (const SuiteItem& item : task.items) {
      const std::string query =
          std::regex_replace(item.question, std::regex("^[^]*? for ([^]*?) mentioned[^]*$"), "$1");
      std::multiset<std::string> stated;
      for (std::sregex_iterator it(item.context.begin(), item.context.end(), needle), end; it != end; ++it) {
        if (query.find((*it)[2]) != std::string::npos) stated.insert((*it)[3]);
      }
      EXPECT_EQ(stated, std::multiset<std::string>(item.expected.begin(), item.expected.end()))
          << name << query;
      EXPECT_EQ(stated.size(), n);
    }
  }
}

TEST(SuiteRuler, VariablesAreTheChainThatHoldsTheValue) {
  const SuiteTask task = MakeRulerTask("vt", Options(2000), CountWords);
  for (const SuiteItem& item : task.items) {
    ASSERT_EQ(item.expected.size(), 5u);
    const std::string value =
        std::regex_replace(item.question, std::regex("^[^]*?the value ([0-9]+)[^]*$"), "$1");
    std::map<std::string, std::string> values;  // assignments followed as the text has them
    const std::regex assignment("VAR ([A-Z]+) = (VAR )?([A-Z0-9]+)");
    for (std::sregex_iterator it(item.context.begin(), item.context.end(), assignment), end; it != end; ++it)
      values[(*it)[1]] = (*it)[2].matched ? values[(*it)[3]] : std::string((*it)[3]);
    std::set<std::string> holders;
    for (const auto& [variable, held] : values) {
      if (held == value) holders.insert(variable);
    }
    EXPECT_EQ(holders, std::set<std::string>(item.expected.begin(), item.expected.end()));
    EXPECT_EQ(values.size(), 10u);  // and the chain of the example
  }
}

TEST(SuiteRuler, WordsOftenSaidAreTheExpectedOnes) {
  for (const int32_t length : {900, 6000}) {
    const SuiteTask common = MakeRulerTask("cwe", Options(length), CountWords);
    const size_t times = length < 4096 ? 6 : 30, other_times = length < 4096 ? 1 : 3;
    for (const SuiteItem& item : common.items) {
      const std::string text = item.context.substr(item.context.rfind("Below is")) + " ";
      std::map<std::string, size_t> counts;
      const std::vector<std::string> words = SplitWords(text.substr(text.find('\n')));
      for (size_t i = 1; i < words.size(); i += 2) ++counts[words[i]];
      for (const auto& [word, n] : counts) {
        const bool is_expected = std::count(item.expected.begin(), item.expected.end(), word) > 0;
        EXPECT_EQ(n, is_expected ? times : other_times) << word;
      }
      EXPECT_EQ(item.expected.size(), 10u);
    }
    const SuiteTask frequent = MakeRulerTask("fwe", Options(length), CountWords);
    for (const SuiteItem& item : frequent.items) {
      std::vector<size_t> counts;
      for (const std::string& word : item.expected) counts.push_back(CountText(item.context, word));
      EXPECT_GT(counts[0], counts[1]);
      EXPECT_GT(counts[1], counts[2]);
      std::map<std::string, size_t> all;
      for (const std::string& word : SplitWords(item.context)) ++all[word];
      for (const auto& [word, n] : all) {
        const bool is_expected = std::count(item.expected.begin(), item.expected.end(), word) > 0;
        if (is_expected || word == "...") continue;
        EXPECT_LT(n, counts[2]) << word;
      }
    }
  }
}

// The same needle in the same text, at the place that is asked for.
TEST(SuiteRuler, NeedlesStandWhereTheyAreAskedFor) {
  for (const bool has_essay : {false, true}) {
    RulerOptions options = Options(1500);
    if (!has_essay) options.essay.clear();
    const SuiteTask task = MakeNeedleTask(options, {0, 0.3, 1}, CountWords);
    EXPECT_EQ(task.name, "needle_1500");
    ASSERT_EQ(task.items.size(), 6u);
    for (size_t i = 0; i < 6; ++i) {
      const SuiteItem& item = task.items[i];
      const std::string head = "afterwards.\n", answer = item.expected[0] + ".";
      ASSERT_EQ(item.expected.size(), 1u);
      EXPECT_EQ(item.expected, task.items[i % 2].expected) << "as at depth 0";
      EXPECT_EQ(item.question, task.items[i % 2].question);
      EXPECT_EQ(CountText(item.context, answer), 1u);
      EXPECT_LE(CountWords(item.context + item.question) + task.max_tokens, 1500);
      const size_t begin = item.context.find(head) + head.size(),
                   at = item.context.find("One of the special magic");
      const double share =
          static_cast<double>(at - begin) /
          static_cast<double>(item.context.size() - begin - std::string("One of the").size());
      EXPECT_EQ(item.depth, (std::vector<double>{0, 0.3, 1})[i / 2]);
      EXPECT_NEAR(share, item.depth, 0.03) << has_essay << i;
    }
    EXPECT_NE(task.items[0].expected, task.items[1].expected);
  }
}

TEST(SuiteRuler, RefusesWhatCannotBe) {
  RulerOptions options = Options(100);
  EXPECT_THROW(MakeRulerTask("niah_single_1", options, CountWords), std::invalid_argument);
  options = Options(2000);
  options.essay = " \n";
  EXPECT_THROW(MakeRulerTask("niah_multivalue", options, CountWords), std::invalid_argument);
  options.questions.clear();
  EXPECT_THROW(MakeRulerTask("qa_1", options, CountWords), std::invalid_argument);
  options.essay.clear();
  for (const RulerTask& task : RulerTasks())
    EXPECT_EQ(HasWhatItNeeds(task, options), task.needs == RulerNeeds::kNothing) << task.name;
  Metric metric;
  int32_t n = 0;
  EXPECT_TRUE(RulerRules("qa_2", &metric, &n));
  EXPECT_EQ(metric, Metric::kMatchPart);
  EXPECT_FALSE(RulerRules("niahx", &metric, &n));
}

}  // namespace
}  // namespace kvc::tool
