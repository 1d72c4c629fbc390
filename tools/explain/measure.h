// What policies evict, seen from the queries that have to answer: kvc eval --explain.
#pragma once
#include <memory>
#include <vector>

#include "tools/explain/loss.h"
#include "tools/explain/spectrum.h"
#include "tools/kvc_handles.h"

namespace kvc::tool {

constexpr size_t kParts = 10;  // of a prompt, for the share that is kept of each

// Sums over queries of one policy; a query is a token whose successor is a token of an answer.
struct ExplainSums {
  int64_t n_queries = 0;
  std::vector<LayerLoss> layers;   // [L]
  std::vector<double> similarity;  // [L] AttentionSimilarity of its own run, mean over heads; over queries
  std::vector<double> kept =
      std::vector<double>(kParts);  // share of a part's entries, mean over heads; over questions
  int64_t n_questions = 0;
};

// Sums over what the full cache holds.
struct FullCacheSums {
  int64_t n_queries = 0;
  std::vector<double> top;  // [L * H] TopShare; over the same queries
  int64_t n_prompts = 0;
  std::vector<Spectrum> keys, values;  // [L] means over KV heads; over prompts
};

class Explainer {
 public:
  // path: the model's file. top_share: of the entries, for the concentration. Failure where a layer attends
  // to its newest tokens only.
  Explainer(const Model& model, const std::string& path, double top_share);
  // What is asked next counts for these, policies[p] for policy p. Kept by the caller.
  void Count(std::vector<ExplainSums>* policies, FullCacheSums* full) { sums_ = policies, full_ = full; }
  // A new prompt: what is known of the last one's values is forgotten.
  void NewPrompt() { n_prompt_ = 0; }
  // The full cache and those of the policies after one prompt (null: the policy is the full cache); `fed` is
  // what follows it, and queries are its tokens from `first` on. The sessions stay as they are.
  void Question(Session* full, const std::vector<Session*>& policies, const TokenList& fed, size_t first);

 private:
  // Attention of one query over the full cache, where slots are positions: [L][H][entries].
  using Query = std::vector<std::vector<std::vector<float>>>;
  void Observe(Session* full, const TokenList& fed, size_t first);
  void AddSpectra(const Session& full) const;
  void CountParts(const Session* policy, ExplainSums* sums) const;
  double Similarity(const Session& policy, size_t layer, const std::vector<std::vector<float>>& full,
                    const std::vector<std::vector<uint8_t>>& there) const;
  void Compare(Session* policy, const TokenList& fed, size_t first, ExplainSums* sums);

  const Model& model_;
  const double top_share_;
  std::vector<LayerValues> layers_;  // [L]
  std::vector<Query> queries_;
  std::vector<ExplainSums>* sums_ = nullptr;
  FullCacheSums* full_ = nullptr;
  size_t n_prompt_ = 0;  // entries whose values are those of the last question's prompt
};

}  // namespace kvc::tool
