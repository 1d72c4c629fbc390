// Questions on documents: the published files, and the prompts that are made of them.
#include "tools/suite/ruler_questions.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <set>

#include "tests/support/question_sets.h"
#include "tools/kvc_handles.h"

namespace kvc::tool {
namespace {

Draws DrawsOf(uint32_t item) { return Draws(7, 1, item); }

std::vector<std::string> DocumentsIn(const SuiteItem& item) {
  const std::regex begin("Document [0-9]+:\\n");
  const std::string head = "given documents.\n\n";
  std::string text = item.context.substr(item.context.find(head) + head.size());
  text.resize(text.find("Answer the question"));
  std::vector<std::string> documents;
  for (std::sregex_token_iterator it(text.begin(), text.end(), begin, -1), end; it != end; ++it) {
    const std::string document = *it;
    if (!document.empty()) documents.push_back(document.substr(0, document.size() - 2));
  }
  return documents;
}

TEST(SuiteQuestions, SquadIsReadInItsOrderWithoutWhatHasNoAnswer) {
  const QuestionSet set = ParseQuestionSet(SquadText(3, 4), "squad.json");
  EXPECT_EQ(set.name, "SQuAD");
  EXPECT_EQ(set.documents.size(), 12u);
  EXPECT_TRUE(std::is_sorted(set.documents.begin(), set.documents.end()));
  ASSERT_EQ(set.entries.size(), 12u);
  const QuestionEntry& entry = set.entries[5];  // 1.1
  EXPECT_EQ(entry.question, "What is in 1.1?");
  EXPECT_EQ(entry.answers, (std::vector<std::string>{"gold 1.1", "gold"}));
  ASSERT_EQ(entry.needed.size(), 1u);
  EXPECT_EQ(set.documents[entry.needed[0]], "Paragraph 1.1 holds gold 1.1.");
  std::set<std::string> near;
  for (const size_t i : entry.near) near.insert(set.documents[i].substr(0, 13));
  EXPECT_EQ(near, (std::set<std::string>{"Paragraph 1.0", "Paragraph 1.2", "Paragraph 1.3"}));
}

TEST(SuiteQuestions, HotpotDocumentsAreTitleAndSentencesAndNoneTwice) {
  const QuestionSet set = ParseQuestionSet(HotpotText(5), "hotpotqa.json");
  EXPECT_EQ(set.name, "HotpotQA");
  EXPECT_EQ(set.documents.size(), 5u * 9 + 1);
  ASSERT_EQ(set.entries.size(), 5u);
  EXPECT_EQ(set.entries[2].needed.size(), 10u);
  EXPECT_TRUE(set.entries[2].near.empty());
  EXPECT_EQ(set.documents[set.entries[2].needed[0]], "Shared\nSeen often.");
  EXPECT_EQ(set.documents[set.entries[2].needed[1]], "Title 2.1\nFirst of 2.1. It is yes 2.1.");
}

TEST(SuiteQuestions, ThePromptIsThePublishedOne) {
  const QuestionSet set = ParseQuestionSet(SquadText(1, 1), "squad.json");
  const SuiteItem item = QuestionItem(set, 1, DrawsOf(0));
  const std::string task =
      "Answer the question based on the given documents. Only give me the answer and do not output any other "
      "words.\n\n";
  EXPECT_EQ(item.context + item.question,
            task + "The following are given documents.\n\nDocument 1:\nParagraph 0.0 holds gold 0.0.\n\n" +
                task + "Question: What is in 0.0? Answer:");
  EXPECT_EQ(item.expected, (std::vector<std::string>{"gold 0.0", "gold"}));
}

// As many documents as asked for, all different: what is needed, then the article's, then others.
TEST(SuiteQuestions, DocumentsAreNeededThenNearThenOthers) {
  const QuestionSet set = ParseQuestionSet(SquadText(6, 5), "squad.json");
  for (uint32_t i = 0; i < 8; ++i) {
    const QuestionEntry& entry = set.entries[i];
    std::set<std::string> article;
    for (const size_t document : entry.near) article.insert(set.documents[document]);
    for (const size_t n : {size_t{0}, size_t{1}, size_t{3}, size_t{5}, size_t{9}, size_t{30}, size_t{99}}) {
      const SuiteItem item = QuestionItem(set, n, DrawsOf(i));
      const std::vector<std::string> documents = DocumentsIn(item);
      const std::set<std::string> different(documents.begin(), documents.end());
      EXPECT_EQ(documents.size(), std::clamp<size_t>(n, 1, 30));
      EXPECT_EQ(different.size(), documents.size());
      EXPECT_EQ(different.count(set.documents[entry.needed[0]]), 1u);
      size_t n_article = 0;
      for (const std::string& document : documents) n_article += article.count(document);
      EXPECT_EQ(n_article, std::min<size_t>(documents.size() - 1, 4));
      EXPECT_EQ(item.question, "\nQuestion: " + entry.question + " Answer:");
      EXPECT_EQ(QuestionItem(set, n, DrawsOf(i)).context, item.context);
    }
  }
  const QuestionSet hotpot = ParseQuestionSet(HotpotText(4), "hotpotqa.json");
  EXPECT_EQ(DocumentsIn(QuestionItem(hotpot, 1, DrawsOf(3))).size(), 10u)
      << "all that are given with a question";
  EXPECT_EQ(QuestionItem(hotpot, 1, DrawsOf(5)).question, QuestionItem(hotpot, 1, DrawsOf(1)).question)
      << "from the beginning where there are no more";
}

TEST(SuiteQuestions, OtherFilesAreRefusedByWhatIsMissing) {
  const struct {
    const char *text, *said;
  } kCases[] = {
      {"", "neither SQuAD nor HotpotQA"},
      {"{", "neither SQuAD nor HotpotQA"},
      {"3", "expected \"data\""},
      {"{}", "expected \"data\""},
      {"[]", "holds no question with an answer"},
      {R"({"data": 3})", "expected a list under \"data\""},
      {R"({"data": []})", "holds no question with an answer"},
      {R"({"data": [7]})", "expected \"paragraphs\""},
      {R"({"data": [{"paragraphs": [{}]}]})", "expected \"context\""},
      {R"({"data": [{"paragraphs": [{"context": 4, "qas": []}]}]})", "context"},
      {R"({"data": [{"paragraphs": [{"context": "a"}]}]})", "expected \"qas\""},
      {R"({"data": [{"paragraphs": [{"context": "a", "qas": [{"question": "b"}]}]}]})",
       "expected \"answers\""},
      {R"([{"question": "a", "answer": "b"}])", "expected \"context\""},
      {R"([{"question": "a", "answer": "b", "context": [["t"]]}])", "[title, [sentence, ...]]"},
      {R"([{"question": "a", "answer": "b", "context": [["t", [1]]]}])", "[title, [sentence, ...]]"},
      {R"([{"question": "a", "context": []}])", "holds no question with an answer"}};
  for (const auto& c : kCases) {
    try {
      ParseQuestionSet(c.text, "file.json");
      ADD_FAILURE() << c.text;
    } catch (const Failure& failure) {
      EXPECT_NE(std::string(failure.what()).find(c.said), std::string::npos)
          << c.text << ": " << failure.what();
      EXPECT_EQ(std::string(failure.what()).find("file.json"), 0u) << failure.what();
    }
  }
}

}  // namespace
}  // namespace kvc::tool
