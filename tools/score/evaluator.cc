#include "tools/score/evaluator.h"

#define KVC_EXPERIMENTAL
#include <algorithm>
#include <cmath>

#include "kvc/kvc_experimental.h"

namespace kvc::tool {

// One question after one coalition's masks.
struct UtilityEvaluator::Sequence {
  Session session;
  const Example& example;
  size_t coalition, index;       // of the example
  size_t n_fed = 0;              // of example.fed
  int32_t next = KVC_TOKEN_NONE;  // to feed once example.fed is used up
  TokenList written;             // generated, or the reference so far
  double log_likelihood = 0;     // nats, of the reference
  bool all_right = true, done = false;
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
    : model_(model), policy_(policy), set_(examples), options_(options), of_prefix_(examples.prefixes.size()),
      held_(examples.prefixes.size()), logits_(static_cast<size_t>(model.info().vocab_size)) {
  for (size_t i = 0; i < set_.examples.size(); ++i) {
    of_prefix_[static_cast<size_t>(set_.examples[i].prefix)].push_back(i);
  }
}

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

std::vector<double> UtilityEvaluator::Evaluate(const std::vector<Coalition>& coalitions) {
  const size_t n_examples = set_.examples.size(), total = coalitions.size() * n_examples;
  std::vector<std::vector<double>> utility(coalitions.size(), std::vector<double>(n_examples));
  size_t done = 0;
  for (size_t prefix = 0; prefix < of_prefix_.size(); ++prefix) {
    Session* base = Prefilled(prefix);
    const size_t n_sequences = coalitions.size() * of_prefix_[prefix].size();
    for (size_t begin = 0; begin < n_sequences; begin += static_cast<size_t>(options_.batch)) {
      const size_t end = std::min(n_sequences, begin + static_cast<size_t>(options_.batch));
      std::vector<std::unique_ptr<Sequence>> batch = StartBatch(base, coalitions, begin, end, prefix);
      RunBatch(&batch);
      for (const auto& sequence : batch) utility[sequence->coalition][sequence->index] = UtilityOf(*sequence);
      done += batch.size();
      if (on_batch) on_batch(static_cast<double>(done) / static_cast<double>(total));
    }
  }
  std::vector<double> means;
  for (const std::vector<double>& row : utility) {
    double sum = 0;
    for (const double u : row) sum += u;
    means.push_back(sum / static_cast<double>(n_examples));
  }
  counts_.n_evaluations += static_cast<int64_t>(total);
  return means;
}

std::vector<std::unique_ptr<UtilityEvaluator::Sequence>> UtilityEvaluator::StartBatch(
    Session* base, const std::vector<Coalition>& coalitions, size_t begin, size_t end, size_t prefix) {
  const std::vector<size_t>& examples = of_prefix_[prefix];
  std::vector<std::unique_ptr<Sequence>> batch;
  for (size_t i = begin; i < end; ++i) {
    const size_t coalition = i / examples.size(), index = examples[i % examples.size()];
    std::optional<Session> fork = base->Fork();
    if (!fork) throw Failure("this cache cannot be shared by forks");
    const Coalition& keep = coalitions[coalition];
    if (!keep.empty()) {
      Check(kvc_session_mask_heads(fork->get(), keep.data(), static_cast<int32_t>(keep.size()), options_.window),
            "cannot mask heads");
    }
    batch.emplace_back(new Sequence{std::move(*fork), set_.examples[index], coalition, index, 0, KVC_TOKEN_NONE, {}, 0,
                                    true, false});
    ++counts_.n_passes_alone;
    if (batch.back()->example.fed.empty()) TakeLogits(batch.back().get());
  }
  return batch;
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
    Check(kvc_session_feed_batch(sessions.data(), tokens.data(), static_cast<int32_t>(fed.size())), "cannot decode");
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
  if (greedy == model_.info().eos_token) {
    s->done = true;
    return;
  }
  s->next = greedy;
  s->written.push_back(greedy);
  s->done = static_cast<int32_t>(s->written.size()) >= options_.max_answer ||
            (options_.first_line && model_.Detokenize({greedy}).find('\n') != std::string::npos);
}

double UtilityEvaluator::UtilityOf(const Sequence& s) const {
  if (options_.metric == Metric::kNll) {
    return std::exp(s.log_likelihood / static_cast<double>(s.example.answer.size()));
  }
  if (options_.metric == Metric::kExact) return s.all_right ? 1 : 0;
  std::string text = model_.Detokenize(s.written);
  if (options_.first_line) text = text.substr(0, text.find('\n'));
  return TextUtility(options_.metric, text, s.example.answers, s.example.classes);
}

}  // namespace kvc::tool
