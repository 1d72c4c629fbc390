#include "tools/score/scorer.h"

#include <algorithm>

#include "tools/failure.h"
#include "tools/score/players.h"

namespace kvc::tool {
namespace {

// Between two writes of the log: evaluations, and items where prompts must be prefilled again for every
// chunk.
constexpr size_t kEvaluationsPerChunk = 256, kItemsPerPrefill = 128;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

Scorer::Scorer(const ScorePlan& plan, const ScorerOptions& options, UtilityEvaluator* evaluator,
               WorkLogWriter* log, WorkResults* done, const CancelOnSignal& cancel, Team* team)
    : plan_(plan),
      options_(options),
      evaluator_(evaluator),
      log_(log),
      done_(done),
      cancel_(cancel),
      team_(team),
      progress_("scoring"),
      start_(std::chrono::steady_clock::now()),
      compare_(plan, options.estimate) {
  evaluator_->on_batch = [this](double share) {
    if (cancel_.received()) throw Failure("interrupted; --resume goes on from here");
    Show(share);
  };
}

void Scorer::Run() {
  const bool by_rule = !plan_.exact && options_.samples == 0;
  const uint32_t most = static_cast<uint32_t>(by_rule ? options_.max_samples : options_.samples);
  n_total_ = CountWorkItems(plan_, most) / options_.shard.count;
  n_before_ = static_cast<int64_t>(done_->size());
  // In rounds, so that both runs and all sizes are equally far when the rule is looked at.
  // Where nothing looks, a team gets everything at once and nobody waits for the end of a round.
  const uint32_t step = plan_.exact || (team_ != nullptr && !by_rule) ? std::max(most, 1u) : kCheckInterval;
  uint32_t number = 0;
  for (uint32_t begin = 0; begin == 0 || begin < most; begin += step) {
    const uint32_t end = plan_.exact ? 1 : std::min(most, begin + step);
    std::vector<WorkKey> missing;
    for (const WorkKey& key : WorkItems(plan_, begin, end)) {
      const bool mine = number++ % static_cast<uint32_t>(options_.shard.count) ==
                        static_cast<uint32_t>(options_.shard.index);
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
  const size_t n_evaluations = 2 * static_cast<size_t>(ExamplesAnItem());
  chunk_size_ = std::max(size_t{4}, kEvaluationsPerChunk / n_evaluations);
  if (!evaluator_->holds_all()) chunk_size_ = std::max(chunk_size_, kItemsPerPrefill);
  std::vector<WorkChunk> chunks;
  for (size_t begin = 0; begin < items.size(); begin += chunk_size_) {
    const auto first = items.begin() + static_cast<ptrdiff_t>(begin);
    chunks.emplace_back(first, first + static_cast<ptrdiff_t>(std::min(chunk_size_, items.size() - begin)));
  }
  if (team_ != nullptr) {
    team_->Distribute(
        chunks, [this](const WorkChunk& chunk, const ChunkResults& results) { Record(chunk, results); },
        [this] { evaluator_->on_batch(0); });
    return;
  }
  for (const WorkChunk& chunk : chunks) Record(chunk, MeasureChunk(plan_, chunk, evaluator_));
}

ChunkResults MeasureChunk(const ScorePlan& plan, const WorkChunk& chunk, UtilityEvaluator* evaluator) {
  std::vector<Trial> trials;
  for (const WorkKey& key : chunk) {
    const std::vector<int32_t> examples = ExamplesOf(plan, key, evaluator->n_examples());
    const Coalition coalition = CoalitionOf(plan, key);
    trials.push_back({KeptHeads(plan, coalition), examples});
    trials.push_back({KeptHeads(plan, Others(coalition)), examples});
  }
  const std::vector<double> utility = evaluator->Evaluate(trials);
  const int32_t n_examples = plan.draw_examples > 0 ? plan.draw_examples : evaluator->n_examples();
  ChunkResults results;
  for (size_t i = 0; i < chunk.size(); ++i)
    results.push_back({n_examples, utility[2 * i], utility[2 * i + 1]});
  return results;
}

void Scorer::Record(const WorkChunk& chunk, const ChunkResults& results) {
  for (size_t i = 0; i < chunk.size(); ++i) {
    log_->Append(chunk[i], results[i]);
    (*done_)[chunk[i]] = results[i];
  }
  log_->Flush();
  n_here_ += static_cast<int64_t>(chunk.size());
}

int32_t Scorer::ExamplesAnItem() const {
  return plan_.draw_examples > 0 ? plan_.draw_examples : evaluator_->n_examples();
}

bool Scorer::Stable(uint32_t n_samples) {
  ConvergencePoint point;
  if (plan_.exact || plan_.runs < 2 || !compare_.Upto(n_samples, *done_, &point)) return false;
  agreement_ = Format(", MAE %.2g, Spearman %.2f", point.mae, point.spearman);
  return point.mae < 1.0 / plan_.n_players() && point.spearman >= options_.min_spearman;
}

void Scorer::Show(double share_of_chunk) {
  const double seconds = SecondsSince(start_);
  const double measured = static_cast<double>(n_here_) + share_of_chunk * static_cast<double>(chunk_size_);
  const double done = static_cast<double>(n_before_) + measured, total = static_cast<double>(n_total_);
  const double left = measured > 0 ? seconds * std::max(0.0, total - done) / measured : 0;
  const double rate = 2 * measured * ExamplesAnItem() / std::max(seconds, 1e-9);
  progress_.Update(done, total,
                   Format("%.0f evaluations/s, %s left", rate, FormatSeconds(left).c_str()) + agreement_);
}

}  // namespace kvc::tool
