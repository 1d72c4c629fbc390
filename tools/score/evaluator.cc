#include "tools/score/evaluator.h"

#define KVC_EXPERIMENTAL
#include <algorithm>
#include <cmath>
#include <numeric>

#include "kvc/kvc_experimental.h"
#include "tools/generate.h"

namespace kvc::tool {

// One question after one coalition's masks.
struct UtilityEvaluator::Sequence {
  Session session;
  const Example& example;
  size_t trial, slot;             // where its utility goes
  size_t n_fed = 0;               // of example.fed
  int32_t next = KVC_TOKEN_NONE;  // to feed once example.fed is used up
  TokenList written;              // generated, or the reference so far
  double log_likelihood = 0;      // nats, of the reference
  bool all_right = true, done = false;
};

// One example of one trial. Sorted by prompt, so that a prompt is prefilled once.
struct UtilityEvaluator::Place {
  size_t prefix, trial, slot, example;
};

namespace {

double LogSumExp(const std::vector<float>& logits, float top) {
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - top);
  return top + std::log(sum);
}

}  // namespace

UtilityEvaluator::UtilityEvaluator(const Model& model, const Policy& policy, const ExampleSet& examples,
                                   const EvaluatorOptions& options)
    : model_(model),
      stops_(model.StopTokens()),
      policy_(policy),
      set_(examples),
      options_(options),
      held_(examples.prefixes.size()),
      logits_(static_cast<size_t>(model.info().vocab_size)) {}

UtilityEvaluator::~UtilityEvaluator() = default;

Session* UtilityEvaluator::Prefilled(size_t prefix) {
  if (held_[prefix]) return &*held_[prefix];
  passing_.reset();
  Session session(model_, policy_, DefaultSessionParams());
  session.Prefill(set_.prefixes[prefix]);
  ++counts_.n_prefills;
  const int64_t bytes = session.Stats().cache_bytes;
  if (held_bytes_ + bytes > options_.cache_limit) {
    holds_all_ = false;
    passing_ = std::move(session);
    return &*passing_;
  }
  held_bytes_ += bytes;
  held_[prefix] = std::move(session);
  return &*held_[prefix];
}

std::vector<double> UtilityEvaluator::Evaluate(const std::vector<Trial>& trials) {
  std::vector<int32_t> all(set_.examples.size());
  std::iota(all.begin(), all.end(), 0);
  std::vector<Place> places;
  std::vector<std::vector<double>> utility;
  for (size_t t = 0; t < trials.size(); ++t) {
    const std::vector<int32_t>& chosen = trials[t].examples.empty() ? all : trials[t].examples;
    for (size_t slot = 0; slot < chosen.size(); ++slot) {
      const size_t example = static_cast<size_t>(chosen[slot]);
      places.push_back({static_cast<size_t>(set_.examples[example].prefix), t, slot, example});
    }
    utility.emplace_back(chosen.size());
  }
  std::stable_sort(places.begin(), places.end(),
                   [](const Place& a, const Place& b) { return a.prefix < b.prefix; });
  std::vector<std::unique_ptr<Sequence>> batch;
  for (size_t i = 0; i < places.size(); ++i) {
    batch.push_back(Start(trials[places[i].trial], places[i]));
    if (batch.size() < static_cast<size_t>(options_.batch) && i + 1 < places.size()) continue;
    RunBatch(&batch);
    for (const auto& sequence : batch) utility[sequence->trial][sequence->slot] = UtilityOf(*sequence);
    batch.clear();
    if (on_batch) on_batch(static_cast<double>(i + 1) / static_cast<double>(places.size()));
  }
  std::vector<double> means;
  for (const std::vector<double>& row : utility) {
    means.push_back(std::accumulate(row.begin(), row.end(), 0.0) / static_cast<double>(row.size()));
  }
  counts_.n_evaluations += static_cast<int64_t>(places.size());
  return means;
}

