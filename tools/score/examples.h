// What is asked: the questions of task files as tokens, split into what is prefilled once and what every
// coalition is fed.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tools/files.h"
#include "tools/kvc_handles.h"

namespace kvc::tool {

struct ExampleOptions {
  std::vector<std::string> files;
  bool ask = true;          // the question is fed after the masking; else it is part of the prompt
  int32_t split = 0;        // not ask: so many last prompt tokens are fed after the masking
  int32_t max_prompt = 0;   // longer contexts keep their first and last half of this; 0: they are refused
  int32_t max_answer = 64;  // tokens generated for metrics of texts
  int32_t limit = 0;        // tasks of each file; 0 = all
  double validation = 1;    // share of the tasks of each file, chosen by seed
  uint64_t seed = 1;
};

struct Example {
  int32_t prefix = 0;  // index of the prompt
  TokenList fed;       // after the masking, before the answer; may be empty
  TokenList answer;    // reference, at least one token
  std::vector<std::string> answers, classes;
  std::string question, needle, where;  // where: "tasks.jsonl:3"
};

struct ExampleSet {
  std::vector<TokenList> prefixes;
  std::vector<Example> examples;
  std::string dataset;  // names of the files
  Json identity;        // what binds a log to this data: names, checksums, tasks chosen
  double MedianAnswer() const;
};

// Throws Failure with file and line: malformed or empty files, questions that do not fit the context of the
// model.
ExampleSet ReadExamples(const Model& model, const ExampleOptions& options);

}  // namespace kvc::tool
