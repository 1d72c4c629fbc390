// kvc convert: someone else's checkpoint into one model file.
#include <memory>

#include "models/convert/convert.h"
#include "tools/command.h"
#include "tools/convert_table.h"
#include "tools/files.h"
#include "tools/kvc_handles.h"
#include "tools/model_cache.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/signals.h"

namespace kvc::tool {
namespace {

struct ConvertCommand {
  std::string source, output, weights = "keep", pack = "none", name;
  std::vector<std::string> head_scores, adapters;
  std::string check_against, rope;
  int32_t group = 32, context = 0;
  double tolerance = 0;
  bool json = false, dry_run = false;
};

struct NamedChoice {
  const char* name;
  WeightChoice choice;
};

constexpr NamedChoice kWeightChoices[] = {{"keep", WeightChoice::kKeep},
                                          {"f32", WeightChoice::kF32},
                                          {"bf16", WeightChoice::kBf16},
                                          {"int8", WeightChoice::kInt8},
                                          {"int4", WeightChoice::kInt4}};

std::vector<std::string> WeightNames() {
  std::vector<std::string> names;
  for (const NamedChoice& known : kWeightChoices) names.push_back(known.name);
  return names;
}

// PATH or PATH=STRENGTH; a file that is there may have '=' in its name.
LoraChoice ParseAdapter(const std::string& text) {
  const size_t sign = text.rfind('=');
  if (sign == std::string::npos || sign == 0) return {text, 1};
  float strength = 0;
  if (CLI::detail::lexical_cast(text.substr(sign + 1), strength)) return {text.substr(0, sign), strength};
  const std::string path = text.substr(0, sign);
  if (FileExists(text) || DirectoryExists(text) || !(FileExists(path) || DirectoryExists(path)))
    return {text, 1};
  throw UsageError("--lora " + text + ": \"" + text.substr(sign + 1) + "\" is no number: --lora ADAPTER=0.5");
}

ConvertOptions MakeConvertOptions(const ConvertCommand& command, const CancelOnSignal& cancel,
                                  Progress* progress) {
  ConvertOptions options;
  for (const NamedChoice& known : kWeightChoices) {
    if (command.weights == known.name) options.weights = known.choice;
  }
  options.group = command.group, options.context = command.context;
  if (!command.rope.empty())
    options.rope = ParseRopeExtension(command.rope).value();  // the option is checked
  options.layout = LayoutFor(command.pack).value();  // of the list that the option is checked against
  options.head_score_files = command.head_scores;
  for (const std::string& adapter : command.adapters) options.adapters.push_back(ParseAdapter(adapter));
  options.name = command.name;
  options.dry_run = command.dry_run;
  options.progress = [&cancel, progress](const ConvertProgress& at) {
    progress->Update(static_cast<double>(at.bytes_done), static_cast<double>(at.bytes_total),
                     Format("tensor %d of %d", at.tensors_done, at.tensors_total));
    return !cancel.received();
  };
  return options;
}

std::string StoredAs(const ConvertedType& t) {
  return t.group == 0 ? t.stored : t.stored + Format(", groups of %d", t.group);
}

// What became of the matrices, where any has changed.
std::string TypesTable(const ConvertReport& report) {
  Table table({"in the source", "matrices", "stored as", "bytes", "loss"}, "lrlrr");
  bool changed = false;
  for (const ConvertedType& t : report.types) {
    changed = changed || t.source != t.stored || !t.exact();
    table.AddRow({t.source, Format("%d", t.n_tensors), StoredAs(t), FormatBytes(t.bytes_written),
                  t.exact() ? "none" : Format("%.3f %%", 100 * t.Loss())});
  }
  return changed ? table.Text("  ") : "";
}

Json TypesJson(const ConvertReport& report) {
  Json types = Json::array();
  for (const ConvertedType& t : report.types) {
    types.push_back({{"source", t.source},
                     {"type", t.stored},
                     {"group", t.group},
                     {"n_tensors", t.n_tensors},
                     {"bytes_read", t.bytes_read},
                     {"bytes_written", t.bytes_written},
                     {"exact", t.exact()},
                     {"loss", t.Loss()}});
  }
  return types;
}

// The converted model against logits of the same model elsewhere. False: they are not near enough.
bool Check(const ConvertCommand& command, const Json& reference, Json* json) {
  const ReferenceCheck check = CheckAgainst(command.output, reference, command.check_against);
  const bool good =
      check.n_same == check.n_rows && (command.tolerance == 0 || check.distance <= command.tolerance);
  if (json != nullptr) {
    (*json)["check"] = {
        {"n_rows", check.n_rows}, {"n_same", check.n_same}, {"distance", check.distance}, {"good", good}};
  } else {
    Print(Format("against %s: the worst logit differs by %.3g; %d of %d rows have the same largest one\n",
                 Printable(command.check_against).c_str(), check.distance, check.n_same, check.n_rows));
  }
  return good;
}

Json ReportJson(const ConvertCommand& command, const ConvertReport& report) {
  return Json{{"output", command.output},
              {"kind", report.kind},
              {"architecture", report.architecture},
              {"name", report.name},
              {"weights", command.weights},
              {"n_tensors", report.n_tensors},
              {"n_packed", report.n_packed},
              {"n_adapted", report.n_adapted},
              {"types", TypesJson(report)},
              {"bytes_read", report.bytes_read},
              {"bytes_written", report.bytes_written},
              {"warnings", report.warnings}};
}

int RunConvert(const ConvertCommand& command, Signals* signals) {
  if (command.output.empty() && !command.dry_run) throw UsageError("OUT is needed, or --dry-run");
  if (command.dry_run && !command.check_against.empty())
    throw UsageError("--check-against needs a model file, and --dry-run makes none");
  Json reference;  // before the work
  if (!command.check_against.empty()) {
    CheckOutputs({command.check_against}, {command.output});
    reference = ReadJson(command.check_against);
  }
  signals->RemoveTemporariesOf(command.output);
  const CancelOnSignal cancel(signals);
  ConvertReport report;
  Progress progress("converting");
  ConvertOptions options = MakeConvertOptions(command, cancel, &progress);
  Json plan;
  options.planned = [&](const ConvertPlan& known) {
    plan = PlanJson(known);
    if (command.json) return;
    Print(PlanTable(known) + "\n");
    FlushOutput();
  };
  const Status status = Convert(command.source, command.output, options, &report);
  progress.Clear();
  if (!status.ok()) {
    throw Failure("cannot convert: " + status.message() + " (" +
                  kvc_status_name(static_cast<kvc_status>(status.code())) + ")");
  }
  for (const std::string& warning : report.warnings) Note("kvc: note: " + warning);
  const std::string beside = command.head_scores.empty() ? ScoresBeside(command.source) : "";
  if (!beside.empty()) Note("kvc: note: " + beside);
  if (command.dry_run) {
    if (command.json) PrintJson(plan);
    return kExitGood;
  }
  bool good = true;
  if (command.json) {
    Json out = ReportJson(command, report);
    out["plan"] = plan;
    if (!command.check_against.empty()) good = Check(command, reference, &out);
    PrintJson(out);
  } else {
    Print(Format("%s: %s (%s, %s), %d tensors, %s of weights, %s in the source\n",
                 Printable(command.output).c_str(), Printable(report.name).c_str(),
                 report.architecture.c_str(), report.kind.c_str(), report.n_tensors,
                 FormatBytes(report.bytes_written).c_str(), FormatBytes(report.bytes_read).c_str()));
    for (size_t i = 0; i < report.n_adapted.size(); ++i)
      Print(Format("  %s: added to %d matrices\n", Printable(command.adapters[i]).c_str(),
                   report.n_adapted[i]));
    Print(TypesTable(report));
    if (!command.check_against.empty()) good = Check(command, reference, nullptr);
  }
  return good ? kExitGood : kExitFailed;
}

}  // namespace

Action AddConvert(CLI::App* app) {
  const auto command = std::make_shared<ConvertCommand>();
  AddInput(app, "SRC", &command->source, "A Hugging Face directory, a GGUF file or a llama2.c checkpoint")
      ->required();
  AddOutput(app, "OUT", &command->output, "The model file to write (.kvc); links are followed");
  app->add_flag("--dry-run", command->dry_run, "Only say what would be made; OUT may be left out");
  AddInput(app, "--check-against", &command->check_against,
           "JSON with tokens and the logits that another program has after them: says how far the model "
           "file's are "
           "from these, and fails where another token is the largest");
  app->add_option("--tolerance", command->tolerance,
                  "With --check-against: fail beyond this distance of a logit too")
      ->check(Real(0, 1e9))
      ->needs("--check-against")
      ->type_name("X");
  app->add_option("--weights", command->weights, "How matrices are stored: keep, f32, bf16, int8 or int4")
      ->check(CLI::IsMember(WeightNames()).description(""))
      ->capture_default_str()
      ->type_name("TYPE");
  app->add_option("--group", command->group, "Columns that share a scale in int8 and int4: 32, 64 or 128")
      ->check(CLI::IsMember({32, 64, 128}).description(""))
      ->capture_default_str()
      ->type_name("N");
  app->add_option(
         "--context", command->context,
         "Tokens the model is wanted for; where rotations differ for short and long texts (LongRoPE), this "
         "chooses. 0: all it was trained for")
      ->check(CLI::Range(int64_t{0}, kMostContext).description(""))
      ->capture_default_str()
      ->type_name("N");
  app->add_option(
         "--rope", command->rope,
         "Reach beyond what the model was trained for, F times as far, at a price that a note states: "
         "yarn:F, linear:F, dynamic:F (with --context: for so many tokens), such as yarn:4")
      ->check(CLI::Validator(
          [](std::string& text) {
            const auto parsed = ParseRopeExtension(text);
            return parsed.ok() ? std::string() : parsed.status().message();
          },
          ""))
      ->type_name("FORM:F");
  app->add_option("--pack", command->pack,
                  "Store matrices as processors multiply them, so that opening is a map: none, native or an "
                  "instruction set")
      ->check(CLI::IsMember(PackTargets()).description(""))
      ->capture_default_str()
      ->type_name("TARGET");
  AddInputs(app, "--head-scores", &command->head_scores,
            "JSON with head scores to store; again for more tables");
  AddInputs(
      app, "--lora", &command->adapters,
      "A LoRA adapter to add to the weights: a folder of PEFT, or GGUF for a GGUF model; =S behind it scales "
      "it. Again for more")
      ->type_name("PATH[=S]");
  app->add_option("--name", command->name, "The model's name, instead of the source's own")
      ->type_name("TEXT");
  app->add_flag("--json", command->json, "One JSON document on stdout");
  app->footer(
      "--rope takes the place of the scaling that SRC has. It changes what short prompts give, too (yarn\n"
      "little, linear much unless the model was trained so; dynamic fits one length), and what longer\n"
      "ones are worth has to be measured (kvc eval). Twice the context, and what that does to the model:\n"
      "  kvc convert SRC long.kvc --rope yarn:2 --dry-run");
  return [command, app](Signals* signals) {
    RefuseUnless(command->weights == "int8" || command->weights == "int4", *app, "--group",
                 "--weights int8 or int4");
    return RunConvert(*command, signals);
  };
}

}  // namespace kvc::tool
