// Records of several machines into one score file; score files of several tasks into their mean.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tools/output.h"
#include "tools/score/score_file.h"

namespace kvc::tool {

// The items of several logs of one measurement. Throws Failure with the log in which something is wrong.
class LogMerger {
 public:
  // The first log says what is measured; the others must agree.
  void Add(const std::string& path, const WorkLog& log);
  const Json& header() const { return header_; }
  const ScorePlan& plan() const { return plan_; }
  const MeasuredWhat& what() const { return what_; }
  const WorkResults& results() const { return results_; }
  // Items that samples up to the last one there would have, and of which some run or size has none.
  int64_t n_missing() const;

 private:
  Json header_;
  ScorePlan plan_;
  MeasuredWhat what_;
  WorkResults results_;
};

// The mean over tasks, each centred first, so that no task counts more for its offset (methods.md 3.10).
// files: (path, document). Throws Failure.
Json AverageScores(const std::vector<std::pair<std::string, Json>>& files, const std::string& name);

}  // namespace kvc::tool
