// A task of a benchmark, wherever its texts come from.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tools/suite/metrics.h"

namespace kvc::tool {

struct SuiteItem {
  std::string context, question;  // the prompt, in two parts: what is compressed before the question is known
  std::vector<std::string> expected, classes;
  double depth = -1;  // share of the context before what answers; below 0: not known
  // Items of one number are the same but for the depth; below 0: each is a draw of its own.
  int32_t draw = -1;
};

struct SuiteTask {
  std::string name, file;  // file: empty when the texts were made here
  Metric metric = Metric::kTokenF1;
  bool first_line = false;  // only the first line of an answer counts
  int32_t max_tokens = 0;   // of an answer
  std::vector<SuiteItem> items;
};

}  // namespace kvc::tool
