// Benchmarks as their authors publish them: JSON lines, and LongBench's prompts beside them.
#pragma once
#include <string>
#include <vector>

#include "tools/suite/task.h"

namespace kvc::tool {

// path: a folder with TASK.jsonl or TASK/validation.jsonl, or one such file. names: which tasks; empty: all
// there are. Throws Failure. RULER: {"input", "outputs", "answer_prefix"?} a line; the question is the last
// line of the input.
std::vector<SuiteTask> ReadRuler(const std::string& path, const std::vector<std::string>& names);

// LongBench: {"input", "context", "answers", "all_classes"} a line, and dataset2prompt.json and
// dataset2maxlen.json in the folder, its config/ or the config/ beside it. What needs Chinese words to be
// segmented is refused.
std::vector<SuiteTask> ReadLongBench(const std::string& path, const std::vector<std::string>& names);

}  // namespace kvc::tool
