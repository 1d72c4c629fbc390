// kvc kept: the token positions that stay cached, per layer and KV head.
#include <algorithm>
#include <memory>

#include "tools/command.h"
#include "tools/generate.h"
#include "tools/options.h"
#include "tools/output.h"

namespace kvc::tool {
namespace {

struct KeptOptions {
  ModelOptions model;
  PromptOptions prompt;
  TableOptions tables;
  SessionOptions session;
  std::string policy = "full";
  int32_t max_tokens = 0;
  bool json = false;
};

// "0-3 17 40-52": runs of neighbours, shortened after some.
std::string Runs(const std::vector<int32_t>& positions) {
  constexpr size_t kLongest = 60;
  std::string text;
  size_t i = 0;
  if (!positions.empty() && positions[0] < 0) {
    text = std::to_string(-positions[0]) + " as one" + (positions.size() > 1 ? ", " : "");
    ++i;
  }
  for (size_t first = i, end; i < positions.size(); i = end) {
    for (end = i + 1; end < positions.size() && positions[end] == positions[end - 1] + 1;) ++end;
    text += (i > first ? " " : "") + std::to_string(positions[i]);
    if (end - i > 1) text += "-" + std::to_string(positions[end - 1]);
    if (text.size() > kLongest && end < positions.size()) return text + " ...";
  }
  return text;
}

int Kept(const KeptOptions& options, Signals* signals) {
  const Policy policy = MakePolicy(options.policy, options.tables);
  NoteIdleTables(options.tables, {options.policy});
  const Model model = OpenModel(options.model, signals);
  const TokenList prompt = ReadPrompt(options.prompt, model, /*asked=*/false);
  if (options.session.on_full != "slide") NoteBeyondTraining(model, policy, options.session.context);
  NoteReadInParts(model, options.session, static_cast<int64_t>(prompt.size()));
  CancelOnSignal cancel(signals);
  Session session(model, policy, SessionParams(options.session));
  const WatchSession watch(&cancel, session);
  Generation answer;
  try {
    session.Prefill(prompt);
    answer = Generate(&session, options.max_tokens, {}, &cancel);
  } catch (const StatusFailure& failure) {
    RethrowWithRoom(failure, model, options.session);
  }
  if (answer.cancelled) throw StatusFailure(KVC_E_CANCELLED, "cancelled");
  Json kept = Json::array();
  Table table({"layer", "head", "slots", "positions"}, "rrrl");
  for (int32_t layer = 0; layer < model.info().n_layers; ++layer) {
    Json row = Json::array();
    for (int32_t head = 0; head < model.info().n_kv_heads; ++head) {
      const std::vector<int32_t> positions = session.Kept(layer, head);
      table.AddRow(
          {std::to_string(layer), std::to_string(head), std::to_string(positions.size()), Runs(positions)});
      row.push_back(positions);
    }
    kept.push_back(row);
  }
  if (options.json) {
    PrintJson(Json{{"kept", kept},
                   {"n_prompt", prompt.size()},
                   {"tokens", answer.tokens},
                   {"policy", policy.Describe()}});
  } else {
    Print(policy.Describe() + "\n" + Counted(static_cast<int64_t>(prompt.size()), "token", "tokens") + "\n" +
          table.Text());
  }
  return kExitGood;
}

}  // namespace

Action AddKept(CLI::App* app) {
  const auto options = std::make_shared<KeptOptions>();
  AddModelOptions(app, &options->model);
  AddPromptOptions(app, &options->prompt);
  AddSpecialOption(app, &options->model.framing);
  app->get_option("--tokens")->excludes(app->get_option("--special"));
  AddPolicyOption(app, &options->policy)->required()->default_str("");
  AddTableOptions(app, &options->tables);
  AddContextOptions(app, &options->session);
  app->add_option("--max-tokens", options->max_tokens, "Generate so many tokens first (greedy)")
      ->check(AtLeast(0))
      ->capture_default_str()
      ->type_name("N");
  app->add_flag("--json", options->json, "{\"kept\": [layer][kv_head][positions]}");
  return [options](Signals* signals) { return Kept(*options, signals); };
}

}  // namespace kvc::tool
