// kvc demo: a trained model answers questions about long contexts from a fraction of the cache, beside the
// full cache.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "tools/command.h"
#include "tools/files.h"
#include "tools/options.h"
#include "tools/output.h"
#include "tools/quality.h"

namespace kvc::tool {
namespace {

struct DemoOptions {
  ModelOptions model;
  std::string tasks, stories;
  std::vector<int32_t> budgets = {24, 64};
  int32_t limit = 0;
  bool json = false;
};

// A row of the demo: a name for people, the policy, what it gave.
struct DemoPolicy {
  std::string name;
  int32_t budget;  // slots per head; 0: all
  Policy policy;
  QualitySums sums;
};

std::vector<DemoPolicy> DemoPolicies(const std::vector<int32_t>& budgets) {
  // Windows of 8, as of cokv: the 32 of ada-snapkv would be more than the smaller budget.
  struct Method {
    const char *shown, *name, *options;
  };
  constexpr Method kMethods[] = {{"streaming", "streaming", ""},
                                 {"snapkv-w8", "snapkv-w8", ""},
                                 {"ada-snapkv, window 8", "ada-snapkv", ",window=8"},
                                 {"cokv", "cokv", ""},
                                 {"cokv-document", "cokv-document", ""}};
  std::vector<DemoPolicy> policies;
  policies.push_back({"full", 0, Policy("full"), {}});
  for (const int32_t budget : budgets) {
    for (const Method& method : kMethods) {
      const std::string spec = Format("%s:budget=%d%s", method.name, budget, method.options);
      policies.push_back({method.shown, budget, Policy(spec), {}});
    }
  }
  return policies;
}

std::string Wrap(const std::string& text, const std::string& indent) {
  std::string out;
  for (const std::string& line : WrapLines(text, 96)) out += indent + line + "\n";
  return out;
}

// The sentence of the context that states the answer to a question, with a little of what stands around it.
std::string Excerpt(const std::string& context, const Question& question) {
  constexpr size_t kAround = 120;
  const size_t at = context.find(question.question + question.answer);
  if (at == std::string::npos) return context.substr(0, 2 * kAround);
  size_t begin = at > kAround ? context.find(' ', at - kAround) : 0;
  size_t end = std::min(context.size(), at + question.question.size() + question.answer.size() + kAround);
  while (end < context.size() && context[end] != ' ') ++end;
  begin = std::min(begin, at);
  return (begin > 0 ? "..." : "") + context.substr(begin, end - begin) + (end < context.size() ? " ..." : "");
}

std::string Trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \n");
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(" \n") + 1 - begin);
}

void PrintIntroduction(const Model& model, const Task& task, size_t n_tasks, size_t n_questions) {
  const kvc_model_info& info = model.info();
  const size_t n_tokens = model.TokenizePrompt(task.context).size();
  Print(
      Format("%s parameters, %d layers with %d KV heads of size %d: %d heads, each with its own part of the "
             "cache.\n",
             FormatParameters(info.n_parameters).c_str(), info.n_layers, info.n_kv_heads, info.head_dim,
             model.n_kv_heads_total()));
  Print(
      Format("%s of about %zu tokens: prose with facts hidden in it. Every context is "
             "compressed, and only then\n"
             "come the questions, %zu in all: what was dropped by then cannot be looked up again. "
             "(cokv-document reads a\n"
             "context twice before it drops; the others once.)\n\nFrom the first context:\n\n",
             Counted(static_cast<int64_t>(n_tasks), "context", "contexts").c_str(), n_tokens, n_questions));
  Print(Wrap(Excerpt(task.context, task.questions[0]), "    "));
}

// The questions of one context with the answers of the full cache and of one budget.
void PrintAnswers(const Task& task, const std::vector<DemoPolicy>& policies,
                  const std::vector<std::vector<AnswerTrace>>& answers, int32_t budget) {
  std::vector<std::string> head = {"question", "answer"};
  std::vector<size_t> shown;
  for (size_t p = 0; p < policies.size(); ++p) {
    if (p > 0 && policies[p].budget != budget) continue;
    shown.push_back(p);
    head.push_back(policies[p].name);
  }
  Table table(head, std::string(head.size(), 'l'));
  for (size_t q = 0; q < task.questions.size(); ++q) {
    std::vector<std::string> row = {Trim(task.questions[q].question), Trim(task.questions[q].answer)};
    for (const size_t p : shown)
      row.push_back(Trim(answers[p][q].text) + (answers[p][q].right ? "" : "  wrong"));
    table.AddRow(row);
  }
  Print(Format("\nAsked with the full cache, and with %d slots per head:\n\n", budget) + table.Text("    "));
}

