// Questions on documents, as RULER makes its qa tasks of published data sets.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tools/suite/draws.h"
#include "tools/suite/task.h"

namespace kvc::tool {

struct QuestionEntry {
  std::string question;
  std::vector<std::string> answers;  // each of them is right; one at least
  std::vector<size_t>
      needed;  // documents that are always there: the one with the answer, or all that are given
  std::vector<size_t> near;  // those of the same article, which come before any other
};
struct QuestionSet {
  std::string name;                    // SQuAD or HotpotQA
  std::vector<std::string> documents;  // different all, in the order of their bytes
  std::vector<QuestionEntry> entries;  // in the order of the file; one at least
};

// SQuAD (1.1 or 2.0: {"data": [...]}; what has no answer is left out) or HotpotQA ([...], the distractor
// setting), as published. path: for messages. Throws Failure.
QuestionSet ParseQuestionSet(const std::string& text, const std::string& path);

// The question of the item that is drawn, among so many documents in any order: what it needs even if that is
// more. Of SQuAD its article comes first, as published.
SuiteItem QuestionItem(const QuestionSet& set, size_t n_documents, Draws draws);

}  // namespace kvc::tool
