// Works through the items of a plan: chunk by chunk, each chunk into the log before the next begins.
#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "tools/generate.h"
#include "tools/score/evaluator.h"
#include "tools/score/score_plan.h"
#include "tools/score/team.h"

namespace kvc::tool {

struct ScorerOptions {
  EstimateOptions estimate;
  Shard shard;
  int32_t samples = 0;         // of each size and run; 0: until the runs agree
  int32_t max_samples = 1000;  // of each size and run when samples is 0
  double min_spearman = 0;     // also wanted by the stopping rule; 0 = not asked
};

// Measures items one chunk at a time; on the coordinator of a team, nothing.
ChunkResults MeasureChunk(const ScorePlan& plan, const WorkChunk& chunk, UtilityEvaluator* evaluator);

class Scorer {
 public:
  // All of these must outlive it. done: items of the log so far; grows. team: null, or that of which this
  // process is the coordinator; the evaluator then only tells how many examples there are.
  Scorer(const ScorePlan& plan, const ScorerOptions& options, UtilityEvaluator* evaluator, WorkLogWriter* log,
         WorkResults* done, const CancelOnSignal& cancel, Team* team);
  // Until all items of the shard are done, or the stopping rule holds. Throws Failure; what was measured is
  // in the log.
  void Run();
  double seconds() const { return seconds_; }

 private:
  void RunItems(const std::vector<WorkKey>& items);
  void Record(const WorkChunk& chunk, const ChunkResults& results);
  bool Stable(uint32_t n_samples);
  int32_t ExamplesAnItem() const;
  void Show(double share_of_chunk);

  const ScorePlan& plan_;
  const ScorerOptions options_;
  UtilityEvaluator* evaluator_;
  WorkLogWriter* log_;
  WorkResults* done_;
  const CancelOnSignal& cancel_;
  Team* team_;
  Progress progress_;
  const std::chrono::steady_clock::time_point start_;
  int64_t n_total_ = 0, n_before_ = 0,
          n_here_ = 0;  // items: expected of this shard, there at the start, measured here
  size_t chunk_size_ = 0;
  double seconds_ = 0;
  CompareRuns compare_;
  std::string agreement_;  // of the runs, for the progress line
};

}  // namespace kvc::tool
