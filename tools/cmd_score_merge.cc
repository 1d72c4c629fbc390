// kvc score-merge: the records of several machines into one score file; or score files of several tasks into
// their mean.
#include <memory>

#include "models/convert/source_file.h"
#include "tools/command.h"
#include "tools/files.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/score/merge.h"
#include "tools/signals.h"

namespace kvc::tool {
namespace {

struct MergeCommand {
  std::vector<std::string> files;
  std::string out, name, variant, log;
  bool average = false, standardise = false, with_offset = false, json = false;
  // None of its parts was said: as the logs say.
  bool estimate_of_logs() const { return variant.empty() && !standardise && !with_offset; }
};

Json MergeLogs(const MergeCommand& command) {
  LogMerger merger;
  for (const std::string& path : command.files) {
    const size_t before = merger.results().size();
    merger.Add(path, ReadWorkLog(path));
    if (merger.results().size() == before)
      Note("kvc: note: " + path + " adds nothing to the files before it");
  }
  // Samples of which some run or size is missing are usable, but rarely meant.
  if (merger.n_missing() > 0) {
    Note(
        Format("kvc: note: %lld items of samples up to the last are missing: is a shard not there, or not "
               "complete?",
               static_cast<long long>(merger.n_missing())));
  }
  EstimateOptions options = EstimateIn(merger.header(), command.files[0]);
  if (!command.estimate_of_logs()) {
    options = {command.variant.empty() ? Variant::kBoth : ParseVariant(command.variant), !command.with_offset,
               command.standardise};
  }
  const ScoreReport report = MakeReport(merger.plan(), merger.results(), options);
  if (!command.log.empty()) {
    WorkResults none;
    const auto log = WorkLogWriter::Open(command.log, merger.header(), /*resume=*/false, &none);
    for (const auto& [key, result] : merger.results()) log->Append(key, result);
    log->Flush();
  }
  return ScoreJson(merger.plan(), merger.what(), options, report,
                   command.name.empty() ? "ssv-" + merger.what().dataset : command.name);
}

Json AverageFiles(const MergeCommand& command) {
  std::vector<std::pair<std::string, Json>> files;
  for (const std::string& path : command.files) files.emplace_back(path, ReadJson(path));
  return AverageScores(files, command.name);
}

int Merge(const MergeCommand& command, Signals* signals) {
  CheckOutputs(command.files, {command.out, command.log});
  if (command.average && !command.log.empty())
    throw UsageError("--log joins logs: --average takes score files");
  if (!command.log.empty() && FileExists(command.log))
    throw UsageError(command.log + " exists: a log is not written over; remove it, or name another");
  signals->RemoveTemporariesOf(command.out);
  const Json scores = command.average ? AverageFiles(command) : MergeLogs(command);
  WriteJsonFile(command.out, scores);
  if (command.json) {
    PrintJson(scores);
    return kExitGood;
  }
  Print(Printable(command.out) + ": " + Counted(scores["samples"].get<int64_t>(), "sample", "samples") +
        " from " + Counted(static_cast<int64_t>(command.files.size()), "file", "files"));
  if (!command.average) Print("; estimator " + TextMember(scores, "variant", command.out));
  if (scores.contains("mae_between_runs")) {
    Print("; " + AgreementText(scores));
  }
  Print("\n");
  return kExitGood;
}

}  // namespace

Action AddScoreMerge(CLI::App* app) {
  const auto command = std::make_shared<MergeCommand>();
  AddInputs(app, "FILES", &command->files, "Logs of kvc score; with --average: score files")->required();
  AddOutput(app, "--out", &command->out, "The score file to write (JSON)")->required();
  AddOutput(app, "--log", &command->log, "Also write the joined record, to go on with");
  app->add_option("--name", command->name, "Name of the table")->type_name("TEXT");
  CLI::Option* variant = app->add_option(
      "--variant", command->variant,
      "Estimator: both, left, pooled or regression; none, and none of the next two: that of the "
      "call which began the first log");
  variant->check(CLI::IsMember(VariantNames()).description(""))->type_name("V");
  CLI::Option* standardise =
      app->add_flag("--standardise", command->standardise, "Every size counts the same");
  CLI::Option* offset =
      app->add_flag("--with-offset", command->with_offset, "Add the offset that all heads share");
  app->add_flag("--average", command->average, "Mean of the scores of several tasks")
      ->excludes(variant, standardise, offset);  // which estimate from logs
  app->add_flag("--json", command->json, "One JSON document on stdout");
  return [command](Signals* signals) { return Merge(*command, signals); };
}

}  // namespace kvc::tool
