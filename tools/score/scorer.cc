#include "tools/score/scorer.h"

#include <algorithm>

#include "tools/command.h"

namespace kvc::tool {
namespace {

constexpr size_t kItemsPerChunk = 16;      // between two writes of the log
constexpr size_t kItemsPerPrefill = 128;   // where prompts must be prefilled again for every chunk

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Scorer::Scorer(const ScorePlan& plan, const ScorerOptions& options, UtilityEvaluator* evaluator, WorkLogWriter* log,
               WorkResults* done, const CancelOnInterrupt& interrupt)
    : plan_(plan), options_(options), evaluator_(evaluator), log_(log), done_(done), interrupt_(interrupt),
      progress_("scoring"), start_(std::chrono::steady_clock::now()) {
  evaluator_->on_batch = [this](double share) {
    if (interrupt_.interrupted()) throw Failure("interrupted; --resume goes on from here");
    Show(share);
  };
}

void Scorer::Run() {
  const bool by_rule = !plan_.exact && options_.samples == 0;
  const uint32_t most = static_cast<uint32_t>(by_rule ? options_.max_samples : options_.samples);
  n_total_ = static_cast<int64_t>(WorkItems(plan_, 0, most).size()) / options_.shard.count;
  n_before_ = static_cast<int64_t>(done_->size());
  // In rounds, so that both runs and all sizes are equally far when the rule is looked at.
  const uint32_t step = plan_.exact ? std::max(most, 1u) : kCheckInterval;
  uint32_t number = 0;
  for (uint32_t begin = 0; begin == 0 || begin < most; begin += step) {
    const uint32_t end = plan_.exact ? 1 : std::min(most, begin + step);
    std::vector<WorkKey> missing;
    for (const WorkKey& key : WorkItems(plan_, begin, end)) {
      const bool mine = number++ % static_cast<uint32_t>(options_.shard.count) == static_cast<uint32_t>(options_.shard.index);
      if (mine && done_->count(key) == 0) missing.push_back(key);
    }
    RunItems(missing);
    const bool stable = options_.shard.count == 1 && Stable(end);
    if (plan_.exact || (stable && by_rule)) break;
  }
  progress_.Clear();
  seconds_ = SecondsSince(start_);
}

void Scorer::RunItems(const std::vector<WorkKey>& items) {
  chunk_size_ = evaluator_->holds_all() ? kItemsPerChunk : kItemsPerPrefill;
  const size_t n_chunks = (items.size() + chunk_size_ - 1) / chunk_size_;
  for (size_t at = next_chunk ? next_chunk(n_chunks, 0) : 0; at < n_chunks;
       at = next_chunk ? next_chunk(n_chunks, at + 1) : at + 1) {
    const size_t begin = at * chunk_size_;
    RunChunk(items.data() + begin, std::min(chunk_size_, items.size() - begin));
  }
}

void Scorer::RunChunk(const WorkKey* items, size_t n) {
  std::vector<Coalition> coalitions;
  for (size_t i = 0; i < n; ++i) {
    coalitions.push_back(CoalitionOf(plan_, items[i]));
    coalitions.push_back(Others(coalitions.back()));
  }
  const std::vector<double> utility = evaluator_->Evaluate(coalitions);
  for (size_t i = 0; i < n; ++i) {
    const WorkResult result{evaluator_->n_examples(), utility[2 * i], utility[2 * i + 1]};
    log_->Append(items[i], result);
    (*done_)[items[i]] = result;
  }
  log_->Flush();
  n_here_ += static_cast<int64_t>(n);
}

bool Scorer::Stable(uint32_t n_samples) {
  ConvergencePoint point;
  if (plan_.exact || plan_.runs < 2 || !CompareRuns(plan_, *done_, options_.estimate, n_samples, &point)) return false;
  agreement_ = Format(", MAE %.2g, Spearman %.2f", point.mae, point.spearman);
  return point.mae < 1.0 / plan_.n_players() && point.spearman >= options_.min_spearman;
}

void Scorer::Show(double share_of_chunk) {
  const double seconds = SecondsSince(start_);
  const double measured = static_cast<double>(n_here_) + share_of_chunk * static_cast<double>(chunk_size_);
  const double done = static_cast<double>(n_before_) + measured, total = static_cast<double>(n_total_);
  const double left = measured > 0 ? seconds * std::max(0.0, total - done) / measured : 0;
  const double rate = 2 * measured * evaluator_->n_examples() / std::max(seconds, 1e-9);
  progress_.Update(done, total, Format("%.0f evaluations/s, %s left", rate, FormatSeconds(left).c_str()) + agreement_);
}

}  // namespace kvc::tool
