// kvc eval: several policies on tasks and texts, with everything needed to repeat it.
#include <algorithm>
#include <array>
#include <map>
#include <memory>

#include "tools/command.h"
#include "tools/explain/page.h"
#include "tools/files.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/quality.h"
#include "tools/signals.h"
#include "tools/suite/run.h"

namespace kvc::tool {
namespace {

struct EvalOptions {
  ModelOptions model;
  TableOptions tables;
  std::vector<std::string> policies, data, texts;
  std::string protocol, text_protocol = "stream";
  int32_t limit = 0, window = 0, n_windows = 0;
  SuiteOptions suite;
  bool json = false, csv = false, explain = false;
  double top_share = 0.05;
  std::string picture;
};

using WindowLosses = std::vector<std::pair<double, int64_t>>;  // of each window: nats, tokens scored

// One line of the result: a policy on one kind of data.
struct EvalRow {
  std::string spec, policy, kind, protocol, file;  // policy as it was asked for, and its canonical text
  QualitySums sums;
  TaskCounts by_task = {};
  WindowLosses by_window = {};
  ExplainSums explain = {};
};

std::vector<const Policy*> Pointers(const std::vector<Policy>& policies) {
  std::vector<const Policy*> out;
  for (const Policy& policy : policies) out.push_back(&policy);
  return out;
}

std::vector<EvalRow> MakeRows(const std::vector<Policy>& policies, const std::string& kind,
                              const std::string& protocol, const std::string& file) {
  std::vector<EvalRow> rows;
  for (const Policy& policy : policies)
    rows.push_back({policy.spec(), policy.Describe(), kind, protocol, file, {}});
  return rows;
}

// The rows of one kind of a file; kinds of the same name of several files stay apart.
void AddExplained(const std::vector<EvalRow>& rows, const FullCacheSums& full, Explanation* explanation) {
  std::string name = rows[0].kind;
  for (const ExplainKind& other : explanation->kinds) {
    if (other.kind == name) name += " of " + rows[0].file;
  }
  for (const EvalRow& row : rows) {
    const double kl = Ratio(row.sums.kl, static_cast<double>(row.sums.n_compared));
    explanation->rows.push_back({row.spec, row.policy, name, row.sums.accuracy(), kl, row.explain});
  }
  explanation->kinds.push_back({name, full});
}

void EvalTasks(const EvalOptions& options, const Model& model, const std::vector<Policy>& policies,
               const std::string& file, std::vector<EvalRow>* rows, Explanation* explanation) {
  TaskEvaluator evaluator(model, Pointers(policies),
                          options.protocol == "ask" ? TaskProtocol::kAsk : TaskProtocol::kPrompt);
  const std::vector<Task> tasks = TasksThatFit(model, evaluator, file, options.limit);
  std::vector<std::string> kinds;  // in the order they appear
  std::map<std::string, std::vector<QualitySums>> sums;
  std::map<std::string, std::vector<TaskCounts>> by_task;
  std::optional<Explainer> explainer;
  std::map<std::string, std::vector<ExplainSums>> explained;
  std::map<std::string, FullCacheSums> full;
  if (options.explain) {
    explainer.emplace(model, options.model.path, options.top_share);
    evaluator.ShowTo(&*explainer);
  }
  Progress progress(file);
  for (size_t i = 0; i < tasks.size(); ++i) {
    progress.Update(static_cast<double>(i), static_cast<double>(tasks.size()),
                    Format("task %zu of %zu", i + 1, tasks.size()));
    const auto [entry, is_new] = sums.try_emplace(tasks[i].kind, policies.size());
    if (is_new) kinds.push_back(tasks[i].kind);
    if (explainer) {
      std::vector<ExplainSums>& sums_of_kind = explained[tasks[i].kind];
      sums_of_kind.resize(policies.size());
      explainer->Count(&sums_of_kind, &full[tasks[i].kind]);
    }
    const std::vector<std::vector<AnswerTrace>> answers = evaluator.Run(tasks[i], &entry->second);
    std::vector<TaskCounts>& counts = by_task[tasks[i].kind];
    counts.resize(policies.size());
    for (size_t p = 0; p < policies.size(); ++p) counts[p].push_back(CountsOf(answers[p]));
  }
  for (const std::string& kind : kinds) {
    std::vector<EvalRow> own = MakeRows(policies, kind, options.protocol, file);
    for (size_t p = 0; p < own.size(); ++p) own[p].sums = sums[kind][p], own[p].by_task = by_task[kind][p];
    for (size_t p = 0; explainer && p < own.size(); ++p) own[p].explain = explained[kind][p];
    rows->insert(rows->end(), own.begin(), own.end());
    if (explainer) AddExplained(own, full[kind], explanation);
  }
}

void EvalText(const EvalOptions& options, const Model& model, const std::vector<Policy>& policies,
              int32_t window, const std::string& file, std::vector<EvalRow>* rows) {
  const TokenList tokens = model.TokenizeText(ReadFile(file, kMaxDataBytes));
  TextEvaluator evaluator(model, Pointers(policies),
                          options.text_protocol == "stream" ? TextProtocol::kStream : TextProtocol::kPrefix,
                          window);
  const int64_t n_there = evaluator.CountWindows(tokens);
  if (n_there == 0)
    throw Failure(Format("%s: %zu tokens are less than one window of %d; --window N takes shorter ones",
                         file.c_str(), tokens.size(), window));
  const bool spread = options.n_windows > 0;
  const int32_t most = spread ? options.n_windows : options.limit;
  const int64_t n_windows = most > 0 ? std::min<int64_t>(n_there, most) : n_there;
  std::vector<EvalRow> own = MakeRows(policies, "text", options.text_protocol, file);
  Progress progress(file);
  for (int64_t i = 0; i < n_windows; ++i) {
    progress.Update(
        static_cast<double>(i), static_cast<double>(n_windows),
        Format("window %lld of %lld", static_cast<long long>(i + 1), static_cast<long long>(n_windows)));
    std::vector<QualitySums> of_window(policies.size());
    evaluator.Run(tokens, spread ? i * n_there / n_windows : i, &of_window);
    for (size_t p = 0; p < own.size(); ++p) {
      own[p].by_window.emplace_back(-of_window[p].log_likelihood, of_window[p].n_scored);
      AddSums(of_window[p], &own[p].sums);
    }
  }
  rows->insert(rows->end(), own.begin(), own.end());
}

// The fields of a row; what does not apply to its kind of data is null.
Json RowJson(const EvalRow& row, int32_t n_heads) {
  const QualitySums& sums = row.sums;
  const Interval interval = AccuracyInterval(row.by_task);
  const bool is_text = sums.n_scored > 0;
  const auto when = [](bool applies, double value) { return applies ? Json(value) : Json(nullptr); };
  const double compared = static_cast<double>(sums.n_compared);
  Json out{
      {"policy", row.policy},
      {"kind", row.kind},
      {"protocol", row.protocol},
      {"file", row.file},
      {"n", is_text ? sums.n_scored : sums.n},
      {"n_prompts", sums.n_prompts},
      {"accuracy", when(sums.n > 0, sums.accuracy())},
      {"accuracy_low", when(sums.n > 0, interval.low)},
      {"accuracy_high", when(sums.n > 0, interval.high)},
      {"kl", when(sums.n_compared > 0, Ratio(sums.kl, compared))},
      {"top1", when(sums.n_compared > 0, Ratio(static_cast<double>(sums.n_same_top), compared))},
      {"n_compared", sums.n_compared},
      {"perplexity", when(is_text, sums.perplexity())},
      {"cache_bytes", sums.mean(sums.cache_bytes)},
      {"cache_bytes_peak", sums.cache_bytes_peak},
      {"cache_bytes_full", sums.mean(sums.cache_bytes_full)},
      {"slots_per_head", sums.mean(sums.slots) / n_heads},
      {"cache_share", Ratio(sums.slots, sums.slots_full)},
      {"prefill_seconds", sums.mean(sums.prefill_seconds)},
      {"step_seconds", when(sums.n_steps > 0, Ratio(sums.step_seconds, static_cast<double>(sums.n_steps)))}};
  if (!row.by_task.empty())
    out["right_by_task"] = row.by_task;  // [[right, questions], ...]: for paired comparisons
  if (!row.by_window.empty()) out["nll_by_window"] = row.by_window;  // [[nats, tokens], ...]: likewise
  if (row.explain.n_queries > 0) out["explain"] = ExplainRowJson(row.explain);
  return out;
}

void PrintTable(const std::vector<EvalRow>& rows, int32_t n_heads) {
  Table table({"policy", "kind", "protocol", "n", "right", "95 % interval", "KL", "same top", "perplexity",
               "slots", "cache", "prefill", "step"},
              "lllrrrrrrrrrr");
  for (const EvalRow& row : rows) {
    const QualitySums& sums = row.sums;
    const Interval interval = AccuracyInterval(row.by_task);
    const bool is_text = sums.n_scored > 0;
    const double compared = static_cast<double>(sums.n_compared);
    table.AddRow(
        {row.spec, row.kind, row.protocol, FormatCount(is_text ? sums.n_scored : sums.n),
         sums.n > 0 ? FormatPercent(sums.accuracy()) : "",
         sums.n > 0 ? Format("%.0f - %.0f %%", interval.low * 100, interval.high * 100) : "",
         compared > 0 ? Format("%.4f", sums.kl / compared) : "",
         compared > 0 ? FormatPercent(static_cast<double>(sums.n_same_top) / compared) : "",
         is_text ? Format("%.3f", sums.perplexity()) : "", Format("%.1f", sums.mean(sums.slots) / n_heads),
         FormatBytes(static_cast<int64_t>(sums.mean(sums.cache_bytes))),
         FormatSeconds(sums.mean(sums.prefill_seconds)),
         sums.n_steps > 0 ? FormatSeconds(Ratio(sums.step_seconds, static_cast<double>(sums.n_steps))) : ""});
  }
  Print(table.Text());
}

std::string CsvCell(const Json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  std::string quoted = "\"";
  for (const char c : value.get<std::string>()) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

void PrintCsv(const Json& results) {
  std::string text;
  for (const auto& [key, value] : results[0].items()) {
    if (!value.is_structured()) text += (text.empty() ? "" : ",") + key;
  }
  text += "\n";
  for (const Json& row : results) {
    std::string line;
    for (const auto& [key, value] : row.items()) {
      if (!value.is_structured()) line += (line.empty() ? "" : ",") + CsvCell(value);
    }
    text += line + "\n";
  }
  Print(text);
}

// The fields of a row of a benchmark.
Json SuiteRowJson(const SuiteRow& row, const EvalOptions& options, int32_t n_heads) {
  const QualitySums& sums = row.sums;
  const Interval interval = BootstrapInterval(DrawnScores(row), static_cast<uint64_t>(options.suite.seed));
  return Json{{"policy", row.policy},
              {"suite", options.suite.name},
              {"kind", row.task},
              {"protocol", options.protocol},
              {"file", row.file},
              {"n", row.scores.size()},
              {"metric", row.metric},
              {"score", row.mean()},
              {"score_low", interval.low},
              {"score_high", interval.high},
              {"cache_bytes", sums.mean(sums.cache_bytes)},
              {"cache_bytes_peak", sums.cache_bytes_peak},
              {"cache_bytes_full", sums.mean(sums.cache_bytes_full)},
              {"slots_per_head", sums.mean(sums.slots) / n_heads},
              {"cache_share", Ratio(sums.slots, sums.slots_full)},
              {"prefill_seconds", sums.mean(sums.prefill_seconds)},
              {"step_seconds", Ratio(sums.step_seconds, static_cast<double>(sums.n_steps))},
              {"scores", row.scores},
              {"depths", row.depths}};
}

void PrintSuiteTable(const std::vector<SuiteRow>& rows, const EvalOptions& options, int32_t n_heads) {
  Table table({"policy", "task", "n", "metric", "score", "95 % interval", "slots", "cache", "of full",
               "prefill", "step"},
              "llrlrrrrrrr");
  for (const SuiteRow& row : rows) {
    const QualitySums& sums = row.sums;
    const Interval interval = BootstrapInterval(DrawnScores(row), static_cast<uint64_t>(options.suite.seed));
    table.AddRow({row.spec, row.task, std::to_string(row.scores.size()), row.metric,
                  Format("%.2f", 100 * row.mean()),
                  Format("%.0f - %.0f", 100 * interval.low, 100 * interval.high),
                  Format("%.1f", sums.mean(sums.slots) / n_heads),
                  FormatBytes(static_cast<int64_t>(sums.mean(sums.cache_bytes))),
                  FormatPercent(Ratio(sums.cache_bytes, sums.cache_bytes_full)),
                  FormatSeconds(sums.mean(sums.prefill_seconds)),
                  FormatSeconds(Ratio(sums.step_seconds, static_cast<double>(sums.n_steps)))});
  }
  Print(table.Text());
}

// Of every policy, the mean score in percent: depths down, lengths across. rows: [length][policy].
void PrintNeedleGrids(const std::vector<SuiteRow>& rows, size_t n_policies) {
  for (size_t p = 0; p < n_policies; ++p) {
    std::vector<std::string> head = {"depth"};
    std::map<double, std::vector<std::string>> cells;
    for (size_t i = p; i < rows.size(); i += n_policies) {
      const SuiteRow& row = rows[i];
      head.push_back(row.task.substr(row.task.find('_') + 1));
      for (const auto& [depth, score] : MeanByDepth(row)) cells[depth].push_back(Format("%.0f", 100 * score));
    }
    Table table(head, std::string(head.size(), 'r'));
    for (auto& [depth, line] : cells) {
      line.insert(line.begin(), Format("%.0f %%", 100 * depth));
      table.AddRow(line);
    }
    Print("\n" + rows[p].spec + ", score by depth and tokens of the prompt\n" + table.Text());
  }
}

Json HowToRepeat(const EvalOptions& options, const Tables& tables, const Model& model, int32_t window) {
  const Json about = model.Describe();
  Json out{
      {"library_version", LibraryVersion()},
      {"model", {{"path", options.model.path}, {"fingerprint", about.value("fingerprint", Json(nullptr))}}},
      {"protocol", options.protocol},
      {"text_protocol", options.text_protocol},
      {"window", window},
      {"windows", options.n_windows},
      {"limit", options.limit},
      {"framing", FramingJson(options.model.framing)},
      {"threads", ThreadsUsed(options.model)},
      {"made_on", model.Device()},
      {"temperature", 0},
      {"seed", 0},
      {"data", options.data},
      {"texts", options.texts}};
  if (!options.tables.head_scores.empty()) out["head_scores"] = tables.head_scores;
  if (!options.tables.table.empty()) out["table"] = tables.table;
  return out;
}

// A published benchmark, or one that is made as published.
int EvalSuite(const EvalOptions& options, const std::vector<Policy>& policies, const Tables& tables,
              Signals* signals) {
  if (!options.texts.empty()) throw UsageError("--text is no part of --suite");
  const Model model = OpenModel(options.model, signals);
  const std::vector<SuiteTask> tasks = SuiteTasks(options.suite, model);
  const TaskProtocol protocol = options.protocol == "ask" ? TaskProtocol::kAsk : TaskProtocol::kPrompt;
  std::vector<SuiteRow> rows;
  for (const SuiteTask& task : tasks) {
    for (SuiteRow& row : RunSuiteTask(model, policies, protocol, task, task.file.empty() ? 0 : options.limit))
      rows.push_back(std::move(row));
  }
  const int32_t n_heads = model.n_kv_heads_total();
  if (!options.json && !options.csv) {
    PrintSuiteTable(rows, options, n_heads);
    if (options.suite.name == "needle") PrintNeedleGrids(rows, policies.size());
    return kExitGood;
  }
  Json results = Json::array();
  for (const SuiteRow& row : rows) results.push_back(SuiteRowJson(row, options, n_heads));
  if (options.csv) {
    PrintCsv(results);
    return kExitGood;
  }
  Json out{{"results", results}};
  out.update(HowToRepeat(options, tables, model, 0));
  out["suite"] = {{"name", options.suite.name},           {"tasks", options.suite.tasks},
                  {"length", options.suite.length},       {"lengths", options.suite.lengths},
                  {"items", ItemsOf(options.suite)},      {"essay", options.suite.essay},
                  {"questions", options.suite.questions}, {"seed", options.suite.seed}};
  PrintJson(out);
  return kExitGood;
}

int Eval(EvalOptions options, Signals* signals) {
  if (options.explain && (options.data.empty() || !options.suite.name.empty()))
    throw UsageError("--explain is about tasks: it needs --data TASKS.jsonl, and is no part of --suite");
  if (options.explain && options.csv && options.picture.empty())
    throw UsageError(
        "--csv has no room for what --explain measures: --json, a table, or with --picture FILE");
  std::vector<std::string> inputs = options.data;
  inputs.insert(inputs.end(), options.texts.begin(), options.texts.end());
  inputs.insert(inputs.end(), {options.model.path, options.tables.head_scores, options.tables.table});
  CheckOutputs(inputs, {options.picture});
  if (!options.picture.empty()) signals->RemoveTemporariesOf(options.picture);
  if (options.suite.name.empty() && options.data.empty() && options.texts.empty())
    throw UsageError("eval needs --data TASKS.jsonl, --text F.txt or --suite");
  std::vector<Policy> policies;
  if (options.policies.empty()) options.policies = {"full"};
  NoteIdleTables(options.tables, options.policies);
  const Tables tables = ReadTables(options.tables);
  for (const std::string& spec : options.policies)
    policies.push_back(MakePolicy(spec, options.tables, tables));
  if (options.protocol.empty()) options.protocol = options.suite.name.empty() ? "ask" : "prompt";
  if (!options.suite.name.empty()) {
    options.suite.data = options.data, options.suite.limit = options.limit;
    return EvalSuite(options, policies, tables, signals);
  }
  const Model model = OpenModel(options.model, signals);
  constexpr int32_t kLongestDefaultWindow = 2048;
  const int32_t window =
      options.window > 0 ? options.window : std::min(model.info().max_tokens, kLongestDefaultWindow);
  const int32_t least = TextEvaluator::ShortestWindow(model);
  if (!options.texts.empty() && (window < least || window > model.info().max_tokens)) {
    throw UsageError(Format("--window %d: a window of text has %d to %d tokens, the context of the model",
                            window, least, model.info().max_tokens));
  }
  std::vector<EvalRow> rows;
  Explanation explanation{model.info().n_layers, model.info().n_heads, options.top_share, {}, {}};
  for (const std::string& file : options.data) EvalTasks(options, model, policies, file, &rows, &explanation);
  for (const std::string& file : options.texts) EvalText(options, model, policies, window, file, &rows);
  if (!options.picture.empty()) WriteTextFile(options.picture, ExplainPicture(explanation));
  const int32_t n_heads = model.n_kv_heads_total();
  if (!options.json && !options.csv) {
    PrintTable(rows, n_heads);
    if (options.explain) PrintExplanation(explanation);
    return kExitGood;
  }
  Json results = Json::array();
  for (const EvalRow& row : rows) results.push_back(RowJson(row, n_heads));
  if (options.csv) {
    PrintCsv(results);
  } else {
    Json out{{"results", results}};
    out.update(HowToRepeat(options, tables, model, window));
    if (options.explain) out["explain"] = ExplainJson(explanation);
    PrintJson(out);
  }
  return kExitGood;
}

void AddSuiteOptions(CLI::App* app, SuiteOptions* options) {
  const char* help =
      "A published benchmark, ruler or longbench: its files are --data (a folder or one of them), scored by "
      "its own metrics. Without --data ruler's tasks are made here. Or needle: a sentence hidden at eleven "
      "depths of prompts of several lengths";
  CLI::Option* suite = app->add_option("--suite", options->name, help)
                           ->check(CLI::IsMember({"ruler", "longbench", "needle"}).description(""))
                           ->type_name("NAME");
  app->add_option("--tasks", options->tasks, "Of the suite, such as niah_single_1,vt (none: all there are)")
      ->delimiter(',')
      ->needs(suite)
      ->type_name("NAME,...");
  app->add_option("--items", options->n_items,
                  "Prompts to make for each task (none: 10), of needle for each length and depth (none: 1)")
      ->check(Whole(1, 100000))
      ->needs(suite)
      ->type_name("N");
  CLI::Option* length =
      app->add_option("--length", options->length, "Tokens of prompts that are made; 0 = the model's context")
          ->check(AtLeast(0))
          ->needs(suite)
          ->type_name("N");
  app->add_option("--lengths", options->lengths, "Of needle, instead of --length and its halves down to 512")
      ->delimiter(',')
      ->check(AtLeast(1))
      ->needs(suite)
      ->excludes(length)
      ->type_name("N,...");
  AddInput(app, "--essay", &options->essay, "Text to hide needles in, for tasks that are made with one")
      ->needs(suite);
  AddInputs(
      app, "--questions", &options->questions,
      "SQuAD (qa_1) or HotpotQA (qa_2) as published, for tasks that are made of their questions; again for "
      "the other")
      ->needs(suite);
  app->add_option("--suite-seed", options->seed, "Of prompts that are made, and of the intervals")
      ->check(Whole(0, INT64_MAX))
      ->capture_default_str()
      ->needs(suite)
      ->type_name("N");
}

void AddExplainOptions(CLI::App* app, EvalOptions* options) {
  CLI::Option* explain = app->add_flag(
      "--explain", options->explain,
      "With --data: per layer, what evicting changes in the attention output, its bound, the attention that "
      "stays and how concentrated it was; whether that tells accuracy; and the singular values of what is "
      "cached");
  AddOutput(app, "--picture", &options->picture, "Draw what --explain measured (SVG)")->needs(explain);
  app->add_option("--top-share", options->top_share,
                  "Share of the most attended entries that concentration is measured at")
      ->check(CLI::Range(0.001, 1.0).description(""))
      ->capture_default_str()
      ->needs(explain)
      ->type_name("X");
}

void RefuseIdle(const CLI::App& app, const EvalOptions& options) {
  for (const char* of_texts : {"--window", "--windows", "--text-protocol"})
    RefuseUnless(!options.texts.empty(), app, of_texts, "--text");
  RefuseUnless(!options.data.empty() || !options.suite.name.empty(), app, "--protocol", "--data or --suite");
  RefuseUnless(options.texts.empty(), app, "--chat",
               "--data or --suite: windows of a --text are no messages, and are scored as they stand");
  RefuseUnless(options.n_windows == 0 || !options.data.empty(), app, "--limit",
               "the first windows of a text, and --windows spreads a number of its own");
  RefuseUnless(options.suite.name == "needle", app, "--lengths", "--suite needle");
  for (const char* of_made : {"--items", "--length", "--essay", "--questions"})
    RefuseUnless(options.data.empty(), app, of_made, "prompts that are made here: without --data");
}

}  // namespace

Action AddEval(CLI::App* app) {
  const auto options = std::make_shared<EvalOptions>();
  AddModelOptions(app, &options->model);
  AddInputs(app, "--data", &options->data, "Tasks, one JSON object a line; again for more files");
  AddInputs(app, "--text", &options->texts, "Text for perplexity; again for more files");
  AddFramingOptions(app, &options->model.framing);
  app->add_option("--policy", options->policies, "Method and options; again to compare several (none: full)")
      ->allow_extra_args(false)
      ->type_name("SPEC");
  AddTableOptions(app, &options->tables);
  app->add_option(
         "--protocol", options->protocol,
         "ask (none: this one): compress, then ask. prompt (of --suite: this one): the question is part "
         "of the compressed prompt")
      ->check(CLI::IsMember({"ask", "prompt"}).description(""))
      ->type_name("P");
  app->add_option(
         "--text-protocol", options->text_protocol,
         "stream: token by token, compressing all the time. prefix: compress the first half of a window once")
      ->check(CLI::IsMember({"stream", "prefix"}).description(""))
      ->capture_default_str()
      ->type_name("P");
  app->add_option("--window", options->window, "Tokens of a text window; 0 = trained context, at most 2048")
      ->check(AtLeast(0))
      ->type_name("N");
  app->add_option("--windows", options->n_windows,
                  "At most so many windows of a text, spread evenly over it; 0 = the first --limit")
      ->check(AtLeast(0))
      ->type_name("N");
  app->add_option("--limit", options->limit, "At most so many tasks or windows of a file; 0 = all")
      ->check(AtLeast(0))
      ->type_name("N");
  AddSuiteOptions(app, &options->suite);
  AddExplainOptions(app, options.get());
  CLI::Option* json = app->add_flag("--json", options->json, "One JSON document on stdout");
  app->add_flag("--csv", options->csv, "A table with commas on stdout")->excludes(json);
  return [options, app](Signals* signals) {
    RefuseIdle(*app, *options);
    return Eval(*options, signals);
  };
}

}  // namespace kvc::tool
