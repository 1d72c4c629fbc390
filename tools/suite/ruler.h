// The synthetic tasks of RULER (arXiv 2404.06654), made up to the context of a model.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/suite/ruler_questions.h"
#include "tools/suite/task.h"

namespace kvc::tool {

struct RulerOptions {
  int32_t length = 0;  // tokens of prompt and answer
  int32_t n_items = 0;
  uint64_t seed = 0;
  std::string essay;  // text to hide needles in; empty: tasks that need one cannot be made
  std::vector<QuestionSet>
      questions;  // SQuAD for qa_1, HotpotQA for qa_2; without one its task cannot be made
};
using TokenCounter = std::function<int64_t(const std::string& text)>;

enum class RulerNeeds { kNothing, kEssay, kQuestions };
struct RulerTask {
  const char* name;
  RulerNeeds needs;
};
// Every task that can be made.
const std::vector<RulerTask>& RulerTasks();
bool HasWhatItNeeds(const RulerTask& task, const RulerOptions& options);

// Metric and answer length of a task by its published name, such as niah_single_1 or qa_2. false: no such
// task.
bool RulerRules(const std::string& name, Metric* metric, int32_t* max_tokens);

// Prompts as long as options.length permits. Throws std::invalid_argument when not even the shortest fits, or
// when an essay or questions are missing.
SuiteTask MakeRulerTask(const std::string& name, const RulerOptions& options, const TokenCounter& count);

// One needle at each of these depths (shares of the text before it, 0 to 1), options.n_items times with other
// keys and values: RULER's niah_single_2, or niah_single_1 without an essay.
SuiteTask MakeNeedleTask(const RulerOptions& options, const std::vector<double>& depths,
                         const TokenCounter& count);

}  // namespace kvc::tool
