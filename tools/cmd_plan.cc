// kvc plan: the memory of a session before it exists.
#include <algorithm>
#include <memory>
#include <numeric>

#include "tools/command.h"
#include "tools/options.h"
#include "tools/output.h"

namespace kvc::tool {
namespace {

struct PlanOptions {
  ModelOptions model;
  TableOptions tables;
  std::string policy = "full";
  int32_t prompt = 0, max_tokens = 0;
  int64_t limit = 0;
  bool json = false;
};

// Room for the answer: what was asked for, else as far as the model was trained, at least one token.
int32_t PlannedContext(const PlanOptions& options, int32_t trained) {
  constexpr int32_t kAnswer = 128;
  const int64_t prompt = options.prompt, most = std::max<int64_t>(trained, prompt + 1),
                wanted =
                    options.max_tokens > 0 ? prompt + options.max_tokens : std::min(prompt + kAnswer, most);
  if (wanted > kMostContext)
    throw UsageError(Format("--context and --max-tokens are too large: together %lld at most",
                            static_cast<long long>(kMostContext)));
  return static_cast<int32_t>(wanted);
}

std::string SlotsText(const SessionPlan& plan, const Model& model) {
  Table table({"layer", "min", "mean", "max", "slots of each KV head"}, "rrrrl");
  const size_t heads = static_cast<size_t>(model.info().n_kv_heads);
  for (size_t layer = 0; layer * heads < plan.slots.size(); ++layer) {
    const auto begin = plan.slots.begin() + static_cast<std::ptrdiff_t>(layer * heads),
               end = begin + static_cast<std::ptrdiff_t>(heads);
    std::string each;
    for (auto slot = begin; slot != end; ++slot) each += (slot == begin ? "" : " ") + std::to_string(*slot);
    const double mean = std::accumulate(begin, end, 0.0) / static_cast<double>(heads);
    table.AddRow({std::to_string(layer), std::to_string(*std::min_element(begin, end)), Format("%.1f", mean),
                  std::to_string(*std::max_element(begin, end)), each});
  }
  return table.Text();
}

void PrintPlan(const PlanOptions& options, const SessionPlan& plan, const Model& model, const Policy& policy,
               int32_t context) {
  const kvc_plan& bytes = plan.bytes;
  const auto share = [&](int64_t part) {
    return FormatPercent(Ratio(static_cast<double>(part), static_cast<double>(bytes.cache_bytes_full)));
  };
  Table table({"memory", "", "of the full cache"}, "lrr");
  table.AddRow({"weights", FormatBytes(bytes.weight_bytes), ""});
  table.AddRow({"workspace", FormatBytes(bytes.workspace_bytes), ""});
  table.AddRow(
      {"cache at most during prefill", FormatBytes(bytes.cache_bytes_peak), share(bytes.cache_bytes_peak)});
  table.AddRow(
      {"cache after the prompt", FormatBytes(bytes.cache_bytes_prompt), share(bytes.cache_bytes_prompt)});
  table.AddRow({"cache at the end", FormatBytes(bytes.cache_bytes_end), share(bytes.cache_bytes_end)});
  table.AddRow({"cache uncompressed", FormatBytes(bytes.cache_bytes_full), share(bytes.cache_bytes_full)});
  table.AddRow({"all at the worst moment", FormatBytes(bytes.total_bytes_peak), ""});
  Print(policy.Describe() + "\nprompt " + FormatCount(options.prompt) + " tokens, session " +
        FormatCount(context) + " tokens, trained context " + FormatCount(model.info().max_tokens) +
        " tokens\n\n" + table.Text() + "\n" + SlotsText(plan, model));
  if (options.limit > 0) {
    const int64_t spare = options.limit - bytes.total_bytes_peak;
    Print("\n" + std::string(spare >= 0 ? "fits" : "does not fit") + " into " + FormatBytes(options.limit) +
          ": " + FormatBytes(spare >= 0 ? spare : -spare) + (spare >= 0 ? " to spare\n" : " too much\n"));
  }
}

Json PlanJson(const PlanOptions& options, const SessionPlan& plan, const Model& model, const Policy& policy,
              int32_t context) {
  const kvc_plan& bytes = plan.bytes;
  Json slots = Json::array();
  for (int32_t layer = 0; layer < model.info().n_layers; ++layer) {
    const auto begin = plan.slots.begin() + std::ptrdiff_t{layer} * model.info().n_kv_heads;
    slots.push_back(std::vector<int32_t>(begin, begin + model.info().n_kv_heads));
  }
  Json out{{"policy", policy.Describe()},
           {"n_prompt", bytes.n_prompt},
           {"context", context},
           {"trained_context", model.info().max_tokens},
           {"beyond_trained_context", context > model.info().max_tokens},
           {"weight_bytes", bytes.weight_bytes},
           {"workspace_bytes", bytes.workspace_bytes},
           {"cache_bytes_peak", bytes.cache_bytes_peak},
           {"cache_bytes_prompt", bytes.cache_bytes_prompt},
           {"cache_bytes_end", bytes.cache_bytes_end},
           {"cache_bytes_full", bytes.cache_bytes_full},
           {"total_bytes_peak", bytes.total_bytes_peak},
           {"slots", slots}};
  if (options.limit > 0) {
    out["memory_limit"] = options.limit;
    out["fits"] = bytes.total_bytes_peak <= options.limit;
  }
  return out;
}

int Plan(PlanOptions options, Signals* signals) {
  std::swap(options.limit,
            options.model.memory_limit);  // the limit is judged here; opening must not fail on it
  const Policy policy = MakePolicy(options.policy, options.tables);
  NoteIdleTables(options.tables, {options.policy});
  const Model model = OpenModel(options.model, signals);
  const int32_t context = PlannedContext(options, model.info().max_tokens);
  kvc_session_params params = DefaultSessionParams();
  params.max_tokens = context;
  const SessionPlan plan = PlanSession(model, policy, params, options.prompt);
  NoteBeyondTraining(model, policy, context);
  if (options.json) {
    PrintJson(PlanJson(options, plan, model, policy, context));
  } else {
    PrintPlan(options, plan, model, policy, context);
  }
  return options.limit > 0 && plan.bytes.total_bytes_peak > options.limit ? kExitFailed : kExitGood;
}

}  // namespace

Action AddPlan(CLI::App* app) {
  const auto options = std::make_shared<PlanOptions>();
  options->model.plan_only = true;
  AddModelOptions(app, &options->model);
  AddPolicyOption(app, &options->policy);
  AddTableOptions(app, &options->tables);
  app->add_option("--context", options->prompt, "Tokens of the prompt")
      ->required()
      ->check(Whole(1, kMostContext))
      ->type_name("N");
  app->add_option("--max-tokens", options->max_tokens,
                  "Tokens of the answer; none: 128, as far as the trained context allows")
      ->check(AtLeast(1))
      ->type_name("N");
  app->add_flag("--json", options->json, "One JSON document on stdout");
  app->footer(
      "With --memory-limit it ends with 1 where that is too little (\"fits\" of --json).\n"
      "Planned is a session that holds the prompt and the answer: kvc run with --context for both. Its own,\n"
      "without --context, holds the trained context, in pages that may be larger.");
  return [options](Signals* signals) { return Plan(*options, signals); };
}

}  // namespace kvc::tool