void PrintTable(const std::vector<DemoPolicy>& policies, int32_t n_heads) {
  Table table(
      {"policy", "slots per head", "share of the cache", "cache bytes", "prefill", "step", "answers right"},
      "lrrrrrr");
  std::string last_budget;
  for (size_t p = 0; p < policies.size(); ++p) {
    const QualitySums& sums = policies[p].sums;
    if (p == 1 || (p > 1 && policies[p].name == policies[1].name)) table.AddRule();
    table.AddRow(
        {policies[p].name, Format("%.0f", sums.mean(sums.slots) / n_heads),
         FormatPercent(Ratio(sums.slots, sums.slots_full)),
         FormatBytes(static_cast<int64_t>(sums.mean(sums.cache_bytes))),
         FormatSeconds(sums.mean(sums.prefill_seconds)),
         FormatSeconds(Ratio(sums.step_seconds, static_cast<double>(sums.n_steps))),
         Format("%lld of %lld", static_cast<long long>(sums.n_right), static_cast<long long>(sums.n))});
  }
  Print("\nAll contexts; bytes are what the allocator holds after the context, times are means:\n\n" +
        table.Text("    "));
}

Json TableJson(const std::vector<DemoPolicy>& policies, int32_t n_heads) {
  Json rows = Json::array();
  for (const DemoPolicy& entry : policies) {
    const QualitySums& sums = entry.sums;
    rows.push_back(Json{{"name", entry.name},
                        {"policy", entry.policy.Describe()},
                        {"slots_per_head", sums.mean(sums.slots) / n_heads},
                        {"cache_share", Ratio(sums.slots, sums.slots_full)},
                        {"cache_bytes", sums.mean(sums.cache_bytes)},
                        {"prefill_seconds", sums.mean(sums.prefill_seconds)},
                        {"step_seconds", Ratio(sums.step_seconds, static_cast<double>(sums.n_steps))},
                        {"n_right", sums.n_right},
                        {"n", sums.n}});
  }
  return Json{{"policies", rows}, {"library_version", LibraryVersion()}};
}

std::optional<Model> StoryModel(const DemoOptions& options) {
  if (options.stories.empty()) return std::nullopt;
  ModelOptions model = options.model;
  model.path = options.stories;
  return OpenModelFile(model);
}

void TellStory(const Model& model) {
  constexpr int32_t kStoryTokens = 220;
  Session session(model, Policy("full"), DefaultSessionParams());
  session.Prefill(model.TokenizePrompt("Once upon a time"));
  const Generation story = Generate(&session, kStoryTokens, {});
  Print(Format("\nAnd a model of %s parameters tells a story, at %.0f tokens a second:\n\n",
               FormatParameters(model.info().n_parameters).c_str(),
               Ratio(static_cast<double>(story.tokens.size()), story.stats.decode_seconds)));
  Print(Wrap("Once upon a time" + story.text, "    ") + "\n");
}

int Demo(const DemoOptions& options) {
  const Model model = OpenModelFile(options.model);
  const std::optional<Model> stories = StoryModel(options);  // a missing one is told before the work
  std::vector<DemoPolicy> policies = DemoPolicies(options.budgets);
  std::vector<const Policy*> pointers;
  for (const DemoPolicy& entry : policies) pointers.push_back(&entry.policy);
  TaskEvaluator evaluator(model, pointers, TaskProtocol::kAsk);
  const std::vector<Task> tasks = TasksThatFit(model, evaluator, options.tasks, options.limit);
  size_t n_questions = 0;
  for (const Task& task : tasks) n_questions += task.questions.size();
  if (!options.json) PrintIntroduction(model, tasks[0], tasks.size(), n_questions);
  std::vector<QualitySums> sums(policies.size());
  {
    Progress progress("asking");
    for (size_t i = 0; i < tasks.size(); ++i) {
      progress.Update(static_cast<double>(i), static_cast<double>(tasks.size()),
                      Format("context %zu of %zu", i + 1, tasks.size()));
      const std::vector<std::vector<AnswerTrace>> answers = evaluator.Run(tasks[i], &sums);
      if (i > 0 || options.json) continue;
      progress.Clear();
      PrintAnswers(tasks[0], policies, answers, options.budgets[0]);
      std::fflush(stdout);
    }
  }
  for (size_t p = 0; p < policies.size(); ++p) policies[p].sums = sums[p];
  if (options.json) {
    PrintJson(TableJson(policies, model.n_kv_heads_total()));
    return kExitGood;
  }
  PrintTable(policies, model.n_kv_heads_total());
  if (stories) TellStory(*stories);
  return kExitGood;
}

}  // namespace

Action AddDemo(CLI::App* app) {
  const auto options = std::make_shared<DemoOptions>();
  AddModelOptions(app, &options->model, "--model", kModelFile);
  AddInput(app, "--tasks", &options->tasks, "Contexts and questions, one JSON object a line")->required();
  CLI::Option* stories = AddInput(app, "--stories", &options->stories, "A model that then tells a story");
  app->add_option("--budget", options->budgets, "Slots per head; again for more budgets")
      ->allow_extra_args(false)
      ->check(AtLeast(1))
      ->capture_default_str()
      ->type_name("N");
  app->add_option("--limit", options->limit, "At most so many contexts; 0 = all")
      ->check(AtLeast(0))
      ->type_name("N");
  app->add_flag("--json", options->json, "The table as one JSON document on stdout")->excludes(stories);
  return [options](Signals*) { return Demo(*options); };
}

}  // namespace kvc::tool
