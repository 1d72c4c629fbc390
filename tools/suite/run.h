// Benchmarks run with several policies: prompts compressed, answers generated and scored.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tools/quality.h"
#include "tools/suite/task.h"

namespace kvc::tool {

struct SuiteOptions {
  std::string name;  // ruler, longbench or needle; empty: none
  std::vector<std::string> data, tasks, questions;
  std::string essay;
  std::vector<int32_t> lengths;  // of needle; empty: halves of length
  int32_t length = 0, n_items = 0, limit = 0;
  int64_t seed = 1;
};
// Prompts to make for each task, of needle for each depth: those asked for, none of them more than limit.
int32_t ItemsOf(const SuiteOptions& options);
// What data holds or, for ruler without data, what is made up to the model's context. Throws Failure.
std::vector<SuiteTask> SuiteTasks(const SuiteOptions& options, const Model& model);

// A policy on a task.
struct SuiteRow {
  std::string spec, policy, task, metric, file;  // policy as it was asked for, and its canonical text
  std::vector<double> scores, depths;            // of each item; no depths where they are not known
  std::vector<int32_t> draws;                    // of each item (SuiteItem); empty: each is one of its own
  QualitySums sums;
  double mean() const;
};

// Prompts that the model's context does not hold are cut in their middle, as LongBench does. limit: items;
// 0 = all.
std::vector<SuiteRow> RunSuiteTask(const Model& model, const std::vector<Policy>& policies,
                                   TaskProtocol protocol, const SuiteTask& task, int32_t limit);

// Mean score of the items at each depth, ascending.
std::map<double, double> MeanByDepth(const SuiteRow& row);

// Scores that were drawn independently: means over the items of a draw.
std::vector<double> DrawnScores(const SuiteRow& row);

// The 95 % interval of the mean of independent scores of 0 to 1 by bootstrap, deterministic by seed. Where
// all are alike, of which drawing again knows no more, that of a share seen in so many draws
// (WilsonInterval).
Interval BootstrapInterval(const std::vector<double>& values, uint64_t seed);

}  // namespace kvc::tool
