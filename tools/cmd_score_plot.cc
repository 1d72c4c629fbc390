// kvc score-plot: pictures of head scores.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>

#include "tools/command.h"
#include "tools/files.h"
#include "tools/kvc_handles.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/score/players.h"
#include "tools/score/score_file.h"
#include "tools/score/svg.h"
#include "tools/signals.h"

namespace kvc::tool {
namespace {

struct PlotCommand {
  std::vector<std::string> files;
  std::vector<int32_t> budgets;
  std::string out;
  ModelOptions model;
  int32_t context = 0;
};

struct ScoreFile {
  std::string path, name, estimator;
  Json json;
  std::vector<double> scores;
  int32_t n_layers = 0, n_heads = 0;
};

ScoreFile ReadScoreFile(const std::string& path) {
  ScoreFile file;
  file.path = path, file.json = ReadJson(path);
  file.scores = FlatScores(file.json, path, &file.n_layers, &file.n_heads);
  file.name = TextMember(file.json, "name", path, Printable(path));
  file.estimator = TextMember(file.json, "estimator", path);
  return file;
}

// A number that can be drawn.
double Drawable(const Json& value, const std::string& where) {
  constexpr double kMost = 1e12;
  if (!value.is_number() || std::fabs(value.get<double>()) > kMost)
    throw Failure(where + " holds something that is no number, or too large to be drawn");
  return value.get<double>();
}

std::vector<double> Column(const Json& points, const char* key, const std::string& path) {
  std::vector<double> values;
  for (const Json& point : points) {
    if (!point.is_object() || !point.contains(key) || !point[key].is_number()) {
      throw Failure(path + ": a point of \"convergence\" has no number \"" + key + "\"");
    }
    values.push_back(Drawable(point[key], path + ": \"convergence\""));
  }
  return values;
}

// Shape and players.
ScorePlan PlanOf(const ScoreFile& file, int32_t n_layers, int32_t n_heads) {
  ScorePlan plan;
  plan.n_layers = n_layers, plan.n_kv_heads = n_heads;
  plan.layers = ScoredLayers(file.json, file.path, n_layers);
  return plan;
}

void AddConvergence(const std::vector<ScoreFile>& files, SvgPage* page) {
  LineChart mae{"Difference between two runs", "samples of each size and run", "MAE", {}, 0, ""};
  LineChart rank{
      "Rank correlation between two runs", "samples of each size and run", "Spearman", {}, 0.9, "0.9"};
  for (const ScoreFile& file : files) {
    if (!file.json.contains("convergence")) continue;
    const Json& points = file.json["convergence"];
    const std::vector<double> x = Column(points, "samples", file.path);
    mae.series.push_back({file.name, x, Column(points, "mae", file.path)});
    rank.series.push_back({file.name, x, Column(points, "spearman", file.path)});
    mae.mark = 1.0 / PlanOf(file, file.n_layers, file.n_heads).n_players();
    mae.mark_name = "1/N, the stopping rule";
  }
  page->Add(mae);
  page->Add(rank);
}

std::vector<double> Numbers(const Json& curves, const char* key, const std::string& path) {
  std::vector<double> values;
  if (!curves.contains(key)) return values;
  for (const Json& value : curves[key]) values.push_back(Drawable(value, path + ": \"mask_curves\""));
  return values;
}

void AddMaskCurves(const std::vector<ScoreFile>& files, SvgPage* page) {
  LineChart chart{"Masking the best and the worst heads", "heads masked", "utility", {}, 0, ""};
  for (const ScoreFile& file : files) {
    if (!file.json.contains("mask_curves")) continue;
    const Json& curves = file.json["mask_curves"];
    const std::vector<double> x = Numbers(curves, "masked", file.path);
    for (const char* end : {"top", "bottom"}) {
      if (!curves.contains(end)) continue;
      const std::vector<double> y = Numbers(curves, end, file.path);
      if (y.size() != x.size()) throw Failure(file.path + ": \"mask_curves\" of unequal lengths");
      chart.series.push_back(
          {file.name + (std::string(end) == "top" ? ", best first" : ", worst first"), x, y});
    }
  }
  page->Add(chart);
}

// How far the heads of each slice are apart: their scores, best first (figure of CoKV's appendix B.3).
void AddSlices(const std::vector<ScoreFile>& files, SvgPage* page) {
  for (const ScoreFile& file : files) {
    if (!file.json.contains("slices")) continue;
    LineChart chart{
        file.name + ": scores of every slice, best first", "rank of the head", "score", {}, 0, ""};
    for (const Json& slice : file.json["slices"]) {
      const std::string where = file.path + ": \"slices\"";
      if (!slice.is_object()) throw Failure(where + " has an entry that is no object");
      const int64_t size = WholeMember(slice, "size", where, 1, INT32_MAX, 0);
      int32_t n_layers = 0, n_heads = 0;
      const std::vector<double> table = FlatScores(slice, where, &n_layers, &n_heads);
      const ScorePlan plan = PlanOf(file, n_layers, n_heads);
      Series series{Format("size %lld", static_cast<long long>(size)), {}, OfPlayers(plan, table)};
      std::sort(series.y.begin(), series.y.end(), std::greater<double>());
      for (size_t i = 1; i <= series.y.size(); ++i) series.x.push_back(static_cast<double>(i));
      chart.series.push_back(std::move(series));
    }
    page->Add(chart);
  }
}

// Slots of every head under CoKV (HeadKV-R2 for its scores), as the library would give them.
void AddBudgets(const PlotCommand& command, const std::vector<ScoreFile>& files, Signals* signals,
                SvgPage* page) {
  if (command.budgets.empty()) return;
  if (command.model.path.empty()) throw UsageError("--budget needs --model: the library divides the slots");
  const Model model = OpenModel(command.model, signals);
  const int32_t n_prompt = command.context > 0 ? command.context : model.info().max_tokens;
  for (const ScoreFile& file : files) {
    for (const int32_t budget : command.budgets) {
      const bool retrieval = file.estimator == "headkv-r2";
      const int alpha =
          retrieval ? 0 : static_cast<int>(WholeMember(file.json, "alpha", file.path, 0, INT32_MAX, 0));
      Policy policy(Format("%s:budget=%d", retrieval ? "headkv-r2" : "cokv", budget) +
                    (alpha > 0 ? Format(",alpha=%d", alpha) : ""));
      policy.SetHeadScores(std::vector<float>(file.scores.begin(), file.scores.end()));
      kvc_session_params params = DefaultSessionParams();
      params.max_tokens = n_prompt;
      const SessionPlan plan = PlanSession(model, policy, params, n_prompt);
      page->Add(HeatMap{
          Format("%s: slots per head at %d on average, %d tokens", file.name.c_str(), budget, n_prompt),
          "layer", "KV head", "", model.info().n_layers, model.info().n_kv_heads,
          std::vector<double>(plan.slots.begin(), plan.slots.end()), true});
    }
  }
}

int Plot(const PlotCommand& command, Signals* signals) {
  std::vector<std::string> inputs = command.files;
  inputs.push_back(command.model.path);
  CheckOutputs(inputs, {command.out});
  signals->RemoveTemporariesOf(command.out);
  std::vector<ScoreFile> files;
  for (const std::string& path : command.files) files.push_back(ReadScoreFile(path));
  SvgPage page;
  for (const ScoreFile& file : files) {
    page.Add(HeatMap{file.name + ": " + file.estimator + " scores", "layer",
                     file.estimator == "headkv-r2" ? "query head" : "KV head", "", file.n_layers,
                     file.n_heads, file.scores, false});
  }
  AddConvergence(files, &page);
  AddMaskCurves(files, &page);
  AddSlices(files, &page);
  AddBudgets(command, files, signals, &page);
  WriteTextFile(command.out, page.Text());
  Print(Printable(command.out) + ": " +
        Counted(static_cast<int64_t>(files.size()), "score file", "score files") + " drawn\n");
  return kExitGood;
}

}  // namespace

Action AddScorePlot(CLI::App* app) {
  const auto command = std::make_shared<PlotCommand>();
  AddInputs(app, "SCORES", &command->files, "Score files of kvc score")->required();
  AddOutput(app, "--out", &command->out, "The picture to write (SVG)")->required();
  command->model.plan_only = true;
  AddModelOptions(app, &command->model, "--model");
  app->get_option("--model")->required(false);
  app->add_option("--budget", command->budgets, "Slots a head, such as 16,64: how the heads share them")
      ->delimiter(',')
      ->check(AtLeast(1))
      ->type_name("N,...");
  app->add_option("--context", command->context, "Tokens of the prompt for --budget; 0 = trained context")
      ->check(Whole(0, kMostContext))
      ->type_name("N");
  return [command, app](Signals* signals) {
    for (const char* of_budgets : {"--model", "--context"})
      RefuseUnless(!command->budgets.empty(), *app, of_budgets, "--budget");
    return Plot(*command, signals);
  };
}

}  // namespace kvc::tool
