// The search of kvc tune: budgets of several policies as ladders, tasks split into those to tune on and those
// held out, losses measured until every ladder is decided.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tools/options.h"
#include "tools/quality.h"
#include "tools/tune/ladder.h"

namespace kvc::tool {

enum class TuneMetric { kAccuracy, kKl };

// What is promised: a question about a new context is lost with a probability of at most max_loss. Lost: the
// full cache answers right and the compressed one does not; or the mean divergence over the answer is above
// max_kl nats.
struct TunePromise {
  TuneMetric metric = TuneMetric::kAccuracy;
  double max_loss = 0.01, max_kl = 0.02, confidence = 0.95;
};

// One budget of one policy.
struct TuneRung {
  Policy policy;
  QualitySums sums;
};
using TuneLadder = std::vector<TuneRung>;  // the largest budget first

// Which budgets to try: numbers of `key` (budget, budget_ratio, budget_bytes), or none for a default ladder,
// each smaller than the one before by the square root of two.
struct TuneBudgets {
  std::string key = "budget";
  std::vector<double> values;
};
// Of texts such as 64, 5% and 300KiB: a unit says the key. Without one they are numbers of the key there is,
// which, where it was given, has to be that of the units. Throws UsageError.
void ReadBudgets(const std::vector<std::string>& texts, bool key_was_given, TuneBudgets* budgets);
// One ladder for every spec. A spec that is whole as it stands has one rung. Budgets that a policy cannot
// hold are left out. n_prompt: tokens of the longest context. Throws UsageError when a spec has no rung.
std::vector<TuneLadder> MakeLadders(const Model& model, const std::vector<std::string>& specs,
                                    const TuneBudgets& budgets, const TableOptions& table_options,
                                    const Tables& tables, int32_t n_prompt);

struct TaskSplit {
  std::vector<size_t> tune, held_out;  // tasks by number
};
size_t HeldOutOf(size_t n_tasks, double share);  // how many of so many are held out
TaskSplit SplitTasks(size_t n_tasks, double held_out_share, uint64_t seed);

// The lost questions of a task, among those that count.
struct TaskLoss {
  std::vector<bool> lost;
  double mean() const;
};
TaskLoss LossOf(const TunePromise& promise, const std::vector<AnswerTrace>& full,
                const std::vector<AnswerTrace>& own);

// Measures all ladders on the tasks to tune on, in their order.
class TuneSearch {
 public:
  TuneSearch(const Model& model, TaskProtocol protocol, const TunePromise& promise,
             std::vector<TuneLadder>* ladders, int64_t n_draws, bool is_binary);
  void Run(const Task& task);  // the next draw
  bool done() const { return CountOpen() == 0; }
  size_t CountOpen() const;
  const LadderTest& test() const { return test_; }
  // The rung that passed with the fewest bytes, {ladder, rung}; {-1, -1}: none passed.
  std::pair<int, int> Best() const;

 private:
  const Model& model_;
  const TaskProtocol protocol_;
  const TunePromise promise_;
  std::vector<TuneLadder>& ladders_;
  LadderTest test_;
  Policy full_{"full"};
  std::unique_ptr<TaskEvaluator> evaluator_;      // of the open rungs
  std::vector<std::pair<size_t, size_t>> tried_;  // which those are
};

// The chosen policy beside the full cache on tasks that had no part in choosing it.
struct HeldOut {
  int64_t n_tasks = 0, n_violations = 0;  // of one question of each task, drawn by the seed
  double total_loss = 0;                  // means over the questions of a task, summed
  QualitySums full, own;
};
// index: of the task in the data.
void RunHeldOut(TaskEvaluator* evaluator, const TunePromise& promise, const Task& task, size_t index,
                uint64_t seed, HeldOut* out);

}  // namespace kvc::tool
