// The synthetic tasks of RULER (arXiv 2404.06654), made up to the context of a model.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tools/suite/task.h"

namespace kvc::tool {

struct RulerOptions {
  int32_t length = 0;  // tokens of prompt and answer
  int32_t n_items = 0;
  uint64_t seed = 0;
  std::string essay;  // text to hide needles in; empty: tasks that need one cannot be made
};
using TokenCounter = std::function<int64_t(const std::string& text)>;

struct RulerTask {
  const char* name;
  bool needs_essay;
};
// Every task that can be made; questions on texts (qa) come with a published data set only.
const std::vector<RulerTask>& RulerTasks();

// Metric and answer length of a task by its published name, such as niah_single_1 or qa_2. false: no such
// task.
bool RulerRules(const std::string& name, Metric* metric, int32_t* max_tokens);

// Prompts as long as options.length permits. Throws std::invalid_argument when not even the shortest fits, or
// when an essay is missing.
SuiteTask MakeRulerTask(const std::string& name, const RulerOptions& options, const TokenCounter& count);

}  // namespace kvc::tool
