// Benchmarks run with several policies: prompts compressed, answers generated and scored.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tools/quality.h"
#include "tools/suite/task.h"

namespace kvc::tool {

struct SuiteOptions {
  std::string name;  // ruler or longbench; empty: none
  std::vector<std::string> data, tasks;
  std::string essay;
  int32_t length = 0, n_items = 10, limit = 0;
  int64_t seed = 1;
};
// What data holds or, for ruler without data, what is made up to the model's context. Throws Failure.
std::vector<SuiteTask> SuiteTasks(const SuiteOptions& options, const Model& model);

// A policy on a task.
struct SuiteRow {
  std::string spec, policy, task, metric, file;  // policy as it was asked for, and its canonical text
  std::vector<double> scores;                    // of each item
  QualitySums sums;
  double mean() const;
};

// Prompts that the model's context does not hold are cut in their middle, as LongBench does. limit: items; 0
// = all.
std::vector<SuiteRow> RunSuiteTask(const Model& model, const std::vector<Policy>& policies,
                                   TaskProtocol protocol, const SuiteTask& task, int32_t limit);

// The 95 % interval of a mean by bootstrap over items, deterministic by seed.
Interval BootstrapInterval(const std::vector<double>& values, uint64_t seed);

}  // namespace kvc::tool
