// U of many coalitions at the price of their decoding. Every prompt is prefilled once; a coalition is a fork
// of it that shares its pages, with the other heads cut to the window; forks are fed as one batch, so that
// the weights are read once for all. Exact: masking acts after the prefill, and a batch gives the same
// numbers as its sessions alone.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/kvc_handles.h"
#include "tools/score/estimators.h"
#include "tools/score/examples.h"
#include "tools/score/utility.h"

namespace kvc::tool {

struct EvaluatorOptions {
  Metric metric = Metric::kExact;
  int32_t window = 8, batch = 32, max_answer = 64;
  bool first_line = false;  // text counts up to its first line end
  int64_t cache_limit =
      int64_t{1} << 30;  // bytes of prefilled prompts held at a time; more are prefilled again
};

// Which heads keep their caches, [L, G], and the examples that is tried on; none named: all. Empty: nothing
// is masked.
struct Trial {
  Coalition keep;
  std::vector<int32_t> examples;  // ascending
};

struct EvaluatorCounts {
  int64_t n_evaluations = 0;  // coalition and question
  int64_t n_prefills = 0, n_batches_fed = 0;
  int64_t n_tokens_fed = 0;
  // What each coalition and question would take by itself: a prefill and a pass for every token after it.
  int64_t n_passes_alone = 0;
  int64_t passes() const { return n_prefills + n_batches_fed; }
};

class UtilityEvaluator {
 public:
  // examples must outlive this. policy: "full" for coalitions.
  UtilityEvaluator(const Model& model, const Policy& policy, const ExampleSet& examples,
                   const EvaluatorOptions& options);
  ~UtilityEvaluator();
  // Mean utility of each trial over its examples.
  std::vector<double> Evaluate(const std::vector<Trial>& trials);
  // Called after every batch with the share of the current Evaluate that is done; throws to end it.
  std::function<void(double)> on_batch;
  const EvaluatorCounts& counts() const { return counts_; }
  int32_t n_examples() const { return static_cast<int32_t>(set_.examples.size()); }
  bool holds_all() const { return holds_all_; }  // no prompt was prefilled twice so far, nor will be

 private:
  struct Sequence;
  struct Place;
  Session* Prefilled(size_t prefix);
  std::unique_ptr<Sequence> Start(const Trial& trial, const Place& place);
  void RunBatch(std::vector<std::unique_ptr<Sequence>>* batch);
  void TakeLogits(Sequence* sequence);
  double UtilityOf(const Sequence& sequence) const;

  const Model& model_;
  const TokenList stops_;
  const Policy& policy_;
  const ExampleSet& set_;
  const EvaluatorOptions options_;
  std::vector<std::optional<Session>> held_;
  std::optional<Session> passing_;  // the prompt that found no room
  int64_t held_bytes_ = 0;
  bool holds_all_ = true;
  EvaluatorCounts counts_;
  std::vector<float> logits_;
};

}  // namespace kvc::tool
