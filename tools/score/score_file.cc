#include "tools/score/score_file.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <numeric>

#include "tools/failure.h"
#include "tools/files.h"
#include "tools/score/players.h"

namespace kvc::tool {
namespace {

constexpr const char* kLogFormat = "kvc-score-log/1";
constexpr size_t kMostScores = size_t{1} << 16;  // of query heads there are more than players

double Rounded(double value) { return std::strtod(Format("%.9g", value).c_str(), nullptr); }

bool FlagMember(const Json& object, const char* key, const std::string& where) {
  if (!object.at(key).is_boolean()) throw Failure(where + ": " + key + " must be true or false");
  return object.at(key).get<bool>();
}

std::vector<int32_t> WholeList(const Json& object, const char* key, const std::string& where, int32_t least,
                               int32_t most) {
  std::vector<int32_t> list;
  const std::string what = where + ": " + key;
  if (!object.at(key).is_array()) throw Failure(what + " must be a list of whole numbers");
  for (const Json& entry : object.at(key)) {
    const Json named{{"an entry", entry}};
    list.push_back(static_cast<int32_t>(WholeMember(named, "an entry", what, least, most, least - 1)));
    if (list.back() < least) throw Failure(what + " must be a list of whole numbers");
  }
  return list;
}

Json ConvergenceJson(const std::vector<ConvergencePoint>& points) {
  Json list = Json::array();
  for (const ConvergencePoint& point : points) {
    list.push_back({{"samples", point.n_samples},
                    {"mae", Rounded(point.mae)},
                    {"spearman", Rounded(point.spearman)},
                    {"lowest_overlap", Rounded(point.overlap)}});
  }
  return list;
}

}  // namespace

const std::vector<std::string>& VariantNames() {
  static const std::vector<std::string> names = {"left",       "both",  "pooled",
                                                 "regression", "alone", "leftout"};  // as Variant
  return names;
}

const char* VariantName(Variant variant) { return VariantNames()[static_cast<size_t>(variant)].c_str(); }

Variant ParseVariant(const std::string& name) {
  const std::vector<std::string>& names = VariantNames();
  return static_cast<Variant>(std::find(names.begin(), names.end(), name) - names.begin());
}

Json LogHeader(const ScorePlan& plan, const MeasuredWhat& what) {
  Json header{{"format", kLogFormat},
              {"method", what.method},
              {"model", what.model},
              {"fingerprint", what.fingerprint},  // of weights and tokenizer
              {"shape", {plan.n_layers, plan.n_kv_heads}},
              {"dataset", what.dataset},
              {"data", what.data},
              {"n_examples", what.n_examples},
              {"sizes", plan.sizes},
              {"runs", plan.runs},
              {"balanced", plan.balanced},
              {"draw_examples", plan.draw_examples},
              {"seed", static_cast<int64_t>(plan.seed)},
              {"utility", what.utility},
              {"protocol", what.protocol},
              {"split", what.split},
              {"window", what.window},
              {"max_prompt", what.max_prompt},
              {"max_answer", what.max_answer},
              {"first_line", what.first_line}};
  if (!plan.layers.empty()) header["layers"] = plan.layers;
  if (!what.framing.plain()) header["framing"] = FramingJson(what.framing);
  return header;
}

Json EstimateJson(const EstimateOptions& options) {
  return Json{{"variant", VariantName(options.variant)},
              {"with_offset", !options.centre},
              {"standardise", options.standardise}};
}

EstimateOptions EstimateIn(const Json& header, const std::string& path) {
  EstimateOptions options;
  if (!header.contains("estimate")) return options;
  const std::string where = path + ": header of the log: estimate";
  const Json& said = header["estimate"];
  const std::string variant = TextMember(said, "variant", where);
  if (std::count(VariantNames().begin(), VariantNames().end(), variant) == 0 ||
      !said.contains("with_offset") || !said.contains("standardise"))
    throw Failure(where + ": no estimator of this program");
  options.variant = ParseVariant(variant);
  options.centre = !FlagMember(said, "with_offset", where);
  options.standardise = FlagMember(said, "standardise", where);
  return options;
}

std::vector<int32_t> ScoredLayers(const Json& file, const std::string& path, int32_t n_layers) {
  std::vector<int32_t> layers;
  if (!file.contains("layers")) return layers;
  layers = WholeList(file, "layers", path, 0, n_layers - 1);
  if (layers.empty() ||
      std::adjacent_find(layers.begin(), layers.end(), std::greater_equal<int32_t>()) != layers.end())
    throw Failure(path + ": layers must be numbers of layers, ascending");
  return layers;
}

void ReadLogHeader(const Json& header, const std::string& path, ScorePlan* plan, MeasuredWhat* what) {
  const std::string where = path + ": header of the log";
  if (TextMember(header, "format", where) != kLogFormat)
    throw Failure(path + ": no log of kvc score, or of another version");
  const Json complete = LogHeader(*plan, *what);
  for (const auto& [key, value] : complete.items()) {
    if (!header.contains(key)) throw Failure(path + ": the header of the log is incomplete: no " + key);
  }
  const auto whole = [&](const char* key, int64_t least, int64_t most) {
    return static_cast<int32_t>(WholeMember(header, key, where, least, most, least));
  };
  what->method = TextMember(header, "method", where), what->model = TextMember(header, "model", where);
  what->fingerprint = TextMember(header, "fingerprint", where);
  what->dataset = TextMember(header, "dataset", where), what->data = header.at("data");
  what->utility = TextMember(header, "utility", where);
  what->protocol = TextMember(header, "protocol", where);
  what->split = whole("split", 0, INT32_MAX), what->window = whole("window", 1, INT32_MAX);
  what->max_prompt = whole("max_prompt", 0, INT32_MAX), what->max_answer = whole("max_answer", 0, INT32_MAX);
  what->n_examples = whole("n_examples", 1, INT32_MAX);
  what->first_line = FlagMember(header, "first_line", where);
  if (header.contains("framing")) {
    const Json& framing = header["framing"];
    if (!framing.is_object() || !framing.contains("special") || !framing.contains("chat"))
      throw Failure(where + ": framing must say special and chat");
    what->framing.special = FlagMember(framing, "special", where);
    what->framing.chat = FlagMember(framing, "chat", where);
  }
  const std::vector<int32_t> shape = WholeList(header, "shape", where, 1, kMostPlayers);
  if (shape.size() != 2) throw Failure(where + ": shape must be [layers, heads]");
  if (int64_t{shape[0]} * shape[1] > kMostPlayers)
    throw Failure(where +
                  Format(": %d x %d heads; at most %d are possible", shape[0], shape[1], kMostPlayers));
  plan->n_layers = shape[0], plan->n_kv_heads = shape[1];
  plan->layers = ScoredLayers(header, where, plan->n_layers);
  plan->exact = what->method == "exact";
  plan->sizes = WholeList(header, "sizes", where, 1, kMostPlayers);
  plan->runs = whole("runs", 1, kMostRuns), plan->balanced = FlagMember(header, "balanced", where);
  plan->draw_examples = whole("draw_examples", 0, INT32_MAX);
  plan->seed = static_cast<uint64_t>(WholeMember(header, "seed", where, INT64_MIN, INT64_MAX, 0));
  if (plan->exact && (plan->n_players() > kMostExactPlayers || plan->runs != 1 || !plan->sizes.empty()))
    throw Failure(where + ": no exact measurement of that shape");
  try {
    CheckPlan(*plan);
  } catch (const UsageError& error) {
    throw Failure(where + ": " + error.what());
  }
}

Json NestedScores(const std::vector<double>& scores, int32_t n_layers) {
  Json rows = Json::array();
  const size_t n_heads = scores.size() / static_cast<size_t>(n_layers);
  for (size_t i = 0; i < scores.size(); ++i) {
    if (i % n_heads == 0) rows.push_back(Json::array());
    rows.back().push_back(Rounded(scores[i]));
  }
  return rows;
}

std::vector<double> FlatScores(const Json& file, const std::string& path, int32_t* n_layers,
                               int32_t* n_heads) {
  if (!file.is_object() || !file.contains("scores") || !file["scores"].is_array() || file["scores"].empty()) {
    throw Failure(path + ": no scores in it");
  }
  const Json& rows = file["scores"];
  std::vector<double> scores;
  size_t width = 0;
  for (const Json& row : rows) {
    if (!row.is_array() || row.empty() || (width != 0 && row.size() != width)) {
      throw Failure(path + ": \"scores\" must be rows of equal length, one a layer");
    }
    width = row.size();
    if (width * rows.size() > kMostScores)
      throw Failure(path +
                    Format(": %zu x %zu scores, at most %zu are possible", rows.size(), width, kMostScores));
    for (const Json& score : row) {
      if (!score.is_number()) throw Failure(path + ": a score is no number");
      scores.push_back(score.get<double>());
      if (std::fabs(scores.back()) > FLT_MAX)
        throw Failure(path + Format(": %g is too large for a score", scores.back()));
    }
  }
  *n_layers = static_cast<int32_t>(rows.size()), *n_heads = static_cast<int32_t>(width);
  return scores;
}

Json ScoreJson(const ScorePlan& plan, const MeasuredWhat& what, const EstimateOptions& options,
               const ScoreReport& report, const std::string& name) {
  const std::string variant = plan.exact ? "exact, all coalitions" : VariantName(options.variant);
  const int64_t per_size = *std::min_element(report.n_samples.begin(), report.n_samples.end());
  Json out{
      {"name", name},
      {"estimator", "ssv"},
      {"variant",
       variant + (options.standardise ? ", standardised" : "") + (options.centre ? "" : ", with offset")},
      {"model", what.model},
      {"fingerprint", what.fingerprint},
      {"dataset", what.dataset},
      {"data", what.data},
      {"examples", what.n_examples},
      {"examples_per_coalition", plan.draw_examples > 0 ? plan.draw_examples : what.n_examples},
      {"shape", {plan.n_layers, plan.n_kv_heads}},
      {"utility", what.utility + ", protocol " + what.protocol + ", window " + std::to_string(what.window)},
      {"seed", static_cast<int64_t>(plan.seed)},
      {"samples", std::accumulate(report.n_samples.begin(), report.n_samples.end(), int64_t{0}) * plan.runs},
      {"tool", "kvc " + LibraryVersion()}};
  if (!plan.layers.empty()) out["layers"] = plan.layers;
  if (!what.framing.plain()) out["framing"] = FramingJson(what.framing);
  if (!plan.exact) {
    out["sizes"] = plan.sizes;
    out["samples_per_size"] = per_size;
    out["runs"] = plan.runs;
  } else {
    out["utility_full"] = Rounded(report.full), out["utility_none"] = Rounded(report.none);
  }
  if (!report.convergence.empty()) {
    const ConvergencePoint& last = report.convergence.back();
    out["mae_between_runs"] = Rounded(last.mae);
    out["correlation_between_runs"] = Rounded(last.spearman);
    out["lowest_overlap"] = Rounded(last.overlap);
    out["convergence"] = ConvergenceJson(report.convergence);
  }
  if (!report.slices.empty()) {
    out["slices"] = Json::array();
    for (size_t s = 0; s < report.slices.size(); ++s) {
      double squares = 0;
      for (const double value : report.slices[s]) squares += value * value;
      const double deviation = std::sqrt(squares / static_cast<double>(report.slices[s].size()));
      out["slices"].push_back({{"size", plan.sizes[s]},
                               {"deviation", Rounded(deviation)},
                               {"scores", NestedScores(TableOf(plan, report.slices[s]), plan.n_layers)}});
    }
  }
  if (report.by_run.size() > 1) {
    out["scores_by_run"] = Json::array();
    for (const std::vector<double>& scores : report.by_run)
      out["scores_by_run"].push_back(NestedScores(TableOf(plan, scores), plan.n_layers));
  }
  out["scores"] = NestedScores(TableOf(plan, report.scores), plan.n_layers);
  return out;
}

std::string AgreementText(const Json& scores) {
  const int32_t n_layers = scores["shape"][0].get<int32_t>(), n_heads = scores["shape"][1].get<int32_t>();
  const size_t scored = scores.contains("layers") ? scores["layers"].size() : static_cast<size_t>(n_layers);
  const double mae = scores["mae_between_runs"].get<double>(),
               enough = 1.0 / (static_cast<double>(scored) * n_heads);
  return Format(mae < enough ? "two runs agree: MAE %.2g, below %.2g where the rule stops, Spearman %.3f"
                             : "two runs differ: MAE %.2g, above %.2g where the rule stops, Spearman %.3f; "
                               "more samples bring them together",
                mae, enough, scores["correlation_between_runs"].get<double>());
}

}  // namespace kvc::tool
