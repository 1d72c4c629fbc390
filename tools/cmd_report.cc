// kvc report: quality, memory and speed of policies on one page.
#include <algorithm>
#include <memory>

#include "tools/command.h"
#include "tools/files.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/quality.h"
#include "tools/report/measure.h"
#include "tools/signals.h"

namespace kvc::tool {
namespace {

struct ReportCommand {
  ModelOptions model;
  TableOptions tables;
  std::vector<std::string> policies, data;
  TuneBudgets budgets;
  int32_t limit = 0, focus = 0;
  std::string out;
  std::string line;  // that makes the page again
};

// From half of the longest context down to eight slots.
std::vector<double> HalvedBudgets(int32_t longest) {
  constexpr int32_t kFewest = 8;
  std::vector<double> budgets;
  for (int32_t budget = longest / 2; budget >= kFewest; budget /= 2) budgets.push_back(budget);
  return budgets;
}

// Of each ladder the rung with the largest budget up to focus slots, else its last.
std::vector<size_t> ShownRungs(const Model& model, const std::vector<TuneLadder>& ladders, int32_t longest,
                               int32_t focus) {
  const double most = static_cast<double>(focus) * model.n_kv_heads_total();
  std::vector<size_t> shown;
  for (const TuneLadder& ladder : ladders) {
    size_t rung = 0;
    for (; rung + 1 < ladder.size(); ++rung) {
      const SessionPlan plan = PlanSession(model, ladder[rung].policy, DefaultSessionParams(), longest);
      double slots = 0;
      for (const int32_t n : plan.slots) slots += n;
      if (slots <= most) break;
    }
    shown.push_back(rung);
  }
  return shown;
}

void AddFacts(const ReportCommand& command, const Model& model, const std::vector<Task>& tasks,
              int32_t longest, Report* report) {
  const kvc_model_info& info = model.info();
  size_t n_questions = 0;
  for (const Task& task : tasks) n_questions += task.questions.size();
  const Json about = model.Describe();
  report->title = "KV cache report: " + command.model.path;
  report->summary =
      "Every context is compressed before the question is known; then each question is asked after it. Bytes "
      "are those "
      "that the allocator holds after the context.";
  std::string data;
  for (const std::string& file : command.data) data += (data.empty() ? "" : ", ") + file;
  report->facts = {
      {"model", Format("%s parameters, %d layers with %d KV heads of size %d, fingerprint %s",
                       FormatParameters(info.n_parameters).c_str(), info.n_layers, info.n_kv_heads,
                       info.head_dim, about.value("fingerprint", std::string("none")).c_str())},
      {"data", data},
      {"tasks", Format("%zu contexts of up to %d tokens, %zu questions", tasks.size(), longest, n_questions)},
      {"program", Format("kvc %s, %d threads", LibraryVersion().c_str(), ThreadsUsed(command.model))},
      {"device", DeviceText(model)}};
  if (command.model.framing.chat)
    report->facts.emplace_back("texts", "said as a user's message, by the turn format of the model file");
  if (command.model.framing.special)
    report->facts.emplace_back("special tokens", "those written in the texts become their ids");
  report->n_layers = info.n_layers;
  report->command = command.line;
  if (!about.contains("head_scores")) return;
  int32_t index = 0;
  for (const Json& table : about["head_scores"]) {
    const std::vector<float> scores = model.HeadScores(index++);
    report->head_scores.emplace_back(table.value("name", std::string("scores")),
                                     std::vector<double>(scores.begin(), scores.end()));
  }
}

int MakeReport(ReportCommand command, Signals* signals) {
  std::vector<std::string> inputs = command.data;
  inputs.insert(inputs.end(), {command.model.path, command.tables.head_scores, command.tables.table});
  CheckOutputs(inputs, {command.out});
  signals->RemoveTemporariesOf(command.out);
  NoteIdleTables(command.tables, command.policies);
  const Tables tables = ReadTables(command.tables);
  const Model model = OpenModel(command.model, signals);
  std::vector<Task> tasks;
  {
    const TaskEvaluator judge(model, {}, TaskProtocol::kAsk);
    for (const std::string& file : command.data) {
      for (Task& task : TasksThatFit(model, judge, file, command.limit)) tasks.push_back(std::move(task));
    }
  }
  int32_t longest = 0;
  for (const Task& task : tasks)
    longest = std::max(longest, static_cast<int32_t>(model.TokenizePrompt(task.context).size()));
  Report report;
  AddFacts(command, model, tasks, longest, &report);
  TuneBudgets budgets = command.budgets;
  if (budgets.values.empty()) budgets.values = HalvedBudgets(longest);
  std::vector<TuneLadder> ladders =
      MakeLadders(model, command.policies, budgets, command.tables, tables, longest);
  const int32_t focus = command.focus > 0 ? command.focus : std::max(8, longest / 8);
  const std::vector<size_t> shown = ShownRungs(model, ladders, longest, focus);
  MeasureCurves(model, tasks, &ladders, shown, &report);
  for (size_t l = 0; l < ladders.size(); ++l)
    report.contexts.push_back(MeasureKept(model, ladders[l][shown[l]].policy, tasks[0]));
  WriteTextFile(command.out, ReportHtml(report));
  Print(Printable(command.out) + ": " + Counted(static_cast<int64_t>(ladders.size()), "policy", "policies") +
        " on " + Counted(static_cast<int64_t>(tasks.size()), "context", "contexts") + "\n");
  return kExitGood;
}

}  // namespace

Action AddReport(CLI::App* app) {
  const auto command = std::make_shared<ReportCommand>();
  AddModelOptions(app, &command->model);
  AddInputs(app, "--data", &command->data, "Tasks, one JSON object a line; again for more files")->required();
  AddFramingOptions(app, &command->model.framing);
  app->add_option("--policy", command->policies,
                  "Method and options; without a budget: at each of --budgets; again for several")
      ->required()
      ->allow_extra_args(false)
      ->type_name("SPEC");
  AddTableOptions(app, &command->tables);
  app->add_option("--budgets", command->budgets.values,
                  "Slots a head to try (none: halves of the longest context)")
      ->delimiter(',')
      ->check(Real(1, 1e9))
      ->type_name("N,...");
  app->add_option("--focus", command->focus,
                  "Slots a head at which grids, head maps and texts are shown; 0 = an eighth of the context")
      ->check(AtLeast(0))
      ->type_name("N");
  app->add_option("--limit", command->limit, "At most so many tasks of a file; 0 = all")
      ->check(AtLeast(0))
      ->type_name("N");
  AddOutput(app, "-o,--out", &command->out, "The page to write (HTML)")->required();
  return [command, app](Signals* signals) {
    command->line = CommandLine(*app);
    return MakeReport(*command, signals);
  };
}

}  // namespace kvc::tool
