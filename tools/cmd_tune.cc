// kvc tune: the smallest cache that keeps a promise on quality, with a stated confidence.
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>

#include "tools/command.h"
#include "tools/files.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/quality.h"
#include "tools/signals.h"
#include "tools/tune/bounds.h"
#include "tools/tune/search.h"

namespace kvc::tool {
namespace {

struct TuneCommand {
  ModelOptions model;
  TableOptions tables;
  std::vector<std::string> policies, data, budget_texts;
  std::string metric = "accuracy", protocol = "ask", out;
  TunePromise promise;
  TuneBudgets budgets;
  double held_out = 0.3;
  int64_t seed = 1;
  int32_t limit = 0;
  bool json = false;
};

struct TuneData {
  std::vector<Task> tasks;
  TaskSplit split;
  int32_t longest = 0;     // tokens
  bool is_binary = false;  // one question a task
};

struct TuneOutcome {
  std::vector<TuneLadder> ladders;
  std::optional<TuneSearch> search;
  std::pair<int, int> best = {-1, -1};
  HeldOut held_out;
  const TuneRung* chosen() const {
    if (best.first < 0) return nullptr;
    return &ladders[static_cast<size_t>(best.first)][static_cast<size_t>(best.second)];
  }
};

std::string Share(double share) { return Format("%.4g %%", share * 100); }

TaskProtocol ProtocolOf(const TuneCommand& command) {
  return command.protocol == "ask" ? TaskProtocol::kAsk : TaskProtocol::kPrompt;
}

TuneData ReadTuneData(const TuneCommand& command, const Model& model) {
  TuneData data;
  const TaskEvaluator judge(model, {}, ProtocolOf(command));
  size_t most_questions = 0, n_again = 0;
  std::set<std::string> contexts;  // the promise counts draws that know nothing of each other
  for (const std::string& file : command.data) {
    for (Task& task : TasksThatFit(model, judge, file, command.limit)) {
      const auto end = std::remove_if(task.questions.begin(), task.questions.end(),
                                      [&](const Question& q) { return !judge.Counts(q); });
      task.questions.erase(end, task.questions.end());
      if (task.questions.empty()) continue;
      if (!contexts.insert(task.context).second) {
        ++n_again;
        continue;
      }
      most_questions = std::max(most_questions, task.questions.size());
      data.longest = std::max(data.longest, static_cast<int32_t>(model.TokenizePrompt(task.context).size()));
      data.tasks.push_back(std::move(task));
    }
  }
  if (n_again > 0)
    Note(Format("kvc: note: %zu tasks have the context of another: they are left out", n_again));
  data.is_binary = most_questions == 1;
  data.split = SplitTasks(data.tasks.size(), command.held_out, static_cast<uint64_t>(command.seed));
  return data;
}

// Before any work: whether tasks without a single loss would be enough.
void RefuseTooFewTasks(const TuneCommand& command, const TuneData& data, size_t n_ladders) {
  const TunePromise& promise = command.promise;
  const double level = (1 - promise.confidence) / static_cast<double>(n_ladders);
  const int64_t needed = DrawsNeeded(0, promise.max_loss, level, data.is_binary);
  if (static_cast<int64_t>(data.split.tune.size()) >= needed) return;
  int64_t all = needed;
  while (all - static_cast<int64_t>(HeldOutOf(static_cast<size_t>(all), command.held_out)) < needed) ++all;
  throw Failure(Format("%s to tune on %s too few: %s confidence in a loss of at most %s with %s needs "
                       "%lld even when nothing is lost",
                       Counted(static_cast<int64_t>(data.split.tune.size()), "task", "tasks").c_str(),
                       data.split.tune.size() == 1 ? "is" : "are", Share(promise.confidence).c_str(),
                       Share(promise.max_loss).c_str(),
                       Counted(static_cast<int64_t>(n_ladders), "policy", "policies").c_str(),
                       static_cast<long long>(needed)) +
                (all > needed ? Format(", %lld with those held out", static_cast<long long>(all)) : ""));
}

void Search(const TuneCommand& command, const Model& model, const TuneData& data, TuneOutcome* out) {
  NoteIdleTables(command.tables, command.policies);
  const Tables tables = ReadTables(command.tables);
  out->ladders = MakeLadders(model, command.policies, command.budgets, command.tables, tables, data.longest);
  RefuseTooFewTasks(command, data, out->ladders.size());
  const std::vector<size_t>& draws = data.split.tune;
  out->search.emplace(model, ProtocolOf(command), command.promise, &out->ladders,
                      static_cast<int64_t>(draws.size()), data.is_binary);
  Progress progress("tune");
  const size_t n_all = draws.size() + data.split.held_out.size();
  for (size_t i = 0; i < draws.size() && !out->search->done(); ++i) {
    progress.Update(
        static_cast<double>(i), static_cast<double>(n_all),
        Format("task %zu of %zu, %zu budgets in question", i + 1, draws.size(), out->search->CountOpen()));
    out->search->Run(data.tasks[draws[i]]);
  }
  out->best = out->search->Best();
  if (out->chosen() == nullptr) return;
  const Policy full("full");
  TaskEvaluator evaluator(model, {&full, &out->chosen()->policy}, ProtocolOf(command));
  for (size_t i = 0; i < data.split.held_out.size(); ++i) {
    progress.Update(static_cast<double>(draws.size() + i), static_cast<double>(n_all),
                    Format("held out, task %zu of %zu", i + 1, data.split.held_out.size()));
    const size_t index = data.split.held_out[i];
    RunHeldOut(&evaluator, command.promise, data.tasks[index], index, static_cast<uint64_t>(command.seed),
               &out->held_out);
  }
}

const char* Verdict(const TuneOutcome& out, size_t ladder, size_t rung) {
  const LadderTest& test = out.search->test();
  if (rung < test.CountPassed(ladder)) return "passed";
  return rung == test.CountPassed(ladder) ? "failed"
                                          : "not tested";  // the sequence ends with its first failure
}

Json RungJson(const TuneOutcome& out, const Model& model, size_t ladder, size_t rung) {
  const TuneRung& tried = out.ladders[ladder][rung];
  const QualitySums& sums = tried.sums;
  const Rung& at = out.search->test().At(ladder, rung);
  return Json{{"policy", tried.policy.Describe()},
              {"ladder", ladder},
              {"verdict", Verdict(out, ladder, rung)},
              {"n_tasks", at.n},
              {"loss", Ratio(at.total_loss, static_cast<double>(at.n))},
              {"p_value", out.search->test().PValue(ladder, rung)},
              {"accuracy", sums.accuracy()},
              {"kl", Ratio(sums.kl, static_cast<double>(sums.n_compared))},
              {"cache_bytes", sums.mean(sums.cache_bytes)},
              {"cache_bytes_full", sums.mean(sums.cache_bytes_full)},
              {"slots_per_head", sums.mean(sums.slots) / model.n_kv_heads_total()},
              {"cache_share", Ratio(sums.slots, sums.slots_full)}};
}

Json HeldOutJson(const HeldOut& held, double confidence) {
  const Interval interval = ClopperPearson(held.n_violations, held.n_tasks, confidence);
  const double n = static_cast<double>(held.n_tasks);
  return Json{{"n_tasks", held.n_tasks},
              {"violations", held.n_violations},
              {"violation_rate", Ratio(static_cast<double>(held.n_violations), n)},
              {"violation_rate_low", interval.low},
              {"violation_rate_high", interval.high},
              {"loss", Ratio(held.total_loss, n)},
              {"accuracy", held.own.accuracy()},
              {"accuracy_full", held.full.accuracy()},
              {"kl", Ratio(held.own.kl, static_cast<double>(held.own.n_compared))},
              {"cache_bytes", held.own.mean(held.own.cache_bytes)},
              {"cache_bytes_largest", held.own.cache_bytes_peak}};
}

Json OutcomeJson(const TuneCommand& command, const Model& model, const TuneData& data,
                 const TuneOutcome& out) {
  Json candidates = Json::array();
  for (size_t l = 0; l < out.ladders.size(); ++l) {
    for (size_t r = 0; r < out.ladders[l].size(); ++r) candidates.push_back(RungJson(out, model, l, r));
  }
  const TuneRung* chosen = out.chosen();
  Json result{{"policy", chosen != nullptr ? Json(chosen->policy.Describe()) : Json(nullptr)},
              {"metric", command.metric},
              {"protocol", command.protocol},
              {"framing", FramingJson(command.model.framing)},
              {"max_loss", command.promise.max_loss},
              {"confidence", command.promise.confidence},
              {"level", out.search->test().level()},
              {"bound", data.is_binary ? "binomial" : "hoeffding-bentkus"},
              {"seed", command.seed},
              {"held_out_share", command.held_out},
              {"n_tasks", data.tasks.size()},
              {"n_tune", data.split.tune.size()},
              {"n_held_out", data.split.held_out.size()}};
  if (command.promise.metric == TuneMetric::kKl) result["max_kl"] = command.promise.max_kl;
  if (chosen != nullptr) {
    result["chosen"] =
        RungJson(out, model, static_cast<size_t>(out.best.first), static_cast<size_t>(out.best.second));
    result["held_out"] = HeldOutJson(out.held_out, command.promise.confidence);
  }
  const Json about = model.Describe();
  result["candidates"] = candidates;
  result["library_version"] = LibraryVersion();
  result["model"] = {{"path", command.model.path},
                     {"fingerprint", about.value("fingerprint", Json(nullptr))}};
  result["data"] = command.data;
  result["threads"] = ThreadsUsed(command.model);
  return result;
}

// What nothing passing means, and how much data would help.
std::string NothingPassed(const TuneCommand& command, const TuneData& data, const TuneOutcome& out) {
  const LadderTest& test = out.search->test();
  size_t nearest = 0;
  double least = 2;
  for (size_t l = 0; l < out.ladders.size(); ++l) {
    const double loss = Ratio(test.At(l, 0).total_loss, static_cast<double>(test.At(l, 0).n));
    if (loss < least) least = loss, nearest = l;
  }
  std::string text = Format("no budget passed: the nearest, %s, lost %s of the questions of %lld of %s",
                            out.ladders[nearest][0].policy.spec().c_str(), Share(least).c_str(),
                            static_cast<long long>(test.At(nearest, 0).n),
                            Counted(static_cast<int64_t>(data.split.tune.size()), "task", "tasks").c_str());
  const int64_t needed = DrawsNeeded(least, command.promise.max_loss, test.level(), data.is_binary);
  if (needed > 0) {
    text += "; if it goes on like that, " + Counted(needed, "task", "tasks") + " to tune on would be enough";
  }
  return text + ". Larger --budgets, another policy or a larger --max-loss may pass";
}

void PrintOutcome(const TuneCommand& command, const Model& model, const TuneData& data,
                  const TuneOutcome& out) {
  const LadderTest& test = out.search->test();
  const TunePromise& promise = command.promise;
  Print(
      Format("%s to tune on, %zu held out, seed %lld; a policy's budgets are tested from the "
             "largest down at p <= %.3g\n\n",
             Counted(static_cast<int64_t>(data.split.tune.size()), "task", "tasks").c_str(),
             data.split.held_out.size(), static_cast<long long>(command.seed), test.level()));
  Table table({"policy", "tasks", "lost", "p", "", "slots", "cache"}, "lrrrlrr");
  for (size_t l = 0; l < out.ladders.size(); ++l) {
    if (l > 0) table.AddRule();
    for (size_t r = 0; r < out.ladders[l].size(); ++r) {
      const TuneRung& rung = out.ladders[l][r];
      const Rung& at = test.At(l, r);
      table.AddRow({rung.policy.spec(), std::to_string(at.n),
                    FormatPercent(Ratio(at.total_loss, static_cast<double>(at.n))),
                    Format("%.2g", test.PValue(l, r)), Verdict(out, l, r),
                    Format("%.1f", rung.sums.mean(rung.sums.slots) / model.n_kv_heads_total()),
                    FormatBytes(static_cast<int64_t>(rung.sums.mean(rung.sums.cache_bytes)))});
    }
  }
  Print(table.Text() + "\n");
  const TuneRung* chosen = out.chosen();
  if (chosen == nullptr) return;
  const QualitySums& sums = chosen->sums;
  const bool is_kl = promise.metric == TuneMetric::kKl;
  Print(Format(
      "%s\n%s, %s of the full cache. With %s confidence at most %s of questions about new contexts of this "
      "kind\n%s.\n",
      chosen->policy.Describe().c_str(),
      FormatBytes(static_cast<int64_t>(sums.mean(sums.cache_bytes))).c_str(),
      FormatPercent(Ratio(sums.cache_bytes, sums.cache_bytes_full)).c_str(),
      Share(promise.confidence).c_str(), Share(promise.max_loss).c_str(),
      is_kl ? Format("diverge by more than %.4g nats a token on average", promise.max_kl).c_str()
            : "are answered wrong that the full cache answers right"));
  const HeldOut& held = out.held_out;
  if (held.n_tasks == 0) return;
  const Interval interval = ClopperPearson(held.n_violations, held.n_tasks, promise.confidence);
  Print(
      Format("Held out: %lld of %lld violated, %s (%s to %s, exact); right %s, full cache %s.\n",
             static_cast<long long>(held.n_violations), static_cast<long long>(held.n_tasks),
             Share(Ratio(static_cast<double>(held.n_violations), static_cast<double>(held.n_tasks))).c_str(),
             Share(interval.low).c_str(), Share(interval.high).c_str(),
             FormatPercent(held.own.accuracy()).c_str(), FormatPercent(held.full.accuracy()).c_str()));
}

int Tune(TuneCommand command, Signals* signals) {
  command.promise.metric = command.metric == "kl" ? TuneMetric::kKl : TuneMetric::kAccuracy;
  std::vector<std::string> inputs = command.data;
  inputs.insert(inputs.end(), {command.model.path, command.tables.head_scores, command.tables.table});
  CheckOutputs(inputs, {command.out});
  signals->RemoveTemporariesOf(command.out);
  const Model model = OpenModel(command.model, signals);
  const TuneData data = ReadTuneData(command, model);
  TuneOutcome out;
  Search(command, model, data, &out);
  // The file first: who reads the table may close the pipe before its end.
  if (out.chosen() != nullptr && !command.out.empty())
    WriteTextFile(command.out, out.chosen()->policy.Describe() + "\n");
  if (command.json) {
    PrintJson(OutcomeJson(command, model, data, out));
  } else {
    PrintOutcome(command, model, data, out);
  }
  if (out.chosen() == nullptr) throw Failure(NothingPassed(command, data, out));
  return kExitGood;
}

}  // namespace

Action AddTune(CLI::App* app) {
  const auto command = std::make_shared<TuneCommand>();
  AddModelOptions(app, &command->model);
  AddInputs(app, "--data", &command->data, "Tasks, one JSON object a line; again for more files")->required();
  AddFramingOptions(app, &command->model.framing);
  app->add_option("--policy", command->policies, "Method and options without a budget; again for several")
      ->required()
      ->allow_extra_args(false)
      ->type_name("SPEC");
  AddTableOptions(app, &command->tables);
  AddShareOption(app, "--max-loss", &command->promise.max_loss, 1e-6, 0.999,
                 "Questions that may be lost, such as 1% (the default)");
  app->add_option("--metric", command->metric,
                  "What a lost question is. accuracy: the full cache answers right, the compressed one does "
                  "not. kl: divergence from the full cache above --max-kl")
      ->check(CLI::IsMember({"accuracy", "kl"}).description(""))
      ->capture_default_str()
      ->type_name("M");
  app->add_option("--max-kl", command->promise.max_kl, "Nats a token, mean over the answer")
      ->check(Real(0, 1000))
      ->capture_default_str()
      ->type_name("X");
  AddShareOption(app, "--confidence", &command->promise.confidence, 0.5, 0.999999,
                 "That the promise holds, such as 95% (the default)");
  app->add_option("--budget-key", command->budgets.key,
                  "budget, budget_ratio or budget_bytes, where --budgets does not say by % or B")
      ->check(CLI::IsMember({"budget", "budget_ratio", "budget_bytes"}).description(""))
      ->capture_default_str()
      ->type_name("KEY");
  app->add_option("--budgets", command->budget_texts,
                  "Which to try: 32,64 or 5%,10% or 300KiB,1MiB (none: from the longest context down by the "
                  "root of two)")
      ->delimiter(',')
      ->type_name("N,...");
  app->add_option("--protocol", command->protocol,
                  "ask: compress, then ask. prompt: the question is part of the compressed prompt")
      ->check(CLI::IsMember({"ask", "prompt"}).description(""))
      ->capture_default_str()
      ->type_name("P");
  AddShareOption(app, "--held-out", &command->held_out, 0, 0.9,
                 "Tasks that have no part in choosing and test the choice, such as 30% (the default)");
  app->add_option("--seed", command->seed, "Of the split")
      ->check(Whole(0, INT64_MAX))
      ->capture_default_str()
      ->type_name("N");
  app->add_option("--limit", command->limit, "At most so many tasks of a file; 0 = all")
      ->check(AtLeast(0))
      ->type_name("N");
  AddOutput(app, "--out", &command->out, "Write the policy found");
  app->add_flag("--json", command->json, "One JSON document on stdout");
  return [command, app](Signals* signals) {
    ReadBudgets(command->budget_texts, app->count("--budget-key") > 0, &command->budgets);
    RefuseUnless(command->metric == "kl", *app, "--max-kl", "--metric kl");
    return Tune(*command, signals);
  };
}

}  // namespace kvc::tool
