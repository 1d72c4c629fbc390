// kvc score-merge: the records of several machines into one score file; or score files of several tasks into
// their mean.
#include <memory>
#include <numeric>

#include "tools/command.h"
#include "tools/files.h"
#include "tools/kvc_handles.h"
#include "tools/output.h"
#include "tools/score/score_file.h"

namespace kvc::tool {
namespace {

struct MergeCommand {
  std::vector<std::string> files;
  std::string out, name, variant = "both", log;
  bool average = false, standardise = false, with_offset = false, json = false;
};

// Samples of which some run or size is missing are usable, but rarely meant.
void NoteMissing(const ScorePlan& plan, const WorkResults& results) {
  uint32_t end = 0;
  for (const auto& [key, result] : results) end = std::max(end, key.sample + 1);
  const size_t wanted =
      plan.exact ? results.size() : size_t{end} * static_cast<size_t>(plan.runs) * plan.sizes.size();
  if (results.size() < wanted) {
    Note(Format(
        "kvc: note: %zu of %zu items up to sample %u are missing: is a shard not there, or not complete?",
        wanted - results.size(), wanted, end));
  }
}

Json MergeLogs(const MergeCommand& command) {
  const WorkLog first = ReadWorkLog(command.files[0]);
  ScorePlan plan;
  MeasuredWhat what;
  ReadLogHeader(first.header, command.files[0], &plan, &what);
  WorkResults results = first.results;
  for (size_t i = 1; i < command.files.size(); ++i) {
    const WorkLog log = ReadWorkLog(command.files[i]);
    CheckSameHeader(first.header, log.header, command.files[i]);
    MergeResults(log.results, command.files[i], &results);
  }
  NoteMissing(plan, results);
  if (!command.log.empty()) {
    WorkResults none;
    const auto log = WorkLogWriter::Open(command.log, first.header, /*resume=*/false, &none);
    for (const auto& [key, result] : results) log->Append(key, result);
    log->Flush();
  }
  const EstimateOptions options{ParseVariant(command.variant), !command.with_offset, command.standardise};
  const ScoreReport report = MakeReport(plan, results, options);
  return ScoreJson(plan, what, options, report, command.name.empty() ? "ssv-" + what.dataset : command.name);
}

// [run][N] of a file; nothing when it does not tell.
std::vector<std::vector<double>> ScoresByRun(const Json& file, const std::string& path) {
  std::vector<std::vector<double>> runs;
  int32_t n_layers = 0, n_heads = 0;
  for (const Json& run : file.value("scores_by_run", Json::array())) {
    runs.push_back(FlatScores(Json{{"scores", run}}, path, &n_layers, &n_heads));
  }
  return runs;
}

void AddCentred(const std::vector<double>& scores, size_t n_files, std::vector<double>* total) {
  const double mean = std::accumulate(scores.begin(), scores.end(), 0.0) / static_cast<double>(scores.size());
  total->resize(scores.size());
  for (size_t i = 0; i < scores.size(); ++i) (*total)[i] += (scores[i] - mean) / static_cast<double>(n_files);
}

// How far the first two runs of all tasks agree once averaged.
void AddAgreement(const std::vector<std::vector<double>>& runs, Json* out) {
  (*out)["runs"] = runs.size();
  (*out)["mae_between_runs"] = MeanAbsoluteDifference(runs[0], runs[1]);
  (*out)["correlation_between_runs"] = Spearman(runs[0], runs[1]);
}

// The mean over tasks, each centred first, so that no task counts more for its offset (methods.md 3.10).
Json AverageFiles(const MergeCommand& command) {
  std::vector<double> total;
  std::vector<std::vector<double>> runs(2);
  bool all_have_runs = true;
  int32_t n_layers = 0, n_heads = 0;
  int64_t n_samples = 0;
  Json parts = Json::array(), first;
  for (const std::string& path : command.files) {
    const Json file = ReadJson(path);
    int32_t layers = 0, heads = 0;
    const std::vector<double> scores = FlatScores(file, path, &layers, &heads);
    if (total.empty()) first = file, n_layers = layers, n_heads = heads;
    if (layers != n_layers || heads != n_heads ||
        file.value("fingerprint", "") != first.value("fingerprint", "") ||
        file.value("estimator", "") != first.value("estimator", "")) {
      throw Failure(path + ": scores of another model, shape or estimator than " + command.files[0]);
    }
    AddCentred(scores, command.files.size(), &total);
    const std::vector<std::vector<double>> by_run = ScoresByRun(file, path);
    all_have_runs = all_have_runs && by_run.size() >= 2 && by_run[0].size() == scores.size() &&
                    by_run[1].size() == scores.size();
    for (size_t run = 0; run < 2 && all_have_runs; ++run)
      AddCentred(by_run[run], command.files.size(), &runs[run]);
    n_samples += file.value("samples", int64_t{0});
    parts.push_back(file.value("dataset", path));
  }
  Json out{{"name", command.name.empty() ? "ssv-average" : command.name},
           {"estimator", first.value("estimator", "ssv")},
           {"variant", "mean of centred tasks"},
           {"model", first.value("model", "")},
           {"fingerprint", first.value("fingerprint", "")},
           {"dataset", "*"},
           {"parts", parts},
           {"note", "mean over " + parts.dump()},
           {"shape", {n_layers, n_heads}},
           {"utility", first.value("utility", "")},
           {"seed", first.value("seed", int64_t{0})},
           {"samples", n_samples},
           {"tool", "kvc " + LibraryVersion()},
           {"scores", NestedScores(total, n_layers)}};
  if (all_have_runs) AddAgreement(runs, &out);
  return out;
}

int Merge(const MergeCommand& command) {
  const Json scores = command.average ? AverageFiles(command) : MergeLogs(command);
  WriteJsonFile(command.out, scores);
  if (command.json) {
    PrintJson(scores);
    return kExitGood;
  }
  Print(Format("%s: %s samples from %zu files", command.out.c_str(),
               FormatCount(scores["samples"].get<int64_t>()).c_str(), command.files.size()));
  if (scores.contains("mae_between_runs")) {
    Print(Format("; runs agree: MAE %.2g, Spearman %.3f", scores["mae_between_runs"].get<double>(),
                 scores["correlation_between_runs"].get<double>()));
  }
  Print("\n");
  return kExitGood;
}

}  // namespace

std::function<int()> AddScoreMerge(CLI::App* app) {
  const auto command = std::make_shared<MergeCommand>();
  app->add_option("FILES", command->files, "Logs of kvc score; with --average: score files")
      ->required()
      ->type_name("");
  app->add_option("--out", command->out, "The score file to write (JSON)")->required()->type_name("FILE");
  app->add_option("--log", command->log, "Also write the joined record, to go on with")->type_name("FILE");
  app->add_option("--name", command->name, "Name of the table")->type_name("TEXT");
  app->add_option("--variant", command->variant, "Estimator: both, left, pooled or regression")
      ->check(CLI::IsMember(VariantNames()).description(""))
      ->capture_default_str()
      ->type_name("V");
  app->add_flag("--standardise", command->standardise, "Every size counts the same");
  app->add_flag("--with-offset", command->with_offset, "Add the offset that all heads share");
  app->add_flag("--average", command->average, "Mean of the scores of several tasks");
  app->add_flag("--json", command->json, "One JSON document on stdout");
  return [command] { return Merge(*command); };
}

}  // namespace kvc::tool
