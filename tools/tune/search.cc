#include "tools/tune/search.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>

#include "tools/score/random.h"

namespace kvc::tool {
namespace {

constexpr uint32_t kSplitTag = 0x5475, kQuestionTag = 0x5175;  // of draws, so that they are independent

std::string WithBudget(const std::string& spec, const std::string& key, double value) {
  const char* join = spec.find(':') == std::string::npos ? ":" : spec.back() == ':' ? "" : ",";
  const std::string number =
      key == "budget_ratio" ? Format("%.6g", value) : Format("%lld", static_cast<long long>(value));
  return spec + join + key + "=" + number;
}

std::vector<double> DefaultBudgets(const std::string& key, int32_t n_prompt, int64_t full_bytes) {
  constexpr int32_t kFewestSlots = 4;
  std::vector<double> values;
  const double unit = key == "budget_ratio"   ? 1.0 / n_prompt
                      : key == "budget_bytes" ? static_cast<double>(full_bytes) / n_prompt
                                              : 1.0;
  for (int i = 1;; ++i) {
    const double slots = n_prompt / std::pow(2.0, 0.5 * i);
    if (slots < kFewestSlots) return values;
    values.push_back(key == "budget_ratio" ? slots * unit : std::floor(slots * unit));
  }
}

// A policy that a session of this model takes; otherwise why not.
std::optional<Policy> UsablePolicy(const Model& model, const std::string& spec, const TableOptions& options,
                                   const Tables& tables, int32_t n_prompt, std::string* why) {
  try {
    Policy policy = MakePolicy(spec, options, tables);
    static_cast<void>(PlanSession(model, policy, DefaultSessionParams(), n_prompt));
    return policy;
  } catch (const UsageError& error) {
    *why = error.what();
  } catch (const StatusFailure& failure) {
    if (failure.status() != KVC_E_INVALID) throw;
    *why = failure.what();
  }
  return std::nullopt;
}

}  // namespace

void ReadBudgets(const std::vector<std::string>& texts, bool key_was_given, TuneBudgets* budgets) {
  std::string key = key_was_given ? budgets->key : "";
  for (const std::string& text : texts) {
    const bool percent = !text.empty() && text.back() == '%';
    const bool bytes = !percent && text.find_first_of("BKMGT") != std::string::npos;
    const std::string own = percent ? "budget_ratio" : bytes ? "budget_bytes" : budgets->key;
    if (!key.empty() && own != key) throw UsageError("--budgets " + text + " beside numbers of " + key);
    key = own;
    std::string number = percent ? text.substr(0, text.size() - 1)
                         : bytes ? std::to_string(ParseBytes(text))
                                 : text;
    const std::string problem = Real(1e-9, 1e15)(number);
    if (!problem.empty()) throw UsageError("--budgets: " + problem);
    budgets->values.push_back(std::strtod(number.c_str(), nullptr) / (percent ? 100 : 1));
  }
  if (!key.empty()) budgets->key = key;
}

std::vector<TuneLadder> MakeLadders(const Model& model, const std::vector<std::string>& specs,
                                    const TuneBudgets& budgets, const TableOptions& table_options,
                                    const Tables& tables, int32_t n_prompt) {
  const SessionPlan full = PlanSession(model, Policy("full"), DefaultSessionParams(), n_prompt);
  std::vector<double> values = budgets.values;
  if (values.empty()) values = DefaultBudgets(budgets.key, n_prompt, full.bytes.cache_bytes_full);
  std::sort(values.rbegin(), values.rend());
  values.erase(std::unique(values.begin(), values.end()), values.end());
  std::vector<TuneLadder> ladders;
  for (const std::string& spec : specs) {
    TuneLadder ladder;
    std::string why, first_why;
    std::optional<Policy> whole = UsablePolicy(model, spec, table_options, tables, n_prompt, &why);
    if (whole) ladder.push_back({std::move(*whole), {}});
    for (size_t i = 0; !whole && i < values.size(); ++i) {
      std::optional<Policy> policy = UsablePolicy(model, WithBudget(spec, budgets.key, values[i]),
                                                  table_options, tables, n_prompt, &why);
      if (policy) ladder.push_back({std::move(*policy), {}});
      if (first_why.empty()) first_why = why;
    }
    if (ladder.empty()) throw UsageError(spec + ": " + (first_why.empty() ? why : first_why));
    ladders.push_back(std::move(ladder));
  }
  return ladders;
}

size_t HeldOutOf(size_t n_tasks, double share) {
  return static_cast<size_t>(std::floor(share * static_cast<double>(n_tasks)));
}

TaskSplit SplitTasks(size_t n_tasks, double held_out_share, uint64_t seed) {
  const std::vector<int32_t> order = Permutation(seed, 0, 0, kSplitTag, static_cast<int32_t>(n_tasks));
  const size_t n_held = HeldOutOf(n_tasks, held_out_share);
  TaskSplit split;
  for (size_t i = 0; i < order.size(); ++i)
    (i < n_held ? split.held_out : split.tune).push_back(static_cast<size_t>(order[i]));
  return split;
}

double TaskLoss::mean() const {
  const auto n = std::count(lost.begin(), lost.end(), true);
  return Ratio(static_cast<double>(n), static_cast<double>(lost.size()));
}

TaskLoss LossOf(const TunePromise& promise, const std::vector<AnswerTrace>& full,
                const std::vector<AnswerTrace>& own) {
  TaskLoss loss;
  for (size_t q = 0; q < own.size(); ++q) {
    if (!own[q].counts) continue;
    const double kl = Ratio(own[q].kl, static_cast<double>(own[q].n_compared));
    loss.lost.push_back(promise.metric == TuneMetric::kKl ? kl > promise.max_kl
                                                          : full[q].right && !own[q].right);
  }
  return loss;
}

TuneSearch::TuneSearch(const Model& model, TaskProtocol protocol, const TunePromise& promise,
                       std::vector<TuneLadder>* ladders, int64_t n_draws, bool is_binary)
    : model_(model),
      protocol_(protocol),
      promise_(promise),
      ladders_(*ladders),
      test_(
          [&] {
            std::vector<int32_t> rungs;
            for (const TuneLadder& ladder : *ladders) rungs.push_back(static_cast<int32_t>(ladder.size()));
            return rungs;
          }(),
          n_draws, is_binary, promise.max_loss, promise.confidence) {}

size_t TuneSearch::CountOpen() const {
  size_t n = 0;
  for (size_t l = 0; l < ladders_.size(); ++l) {
    for (size_t r = 0; r < ladders_[l].size(); ++r) n += test_.IsOpen(l, r);
  }
  return n;
}

void TuneSearch::Run(const Task& task) {
  if (!evaluator_ || tried_.size() != CountOpen()) {
    std::vector<const Policy*> policies = {&full_};  // the reference's own answers
    tried_.clear();
    for (size_t l = 0; l < ladders_.size(); ++l) {
      for (size_t r = 0; r < ladders_[l].size() && test_.IsOpen(l, r); ++r) {
        tried_.emplace_back(l, r);
        policies.push_back(&ladders_[l][r].policy);
      }
    }
    evaluator_ = nullptr;  // its sessions go before new ones come
    evaluator_ = std::make_unique<TaskEvaluator>(model_, policies, protocol_);
  }
  std::vector<QualitySums> sums(tried_.size() + 1);
  const std::vector<std::vector<AnswerTrace>> answers = evaluator_->Run(task, &sums);
  for (size_t i = 0; i < tried_.size(); ++i) {
    const auto [l, r] = tried_[i];
    AddSums(sums[i + 1], &ladders_[l][r].sums);
    test_.Add(l, r, LossOf(promise_, answers[0], answers[i + 1]).mean());
  }
  test_.EndDraw();
}

std::pair<int, int> TuneSearch::Best() const {
  std::pair<int, int> best = {-1, -1};
  double fewest = 0;
  for (size_t l = 0; l < ladders_.size(); ++l) {
    for (size_t r = 0; r < test_.CountPassed(l); ++r) {
      const QualitySums& sums = ladders_[l][r].sums;
      const double bytes = sums.mean(sums.cache_bytes);
      if (best.first >= 0 && bytes >= fewest) continue;
      best = {static_cast<int>(l), static_cast<int>(r)};
      fewest = bytes;
    }
  }
  return best;
}

void RunHeldOut(TaskEvaluator* evaluator, const TunePromise& promise, const Task& task, size_t index,
                uint64_t seed, HeldOut* out) {
  std::vector<QualitySums> sums(2);
  const std::vector<std::vector<AnswerTrace>> answers = evaluator->Run(task, &sums);
  const TaskLoss loss = LossOf(promise, answers[0], answers[1]);
  const uint32_t word = PhiloxWords(static_cast<uint32_t>(index), 0, 0, kQuestionTag, seed)[0];
  ++out->n_tasks;
  out->n_violations += loss.lost[word % loss.lost.size()];
  out->total_loss += loss.mean();
  AddSums(sums[0], &out->full);
  AddSums(sums[1], &out->own);
}

}  // namespace kvc::tool
