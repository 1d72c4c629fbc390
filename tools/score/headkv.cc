#include "tools/score/headkv.h"

#define KVC_EXPERIMENTAL
#include <algorithm>
#include <numeric>
#include <set>

#include "kvc/kvc_experimental.h"
#include "tools/failure.h"
#include "tools/score/utility.h"

namespace kvc::tool {
namespace {

constexpr size_t kMostSteps = 50;
constexpr double kCountedF1 = 0.5, kLeastOverlap = 0.5;

TokenSpan Locate(const Model& model, const ExampleSet& set, const Example& example) {
  const TokenList needle =
      model.TokenizeText(example.needle.empty() ? example.question + example.answers[0] : example.needle);
  double overlap = 0;
  const TokenSpan span = FindNeedle(set.prefixes[static_cast<size_t>(example.prefix)], needle, &overlap);
  if (overlap < kLeastOverlap) {
    throw Failure(example.where + ": the sentence that answers is not in the context; give it as \"needle\"");
  }
  return span;
}

class RetrievalRun {
 public:
  RetrievalRun(const Model& model, const std::vector<int32_t>& layers)
      : model_(model),
        stops_(model.StopTokens()),
        layers_(layers),
        logits_(static_cast<size_t>(model.info().vocab_size)),
        scores_(static_cast<size_t>(model.info().n_layers) * static_cast<size_t>(model.info().n_heads)) {}

  // Scores of one example [L][H]; *counted is whether its answer was good enough.
  const std::vector<double>& Run(Session* base, const Example& example, TokenSpan span, bool* counted) {
    std::optional<Session> session = base->Fork();
    if (!session) throw Failure("this cache cannot be shared by forks");
    std::fill(scores_.begin(), scores_.end(), 0.0);
    Check(kvc_session_observe_attention(session->get(), 1), "cannot observe the attention");
    for (size_t i = 0; i + 1 < example.fed.size(); ++i) Feed(&*session, example.fed[i]);
    TokenList written;
    int32_t next = example.fed.back();
    for (size_t step = 0; step < std::min(kMostSteps, example.answer.size()); ++step) {
      Feed(&*session, next);
      AddStep(&*session, span);
      session->GetLogits(&logits_);
      next = static_cast<int32_t>(std::max_element(logits_.begin(), logits_.end()) - logits_.begin());
      if (std::find(stops_.begin(), stops_.end(), next) != stops_.end() ||
          model_.Detokenize({next}).find('\n') != std::string::npos) {
        break;
      }
      written.push_back(next);
    }
    *counted = TextUtility(Metric::kF1, model_.Detokenize(written), example.answers, {}) > kCountedF1;
    return scores_;
  }

 private:
  void Feed(Session* session, int32_t token) {
    kvc_session* handle = session->get();
    Check(kvc_session_feed_batch(&handle, &token, 1), "cannot decode");
  }

  void AddStep(Session* session, TokenSpan span) {
    const int32_t n_heads = model_.info().n_heads;
    for (int32_t i = 0; i < static_cast<int32_t>(layers_.size()) * n_heads; ++i) {
      const int32_t layer = layers_[static_cast<size_t>(i / n_heads)], head = i % n_heads;
      int32_t n = 0;
      kvc_status status = kvc_session_get_attention(session->get(), layer, head, p_.data(),
                                                    static_cast<int32_t>(p_.size()), &n);
      if (status == KVC_E_BUFFER_TOO_SMALL) {
        p_.resize(static_cast<size_t>(n));
        status = kvc_session_get_attention(session->get(), layer, head, p_.data(), n, &n);
      }
      Check(status, "cannot read the attention");
      p_.resize(static_cast<size_t>(n));
      AddRetrieval(p_, span, &scores_[static_cast<size_t>(layer * n_heads + head)]);
    }
  }

  const Model& model_;
  const TokenList stops_;
  const std::vector<int32_t>& layers_;
  std::vector<float> logits_, p_;
  std::vector<double> scores_;
};

}  // namespace

TokenSpan FindNeedle(const TokenList& prompt, const TokenList& needle, double* overlap) {
  const std::set<int32_t> wanted(needle.begin(), needle.end());
  TokenSpan best;
  size_t most = 0;
  for (size_t begin = 0; begin + needle.size() <= prompt.size(); ++begin) {
    std::set<int32_t> found;
    for (size_t i = begin; i < begin + needle.size(); ++i) {
      if (wanted.count(prompt[i]) != 0) found.insert(prompt[i]);
    }
    if (found.size() > most) most = found.size(), best = {begin, begin + needle.size()};
  }
  *overlap = wanted.empty() ? 0 : static_cast<double>(most) / static_cast<double>(wanted.size());
  return best;
}

void AddRetrieval(const std::vector<float>& p, TokenSpan span, double* score) {
  const size_t length = span.end - span.begin, count = std::min(length, p.size());
  std::vector<size_t> order(p.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::partial_sort(order.begin(), order.begin() + static_cast<ptrdiff_t>(count), order.end(),
                    [&](size_t a, size_t b) { return p[a] != p[b] ? p[a] > p[b] : a < b; });
  for (size_t i = 0; i < count; ++i) {
    if (order[i] >= span.begin && order[i] < span.end)
      *score += static_cast<double>(p[order[i]]) / static_cast<double>(length);
  }
}

RetrievalScores MeasureRetrieval(const Model& model, const std::vector<int32_t>& layers,
                                 const ExampleSet& set, const std::function<void(int32_t done)>& on_example) {
  RetrievalScores total;
  RetrievalRun run(model, layers);
  const Policy full("full");
  std::optional<Session> base;
  int32_t prefilled = -1;
  for (const Example& example : set.examples) {
    if (example.fed.empty()) throw Failure(example.where + ": an empty question");
    const TokenSpan span = Locate(model, set, example);
    if (example.prefix != prefilled) {
      base.reset();
      base.emplace(model, full, DefaultSessionParams());
      base->Prefill(set.prefixes[static_cast<size_t>(example.prefix)]);
      prefilled = example.prefix;
    }
    bool counted = false;
    const std::vector<double>& scores = run.Run(&*base, example, span, &counted);
    total.scores.resize(scores.size());
    ++total.n_examples;
    if (counted) {
      ++total.n_counted;
      for (size_t i = 0; i < scores.size(); ++i) total.scores[i] += scores[i];
    }
    on_example(total.n_examples);
  }
  if (total.n_counted == 0) throw Failure("not enough samples: the model answered none of the questions");
  for (double& score : total.scores) score /= total.n_counted;
  return total;
}

}  // namespace kvc::tool
