#include "tools/score/score_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "tools/command.h"
#include "tools/kvc_handles.h"

namespace kvc::tool {
namespace {

constexpr const char* kLogFormat = "kvc-score-log/1";

double Rounded(double value) { return std::strtod(Format("%.9g", value).c_str(), nullptr); }

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
  static const std::vector<std::string> names = {"left", "both", "pooled", "regression"};  // as Variant
  return names;
}

const char* VariantName(Variant variant) { return VariantNames()[static_cast<size_t>(variant)].c_str(); }

Variant ParseVariant(const std::string& name) {
  const std::vector<std::string>& names = VariantNames();
  return static_cast<Variant>(std::find(names.begin(), names.end(), name) - names.begin());
}

Json LogHeader(const ScorePlan& plan, const MeasuredWhat& what) {
  return Json{{"format", kLogFormat},
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
              {"seed", plan.seed},
              {"utility", what.utility},
              {"protocol", what.protocol},
              {"split", what.split},
              {"window", what.window},
              {"max_prompt", what.max_prompt},
              {"max_answer", what.max_answer},
              {"first_line", what.first_line}};
}

void ReadLogHeader(const Json& header, const std::string& path, ScorePlan* plan, MeasuredWhat* what) {
  if (header.value("format", "") != kLogFormat)
    throw Failure(path + ": no log of kvc score, or of another version");
  try {
    what->method = header.at("method"), what->model = header.at("model"),
    what->fingerprint = header.at("fingerprint");
    what->dataset = header.at("dataset"), what->data = header.at("data"),
    what->utility = header.at("utility");
    what->protocol = header.at("protocol"), what->split = header.at("split"),
    what->window = header.at("window");
    what->max_prompt = header.at("max_prompt"), what->max_answer = header.at("max_answer");
    what->first_line = header.at("first_line"), what->n_examples = header.at("n_examples");
    plan->n_layers = header.at("shape").at(0), plan->n_kv_heads = header.at("shape").at(1);
    plan->exact = what->method == "exact";
    plan->sizes = header.at("sizes").get<std::vector<int32_t>>();
    plan->runs = header.at("runs"), plan->balanced = header.at("balanced"),
    plan->draw_examples = header.at("draw_examples");
    plan->seed = header.at("seed");
  } catch (const Json::exception&) {
    throw Failure(path + ": the header of the log is incomplete");
  }
  const int32_t most_exact = plan->exact ? kMostExactPlayers : 1 << 20;
  bool good = plan->n_layers >= 1 && plan->n_kv_heads >= 1 && plan->n_layers <= 4096 &&
              plan->n_kv_heads <= 4096 && plan->n_players() <= most_exact && plan->runs >= 1 &&
              plan->runs <= 1024;
  for (const int32_t size : plan->sizes) good = good && size >= 1 && size < plan->n_players();
  if (!good) throw Failure(path + ": the header of the log makes no sense");
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
  std::vector<double> scores;
  size_t width = 0;
  for (const Json& row : file["scores"]) {
    if (!row.is_array() || row.empty() || (width != 0 && row.size() != width)) {
      throw Failure(path + ": \"scores\" must be rows of equal length, one a layer");
    }
    width = row.size();
    for (const Json& score : row) {
      if (!score.is_number()) throw Failure(path + ": a score is no number");
      scores.push_back(score.get<double>());
    }
  }
  *n_layers = static_cast<int32_t>(file["scores"].size()), *n_heads = static_cast<int32_t>(width);
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
      {"seed", plan.seed},
      {"samples", std::accumulate(report.n_samples.begin(), report.n_samples.end(), int64_t{0}) * plan.runs},
      {"tool", "kvc " + LibraryVersion()}};
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
  if (report.by_run.size() > 1) {
    out["scores_by_run"] = Json::array();
    for (const std::vector<double>& scores : report.by_run)
      out["scores_by_run"].push_back(NestedScores(scores, plan.n_layers));
  }
  out["scores"] = NestedScores(report.scores, plan.n_layers);
  return out;
}

void WriteTextFile(const std::string& path, const std::string& text) {
  const std::string temporary = path + ".part" + std::to_string(getpid());
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  if (file == nullptr) throw Failure(path + ": " + std::strerror(errno));
  bool good = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  good = std::fflush(file) == 0 && good && fsync(fileno(file)) == 0;
  good = std::fclose(file) == 0 && good;
  if (good && std::rename(temporary.c_str(), path.c_str()) == 0) return;
  const std::string reason = std::strerror(errno);
  std::remove(temporary.c_str());
  throw Failure(path + ": " + reason);
}

void WriteJsonFile(const std::string& path, const Json& document) {
  WriteTextFile(path, document.dump(1) + "\n");
}

}  // namespace kvc::tool
