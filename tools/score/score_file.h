// SCORES.json: what kvc convert --head-scores reads, with the origin of the scores beside them.
#pragma once
#include <string>
#include <vector>

#include "tools/kvc_handles.h"
#include "tools/output.h"
#include "tools/score/score_plan.h"

namespace kvc::tool {

// The header of a log: everything that must agree for items to be added up.
struct MeasuredWhat {
  std::string model, fingerprint, method, utility, protocol, dataset;
  int32_t window = 8, split = 0, max_answer = 0, max_prompt = 0, n_examples = 0;
  bool first_line = false;
  Json data;        // ExampleSet::identity
  Framing framing;  // written where it is not plain
};
Json LogHeader(const ScorePlan& plan, const MeasuredWhat& what);
// How the call that began a log wanted its scores estimated, under "estimate" of the header: what a log holds
// does not depend on it. A header that says nothing means the defaults. Throws Failure.
Json EstimateJson(const EstimateOptions& options);
EstimateOptions EstimateIn(const Json& header, const std::string& path);
// Back from a log. Throws Failure when the header is not one of this version.
void ReadLogHeader(const Json& header, const std::string& path, ScorePlan* plan, MeasuredWhat* what);

// The layers that are scored, as LogHeader and ScoreJson write them where not all are; empty: all. Throws
// Failure when they are not ascending numbers of layers.
std::vector<int32_t> ScoredLayers(const Json& file, const std::string& path, int32_t n_layers);

Json ScoreJson(const ScorePlan& plan, const MeasuredWhat& what, const EstimateOptions& options,
               const ScoreReport& report, const std::string& name);

// How far the two runs of a score file agree, in words: near enough, or how far from where the rule stops
// (methods.md 3.5: a mean absolute difference below 1 / players).
std::string AgreementText(const Json& scores);

// [layer][head], rounded to nine significant digits.
Json NestedScores(const std::vector<double>& scores, int32_t n_layers);
// The scores of a SCORES.json, [layer][head] flat. Throws Failure when it has none of that shape, more than
// any model has heads, or numbers that no float holds.
std::vector<double> FlatScores(const Json& file, const std::string& path, int32_t* n_layers,
                               int32_t* n_heads);

const std::vector<std::string>& VariantNames();  // as the command line writes them
const char* VariantName(Variant variant);
Variant ParseVariant(const std::string& name);  // one of VariantNames()

}  // namespace kvc::tool
