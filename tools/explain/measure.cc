#include "tools/explain/measure.h"

#define KVC_EXPERIMENTAL
#include <algorithm>
#include <cmath>

#include "kvc/kvc_experimental.h"
#include "models/convert/stored_matrix.h"

namespace kvc::tool {
namespace {

void Feed(Session* session, int32_t token) {
  kvc_session* handle = session->get();
  Check(kvc_session_feed_batch(&handle, &token, 1), "cannot decode");
}

Session Forked(Session* session) {
  std::optional<Session> fork = session->Fork();
  if (!fork) throw Failure("--explain: this cache cannot be shared by forks");
  return std::move(*fork);
}

std::vector<float> AttentionOf(const Session& session, int32_t layer, int32_t head, size_t n) {
  std::vector<float> p(n);
  int32_t count = 0;
  Check(kvc_session_get_attention(session.get(), layer, head, p.data(), static_cast<int32_t>(n), &count),
        "cannot read the attention");
  p.resize(static_cast<size_t>(count));
  return p;
}

using GetVectors = kvc_status (*)(kvc_session*, int32_t, int32_t, float*, int32_t, int32_t*);

// [n, D] of a KV head: kvc_session_get_keys, or values.
std::vector<float> VectorsOf(const Session& session, GetVectors get, int32_t layer, int32_t kv_head,
                             size_t n_floats) {
  std::vector<float> vectors(n_floats);
  int32_t count = 0;
  Check(get(session.get(), layer, kv_head, vectors.data(), static_cast<int32_t>(n_floats), &count),
        "cannot read the cache");
  vectors.resize(static_cast<size_t>(count));
  if (!std::all_of(vectors.begin(), vectors.end(), [](float x) { return std::isfinite(x); }))
    throw Failure(Format("--explain: KV head %d of layer %d holds what is no number", kv_head, layer));
  return vectors;
}

// What a head keeps as it is.
std::vector<int32_t> KeptTokens(const Session& session, int32_t layer, int32_t kv_head) {
  std::vector<int32_t> positions = session.Kept(layer, kv_head);
  if (!positions.empty() && positions[0] < 0) {
    throw Failure(
        "--explain: with reducer=rest nothing that is dropped is gone, and what is lost of it is not "
        "measured");
  }
  return positions;
}

// [G][n] whether a query at position n - 1 sees an entry: what was kept before it came, and its own, whatever
// is dropped behind it.
std::vector<std::vector<uint8_t>> Visible(const Session& session, size_t layer, int32_t n_kv_heads,
                                          size_t n) {
  std::vector<std::vector<uint8_t>> visible;
  for (int32_t g = 0; g < n_kv_heads; ++g) {
    visible.emplace_back(n);
    for (const int32_t position : KeptTokens(session, static_cast<int32_t>(layer), g))
      visible.back()[static_cast<size_t>(position)] = 1;
    visible.back()[n - 1] = 1;
  }
  return visible;
}

void Add(const LayerLoss& from, LayerLoss* to) {
  to->loss += from.loss, to->output += from.output, to->bound += from.bound;
  to->bound_by_head += from.bound_by_head, to->retained += from.retained;
}

}  // namespace

Explainer::Explainer(const Model& model, const std::string& path, double top_share)
    : model_(model), top_share_(top_share) {
  const Result<std::vector<std::vector<float>>> projections = ReadOutputProjections(path);
  if (!projections.ok()) throw Failure(projections.status().message());
  const kvc_model_info& info = model.info();
  for (const std::vector<float>& projection : projections.value())
    layers_.emplace_back(info.n_heads, info.n_kv_heads, info.head_dim, projection);
}

// Attention of every query over the full cache, and the values it was over.
void Explainer::Observe(Session* full, const TokenList& fed, size_t first) {
  Session session = Forked(full);
  Check(kvc_session_observe_attention(session.get(), 1), "cannot observe the attention");
  const kvc_model_info& info = model_.info();
  queries_.clear();
  for (size_t i = 0; i < fed.size(); ++i) {
    Feed(&session, fed[i]);
    if (i < first) continue;
    const size_t n = static_cast<size_t>(session.Stats().n_prompt) + i + 1;
    Query query(layers_.size());
    for (int32_t layer = 0; layer < info.n_layers; ++layer) {
      for (int32_t head = 0; head < info.n_heads; ++head) {
        std::vector<float> p = AttentionOf(session, layer, head, n);
        if (p.size() != n)
          throw Failure("--explain: the model has layers that attend to their newest tokens only");
        full_->top[static_cast<size_t>(layer * info.n_heads + head)] += TopShare(p, top_share_);
        query[static_cast<size_t>(layer)].push_back(std::move(p));
      }
    }
    ++full_->n_queries;
    queries_.push_back(std::move(query));
  }
  const size_t n_floats = queries_.back()[0][0].size() * static_cast<size_t>(info.head_dim);
  for (int32_t layer = 0; layer < info.n_layers; ++layer) {
    for (int32_t g = 0; g < info.n_kv_heads; ++g)
      layers_[static_cast<size_t>(layer)].Set(
          g, VectorsOf(session, kvc_session_get_values, layer, g, n_floats), n_prompt_);
  }
}

// Singular values of what is cached of a new prompt.
void Explainer::AddSpectra(const Session& full) const {
  const kvc_model_info& info = model_.info();
  const size_t d = static_cast<size_t>(info.head_dim),
               n_floats = static_cast<size_t>(full.Stats().n_prompt) * d;
  full_->keys.resize(layers_.size()), full_->values.resize(layers_.size());
  for (int32_t i = 0; i < model_.n_kv_heads_total(); ++i) {
    const int32_t layer = i / info.n_kv_heads, g = i % info.n_kv_heads;
    const auto add = [&](GetVectors get, std::vector<Spectrum>* to) {
      AddSpectrum(SpectrumOf(SingularValues(VectorsOf(full, get, layer, g, n_floats), d)),
                  1.0 / info.n_kv_heads, &(*to)[static_cast<size_t>(layer)]);
    };
    add(kvc_session_get_keys, &full_->keys);
    add(kvc_session_get_values, &full_->values);
  }
  ++full_->n_prompts;
}

// Where in the prompt those entries stand that are kept when the question comes.
void Explainer::CountParts(const Session* policy, ExplainSums* sums) const {
  const kvc_model_info& info = model_.info();
  ++sums->n_questions;
  for (int32_t i = 0; policy != nullptr && i < model_.n_kv_heads_total(); ++i) {
    for (const int32_t position : KeptTokens(*policy, i / info.n_kv_heads, i % info.n_kv_heads)) {
      const size_t part = static_cast<size_t>(position) * kParts / n_prompt_,
                   begin = (part * n_prompt_ + kParts - 1) / kParts,
                   end = ((part + 1) * n_prompt_ + kParts - 1) / kParts;
      sums->kept[part] += 1.0 / static_cast<double>(end - begin) / model_.n_kv_heads_total();
    }
  }
  for (size_t part = 0; policy == nullptr && part < kParts; ++part) sums->kept[part] += 1;
}

// Of the newest fed token; full [H][n], there [G][n].
double Explainer::Similarity(const Session& policy, size_t layer, const std::vector<std::vector<float>>& full,
                             const std::vector<std::vector<uint8_t>>& there) const {
  double sum = 0;
  for (size_t h = 0; h < full.size(); ++h) {
    const std::vector<uint8_t>& own = there[h * there.size() / full.size()];
    const std::vector<float> p =
        AttentionOf(policy, static_cast<int32_t>(layer), static_cast<int32_t>(h), own.size());
    if (p.size() != static_cast<size_t>(std::count(own.begin(), own.end(), 1)))
      throw Failure("--explain: a policy's attention is not over what it kept");
    sum += AttentionSimilarity(full[h], p, own);
  }
  return sum / static_cast<double>(full.size());
}

// The policy is fed the same tokens: what it drops between them counts.
void Explainer::Compare(Session* policy, const TokenList& fed, size_t first, ExplainSums* sums) {
  std::optional<Session> session;
  if (policy != nullptr) {
    session = Forked(policy);
    Check(kvc_session_observe_attention(session->get(), 1), "cannot observe the attention");
  }
  const int32_t n_kv_heads = model_.info().n_kv_heads;
  for (size_t i = 0; i < fed.size(); ++i) {
    std::vector<std::vector<std::vector<uint8_t>>> there;  // [L][G][n]
    for (size_t layer = 0; i >= first && layer < layers_.size(); ++layer) {
      const std::vector<std::vector<float>>& p = queries_[i - first][layer];
      const std::vector<uint8_t> all(p[0].size(), 1);
      there.push_back(session ? Visible(*session, layer, n_kv_heads, all.size())
                              : std::vector<std::vector<uint8_t>>(static_cast<size_t>(n_kv_heads), all));
      Add(LossOf(layers_[layer], p, there[layer]), &sums->layers[layer]);
    }
    sums->n_queries += i >= first;
    if (session) Feed(&*session, fed[i]);
    for (size_t layer = 0; layer < there.size(); ++layer) {
      sums->similarity[layer] +=
          session ? Similarity(*session, layer, queries_[i - first][layer], there[layer]) : 1;
    }
  }
}

void Explainer::Question(Session* full, const std::vector<Session*>& policies, const TokenList& fed,
                         size_t first) {
  if (first >= fed.size()) return;
  full_->top.resize(layers_.size() * static_cast<size_t>(model_.info().n_heads));
  Observe(full, fed, first);
  if (n_prompt_ == 0) AddSpectra(*full);
  n_prompt_ = static_cast<size_t>(full->Stats().n_prompt);
  for (size_t p = 0; p < policies.size(); ++p) {
    (*sums_)[p].layers.resize(layers_.size());
    (*sums_)[p].similarity.resize(layers_.size());
    CountParts(policies[p], &(*sums_)[p]);
    Compare(policies[p], fed, first, &(*sums_)[p]);
  }
}

}  // namespace kvc::tool