std::unique_ptr<UtilityEvaluator::Sequence> UtilityEvaluator::Start(const Trial& trial, const Place& place) {
  std::optional<Session> fork = Prefilled(place.prefix)->Fork();
  if (!fork) throw Failure("this cache cannot be shared by forks");
  const Coalition& keep = trial.keep;
  if (!keep.empty()) {
    Check(
        kvc_session_mask_heads(fork->get(), keep.data(), static_cast<int32_t>(keep.size()), options_.window),
        "cannot mask heads");
  }
  std::unique_ptr<Sequence> sequence(new Sequence{std::move(*fork),
                                                  set_.examples[place.example],
                                                  place.trial,
                                                  place.slot,
                                                  0,
                                                  KVC_TOKEN_NONE,
                                                  {},
                                                  0,
                                                  true,
                                                  false});
  ++counts_.n_passes_alone;
  if (sequence->example.fed.empty()) TakeLogits(sequence.get());
  return sequence;
}

// In step: every sequence that is not done gets its next token.
void UtilityEvaluator::RunBatch(std::vector<std::unique_ptr<Sequence>>* batch) {
  std::vector<kvc_session*> sessions;
  std::vector<int32_t> tokens;
  std::vector<Sequence*> fed;
  for (;;) {
    sessions.clear(), tokens.clear(), fed.clear();
    for (const auto& sequence : *batch) {
      if (sequence->done) continue;
      const TokenList& question = sequence->example.fed;
      tokens.push_back(sequence->n_fed < question.size() ? question[sequence->n_fed] : sequence->next);
      sessions.push_back(sequence->session.get());
      fed.push_back(sequence.get());
    }
    if (fed.empty()) return;
    Check(kvc_session_feed_batch(sessions.data(), tokens.data(), static_cast<int32_t>(fed.size())),
          "cannot decode");
    ++counts_.n_batches_fed;
    counts_.n_tokens_fed += static_cast<int64_t>(fed.size());
    for (Sequence* sequence : fed) {
      const size_t n_question = sequence->example.fed.size();
      // Alone, the question would be one pass and each token after it another.
      if (sequence->n_fed == 0 || sequence->n_fed >= n_question) ++counts_.n_passes_alone;
      ++sequence->n_fed;
      if (sequence->n_fed >= n_question) TakeLogits(sequence);
    }
  }
}

void UtilityEvaluator::TakeLogits(Sequence* s) {
  s->session.GetLogits(&logits_);
  const auto best = std::max_element(logits_.begin(), logits_.end());
  const int32_t greedy = static_cast<int32_t>(best - logits_.begin());
  const TokenList& answer = s->example.answer;
  if (options_.metric == Metric::kNll || options_.metric == Metric::kExact) {
    const int32_t wanted = answer[s->written.size()];
    if (options_.metric == Metric::kNll) {
      s->log_likelihood += logits_[static_cast<size_t>(wanted)] - LogSumExp(logits_, *best);
    }
    s->all_right = s->all_right && greedy == wanted;
    s->next = wanted;
    s->written.push_back(wanted);
    s->done = s->written.size() == answer.size() || (options_.metric == Metric::kExact && !s->all_right);
    return;
  }
  if (std::find(stops_.begin(), stops_.end(), greedy) != stops_.end()) {
    s->done = true;
    return;
  }
  s->next = greedy;
  s->written.push_back(greedy);
  s->done = static_cast<int32_t>(s->written.size()) >= options_.max_answer;
  if (!options_.first_line || s->done) return;
  const std::string text = model_.Detokenize(s->written);  // a line begins with its text
  s->done = text.find('\n', text.find_first_not_of('\n')) != std::string::npos;
}

double UtilityEvaluator::UtilityOf(const Sequence& s) const {
  if (options_.metric == Metric::kNll) {
    const double likelihood = std::exp(s.log_likelihood / static_cast<double>(s.example.answer.size()));
    if (!(likelihood >= 0 && likelihood <= 1.0001))  // no log is to hold it, and no mean
      throw Failure("the model's logits are no numbers: an answer has no likelihood");
    return likelihood;
  }
  if (options_.metric == Metric::kExact) return s.all_right ? 1 : 0;
  std::string text = model_.Detokenize(s.written);
  if (options_.first_line) text = FirstLine(text);
  return TextUtility(options_.metric, text, s.example.answers, s.example.classes);
}

}  // namespace kvc::tool
