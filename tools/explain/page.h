// What kvc eval --explain prints, writes and draws.
#pragma once
#include <string>
#include <vector>

#include "tools/explain/measure.h"
#include "tools/output.h"

namespace kvc::tool {

// A policy on one kind of data.
struct ExplainRow {
  std::string spec, policy, kind;  // policy as it was asked for, and its canonical text
  double accuracy = 0, kl = 0;
  ExplainSums sums;
};

// The full cache on one kind of data.
struct ExplainKind {
  std::string kind;
  FullCacheSums sums;
};

struct Explanation {
  int32_t n_layers = 0, n_heads = 0;
  double top_share = 0;
  std::vector<ExplainRow> rows;
  std::vector<ExplainKind> kinds;
};

// {"n_queries", "loss": [L], "relative_loss", "bound", "bound_by_head", "retained", "attention_similarity"},
// means over queries, and "kept_by_position" [kParts].
Json ExplainRowJson(const ExplainSums& sums);
// {"top_share", "concentration": [{kind, "top" [L][H]}], "spectrum": [{kind, "keys", "values"}],
// "rank_correlation": [..]}.
Json ExplainJson(const Explanation& explanation);
void PrintExplanation(const Explanation& explanation);
std::string ExplainPicture(const Explanation& explanation);  // SVG

}  // namespace kvc::tool
