#include "tools/quality.h"

#include <algorithm>
#include <cmath>

#include "tools/explain/measure.h"

namespace kvc::tool {
namespace {

size_t Best(const std::vector<float>& logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

// ln of the sum of exp(logits).
double LogSum(const std::vector<float>& logits) {
  const double top = logits[Best(logits)];
  double sum = 0;
  for (const float x : logits) sum += std::exp(x - top);
  return top + std::log(sum);
}

// KL divergence of softmax(other) from softmax(reference), in nats.
double Divergence(const std::vector<float>& reference, const std::vector<float>& other) {
  const double reference_sum = LogSum(reference), other_sum = LogSum(other);
  double kl = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double log_p = reference[i] - reference_sum, log_q = other[i] - other_sum;
    kl += std::exp(log_p) * (log_p - log_q);
  }
  return kl < 0 ? 0 : kl;  // what is no number stays none
}

// Returns the divergence.
double Compare(const std::vector<float>& reference, const std::vector<float>& other, QualitySums* sums) {
  const double kl = Divergence(reference, other);
  ++sums->n_compared;
  sums->n_same_top += Best(reference) == Best(other);
  sums->kl += kl;
  return kl;
}

// Positions where both saw the same tokens: up to the first token that differs, which itself is compared.
void CompareTraces(const AnswerTrace& reference, AnswerTrace* other, size_t first, QualitySums* sums) {
  const size_t n = std::min(reference.logits.size(), other->logits.size());
  for (size_t i = 0; i < n; ++i) {
    if (i >= first) {
      other->kl += Compare(reference.logits[i], other->logits[i], sums);
      ++other->n_compared;
    }
    if (i >= other->tokens.size() || i >= reference.tokens.size() || reference.tokens[i] != other->tokens[i])
      return;
  }
}

}  // namespace

double QualitySums::perplexity() const {
  return n_scored == 0 ? 0 : std::exp(-log_likelihood / static_cast<double>(n_scored));
}

void AddSums(const QualitySums& from, QualitySums* to) {
  to->n += from.n;
  to->n_right += from.n_right;
  to->n_compared += from.n_compared;
  to->n_same_top += from.n_same_top;
  to->kl += from.kl;
  to->n_scored += from.n_scored;
  to->log_likelihood += from.log_likelihood;
  to->n_prompts += from.n_prompts;
  to->n_steps += from.n_steps;
  to->cache_bytes += from.cache_bytes;
  to->cache_bytes_full += from.cache_bytes_full;
  to->slots += from.slots;
  to->slots_full += from.slots_full;
  to->prefill_seconds += from.prefill_seconds;
  to->step_seconds += from.step_seconds;
  to->cache_bytes_peak = std::max(to->cache_bytes_peak, from.cache_bytes_peak);
}

Interval WilsonInterval(double share, double n) {
  if (n <= 0) return {};
  const double z = 1.959963984540054, scale = 1 + z * z / n, middle = (share + z * z / (2 * n)) / scale;
  const double half = z * std::sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / scale;
  return {std::max(0.0, middle - half), std::min(1.0, middle + half)};
}

Interval AccuracyInterval(const TaskCounts& by_task) {
  double n_tasks = 0, right = 0, asked = 0;
  for (const auto& [own_right, own_asked] : by_task) {
    n_tasks += own_asked > 0;
    right += static_cast<double>(own_right), asked += static_cast<double>(own_asked);
  }
  if (asked == 0) return {};
  const double share = right / asked;
  double squares = 0;  // of a ratio's residuals
  for (const auto& [own_right, own_asked] : by_task) {
    const double residual = static_cast<double>(own_right) - share * static_cast<double>(own_asked);
    squares += residual * residual;
  }
  const double variance = squares / (asked * asked), of_one = share * (1 - share);
  // All right or all wrong: how questions of a task hang together cannot be seen.
  if (of_one <= 0) return WilsonInterval(share, n_tasks);
  return WilsonInterval(share, of_one >= variance * asked ? asked : std::max(of_one / variance, n_tasks));
}

void AddPrompt(const kvc_session_stats& stats, QualitySums* sums) {
  ++sums->n_prompts;
  sums->cache_bytes += static_cast<double>(stats.cache_bytes);
  sums->cache_bytes_full += static_cast<double>(stats.cache_bytes_full);
  sums->slots += static_cast<double>(stats.n_slots);
  sums->slots_full += static_cast<double>(stats.n_slots_full);
  sums->prefill_seconds += stats.prefill_seconds;
  sums->cache_bytes_peak = std::max(sums->cache_bytes_peak, stats.cache_bytes_peak);
}

TaskEvaluator::TaskEvaluator(const Model& model, const std::vector<const Policy*>& policies,
                             TaskProtocol protocol)
    : model_(model), protocol_(protocol), full_("full"), reference_(model, full_, DefaultSessionParams()) {
  for (const Policy* policy : policies) {
    prompts_.emplace_back();
    if (policy->Describe() != full_.Describe())
      prompts_.back().emplace(model, *policy, DefaultSessionParams());
  }
}

std::array<int64_t, 2> CountsOf(const std::vector<AnswerTrace>& answers) {
  std::array<int64_t, 2> counts{};
  for (const AnswerTrace& answer : answers)
    counts[0] += answer.counts && answer.right, counts[1] += answer.counts;
  return counts;
}

AnswerTrace TaskEvaluator::Answer(Session* session, const TokenList& answer, QualitySums* sums) {
  AnswerTrace trace;
  const double before = session->Stats().decode_seconds;
  for (size_t i = 0; i < answer.size(); ++i) {
    trace.logits.emplace_back(static_cast<size_t>(model_.info().vocab_size));
    session->GetLogits(&trace.logits.back());
    const std::optional<int32_t> token = session->Step();
    if (!token) break;
    trace.tokens.push_back(*token);
    trace.text += session->ReadText();
  }
  sums->n_steps += static_cast<int64_t>(trace.tokens.size());
  sums->step_seconds += session->Stats().decode_seconds - before;
  const size_t first = protocol_ == TaskProtocol::kPrompt ? 1 : 0;
  trace.right =
      trace.tokens.size() == answer.size() &&
      std::equal(answer.begin() + static_cast<std::ptrdiff_t>(std::min(first, answer.size())), answer.end(),
                 trace.tokens.begin() + static_cast<std::ptrdiff_t>(std::min(first, answer.size())));
  trace.counts = answer.size() > first;
  if (trace.counts) {
    ++sums->n;
    sums->n_right += trace.right;
  }
  return trace;
}

// One pass over the prompt for the reference and all policies.
void TaskEvaluator::Start(const TokenList& prompt, std::vector<QualitySums>* sums) {
  std::vector<PromptOnce*> together = {&reference_};
  for (std::optional<PromptOnce>& own : prompts_) {
    if (own) together.push_back(&*own);
  }
  PromptOnce::StartTogether(together, prompt);
  if (explainer_ != nullptr) explainer_->NewPrompt();
  for (size_t p = 0; p < prompts_.size(); ++p) {
    AddPrompt((prompts_[p] ? *prompts_[p] : reference_).prompt_stats(), &(*sums)[p]);
  }
}

// Queries are the tokens whose successors are the answer: the last of the question, and of the answer all but
// the last.
void TaskEvaluator::Show(const TokenList& asked, const TokenList& answer) {
  TokenList fed = protocol_ == TaskProtocol::kAsk ? asked : TokenList();
  const size_t first = fed.empty() ? 0 : fed.size() - 1;
  if (!answer.empty()) fed.insert(fed.end(), answer.begin(), answer.end() - 1);
  std::vector<Session*> policies;
  for (std::optional<PromptOnce>& own : prompts_) policies.push_back(own ? own->base() : nullptr);
  explainer_->Question(reference_.base(), policies, fed, first);
}

bool TaskEvaluator::Fits(const Task& task) const {
  const TokenList context = model_.TokenizePrompt(task.context);
  size_t longest = 0;
  for (const Question& question : task.questions) {
    longest = std::max(longest, model_.TokenizeAfter(context, question.question).size() +
                                    model_.TokenizeAnswer(question.answer).size());
  }
  return context.size() + longest <= static_cast<size_t>(model_.info().max_tokens);
}

bool TaskEvaluator::Counts(const Question& question) const {
  return model_.TokenizeAnswer(question.answer).size() > (protocol_ == TaskProtocol::kPrompt ? 1u : 0u);
}

std::vector<Task> TasksThatFit(const Model& model, const TaskEvaluator& evaluator, const std::string& file,
                               int32_t limit) {
  std::vector<Task> usable;
  size_t n_long = 0;
  for (Task& task : ReadTasks(file)) {
    if (limit > 0 && usable.size() == static_cast<size_t>(limit)) break;
    if (evaluator.Fits(task)) {
      usable.push_back(std::move(task));
    } else {
      ++n_long;
    }
  }
  if (n_long == 0) return usable;
  const std::string why = Format("%s: %zu task%s longer than the model's context of %d tokens", file.c_str(),
                                 n_long, n_long == 1 ? " is" : "s are", model.info().max_tokens);
  if (usable.empty()) throw Failure(why + ": shorten it, or convert the model with --rope, to reach further");
  Note("kvc: note: " + why + " and left out");
  return usable;
}

std::vector<std::vector<AnswerTrace>> TaskEvaluator::Run(const Task& task, std::vector<QualitySums>* sums) {
  std::vector<std::vector<AnswerTrace>> all(prompts_.size());
  const TokenList context = model_.TokenizePrompt(task.context);
  const bool ask = protocol_ == TaskProtocol::kAsk;
  const size_t first = ask ? 0 : 1;
  if (ask) Start(context, sums);
  for (const Question& question : task.questions) {
    const TokenList asked = model_.TokenizeAfter(context, question.question),
                    answer = model_.TokenizeAnswer(question.answer);
    if (!ask) {
      TokenList whole = context;
      whole.insert(whole.end(), asked.begin(), asked.end());
      Start(whole, sums);
    }
    if (explainer_ != nullptr) Show(asked, answer);
    QualitySums reference_sums;
    const AnswerTrace reference =
        Answer(ask ? reference_.Ask(asked) : reference_.base(), answer, &reference_sums);
    for (size_t p = 0; p < prompts_.size(); ++p) {
      QualitySums* own = &(*sums)[p];
      if (prompts_[p]) {
        all[p].push_back(Answer(ask ? prompts_[p]->Ask(asked) : prompts_[p]->base(), answer, own));
      } else {
        AddSums(reference_sums, own);
        all[p].push_back(reference);
      }
      CompareTraces(reference, &all[p].back(), first, own);
      all[p].back().logits = {};
    }
  }
  return all;
}

TextEvaluator::TextEvaluator(const Model& model, const std::vector<const Policy*>& policies,
                             TextProtocol protocol, int32_t window)
    : model_(model), protocol_(protocol), window_(window), added_(model.added_tokens()) {
  sessions_.emplace_back(model, Policy("full"), DefaultSessionParams());
  for (const Policy* policy : policies) sessions_.emplace_back(model, *policy, DefaultSessionParams());
}

int32_t TextEvaluator::ShortestWindow(const Model& model) {
  return std::max(2, 2 * static_cast<int32_t>(model.added_tokens().size()));
}

int64_t TextEvaluator::CountWindows(const TokenList& tokens) const {
  const int64_t n = static_cast<int64_t>(tokens.size()), stride = window_ / 2;
  const int64_t body = window_ - static_cast<int64_t>(added_.size());
  return n < body ? 0 : 1 + (n - body) / stride;
}

void TextEvaluator::Run(const TokenList& tokens, int64_t window_index, std::vector<QualitySums>* sums) {
  const int32_t half = window_ / 2;
  const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(window_index * half);
  TokenList window = added_;
  window.insert(window.end(), begin, begin + (window_ - static_cast<int32_t>(window.size())));
  std::vector<std::vector<float>> logits(sessions_.size(),
                                         std::vector<float>(static_cast<size_t>(model_.info().vocab_size)));
  const bool prefix = protocol_ == TextProtocol::kPrefix;
  for (Session& session : sessions_) {
    if (used_) session.Reset();
    if (prefix) session.Prefill(TokenList(window.begin(), window.begin() + half));
  }
  used_ = true;
  for (int32_t i = prefix ? half : 0; i < window_; ++i) {
    const TokenList next = {window[static_cast<size_t>(i)]};
    for (size_t s = 0; s < sessions_.size(); ++s) {
      if (i >= half) {
        sessions_[s].GetLogits(&logits[s]);
        if (s > 0) {
          QualitySums* own = &(*sums)[s - 1];
          ++own->n_scored;
          own->log_likelihood += logits[s][static_cast<size_t>(next[0])] - LogSum(logits[s]);
          Compare(logits[0], logits[s], own);
        }
      }
      prefix ? sessions_[s].Append(next) : sessions_[s].Prefill(next);
    }
  }
  for (size_t s = 1; s < sessions_.size(); ++s) AddPrompt(sessions_[s].Stats(), &(*sums)[s - 1]);
}

}  // namespace kvc::tool
