#include "tools/convert_table.h"

#include <algorithm>
#include <cmath>

#include "tools/failure.h"
#include "tools/files.h"

namespace kvc::tool {
namespace {

constexpr int32_t kContexts[] = {4096, 32768, 131072};
constexpr const char* kFull = "full";
constexpr const char* kExample = "snapkv:budget=1024";  // what compressed is shown with
constexpr const char* kSystemTurns[] = {"anywhere", "first", "none"};

std::string TokenizerText(const ConvertPlan& plan) {
  return std::string(plan.tokenizer == TokenizerKind::kByteLevelBpe ? "byte-level BPE"
                                                                    : "SentencePiece BPE") +
         ", " + FormatCount(plan.n_pieces) + " pieces";
}

// Marks come from files: what is no UTF-8 is shown as U+FFFD.
std::string Quoted(const std::string& mark) {
  return Json(mark).dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string TurnsText(const TurnFormat& turns) {
  if (turns.empty()) return "none: the model goes on with text";
  const std::string system = turns.system_turns == SystemTurns::kAnywhere ? "anywhere"
                             : turns.system_turns == SystemTurns::kFirst  ? "at the start"
                                                                          : "nowhere";
  return Quoted(turns.user_prefix) + " .. " + Quoted(turns.user_suffix) + ", answers behind " +
         Quoted(turns.answer_prefix.value_or(turns.assistant_prefix)) + ", system texts " + system;
}

std::string KernelsText(const ConvertPlan& plan) {
  std::string sets;
  for (int32_t i = 0; i < kvc_device_count() && sets.empty(); ++i) {
    const Json device = DeviceJson(i);
    if (device.value("name", "") != "cpu") continue;
    for (const Json& name : device.value("instruction_sets", Json::array()))
      sets += (sets.empty() ? "" : ", ") + name.get<std::string>();
  }
  if (plan.n_fast == plan.n_multiplied) return "fast kernels for all matrices (" + sets + ")";
  return Format("fast kernels for %d of %d matrices", plan.n_fast, plan.n_multiplied) + " (" + sets +
         "); the others are of shapes or types that only the slow ones take";
}

// Tokens it was trained for, and what an extension makes of them.
int32_t TrainedTokens(const ConvertPlan& plan) {
  return plan.extended.trained > 0 ? plan.extended.trained : plan.config.max_tokens;
}

std::string ContextText(const ConvertPlan& plan) {
  const ExtendedRope& extended = plan.extended;
  std::string text = FormatCount(TrainedTokens(plan)) + " tokens";
  if (extended.by.kind == RopeExtension::kNone) return text;
  text += ", " + FormatCount(plan.config.max_tokens) + " with " + RopeExtensionText(extended.by);
  return extended.replaced.empty() ? text : text + " in place of " + extended.replaced;
}

Json ExtensionJson(const ConvertPlan& plan) {
  if (plan.extended.by.kind == RopeExtension::kNone) return nullptr;
  return {{"rope", RopeExtensionText(plan.extended.by)},
          {"context", plan.config.max_tokens},
          {"replaces", plan.extended.replaced},
          {"consequences", RopeExtensionNotes(plan.extended)}};
}

std::string CacheText(const Result<int64_t>& bytes) {
  return bytes.ok() ? FormatBytes(bytes.value()) : "refused";
}

// Prompts of several lengths, as `kvc plan` counts them; below, why a policy is refused.
std::string CachesText(const ConvertPlan& plan) {
  const ModelConfig& c = plan.config;
  Table table({"cache (f16) of", "uncompressed", kExample}, "rrr");
  std::string refusal;
  for (const int32_t n : kContexts) {
    const Result<int64_t> compressed = CacheBytes(c, kExample, n);
    table.AddRow({FormatCount(n) + " tokens" + (n > TrainedTokens(plan) ? " (not trained for)" : ""),
                  CacheText(CacheBytes(c, kFull, n)), CacheText(compressed)});
    if (!compressed.ok()) refusal = "refused: " + compressed.status().message() + "\n";
  }
  return table.Text() + refusal;
}

Json CachesJson(const ModelConfig& c) {
  Json caches = Json::array();
  for (const int32_t n : kContexts) {
    const Result<int64_t> full = CacheBytes(c, kFull, n), compressed = CacheBytes(c, kExample, n);
    Json cache{{"n_tokens", n}, {"policy", kExample}};
    cache["cache_bytes_full"] = full.ok() ? Json(full.value()) : Json();
    cache["cache_bytes"] = compressed.ok() ? Json(compressed.value()) : Json();
    if (!compressed.ok()) cache["refusal"] = compressed.status().message();
    caches.push_back(std::move(cache));
  }
  return caches;
}

}  // namespace

std::string PlanTable(const ConvertPlan& plan) {
  const ModelConfig& c = plan.config;
  Table table({"model", Printable(plan.name)}, "lw");
  table.AddRow({"architecture", Printable(plan.architecture) + " (" + plan.kind + "), " +
                                    FormatParameters(plan.n_parameters) + " parameters"});
  table.AddRow({"layers", Format("%d of %d heads, %d KV heads of %d", c.n_layers, c.n_heads, c.n_kv_heads,
                                 c.head_dim)});
  table.AddRow({"trained context", ContextText(plan)});
  for (const ConvertedType& t : plan.types) {
    table.AddRow({"matrices in " + t.source, Format("%d, stored as %s", t.n_tensors, t.stored.c_str()) +
                                                 (t.group > 0 ? Format(", groups of %d", t.group) : "")});
  }
  table.AddRow(
      {"size", FormatBytes(plan.bytes_written) + ", " + FormatBytes(plan.bytes_read) + " in the source"});
  table.AddRow({"tokenizer", TokenizerText(plan)});
  table.AddRow({"turn format", TurnsText(plan.turn_format)});
  table.AddRow({"here", KernelsText(plan)});
  return table.Text() + "\n" + CachesText(plan);
}

Json PlanJson(const ConvertPlan& plan) {
  const ModelConfig& c = plan.config;
  Json types = Json::array();
  for (const ConvertedType& t : plan.types) {
    types.push_back({{"source", t.source},
                     {"type", t.stored},
                     {"group", t.group},
                     {"n_tensors", t.n_tensors},
                     {"bytes_read", t.bytes_read},
                     {"bytes_written", t.bytes_written}});
  }
  return Json{{"kind", plan.kind},
              {"architecture", plan.architecture},
              {"name", plan.name},
              {"n_parameters", plan.n_parameters},
              {"n_layers", c.n_layers},
              {"n_heads", c.n_heads},
              {"n_kv_heads", c.n_kv_heads},
              {"head_dim", c.head_dim},
              {"trained_context", TrainedTokens(plan)},
              {"extension", ExtensionJson(plan)},
              {"types", types},
              {"bytes_read", plan.bytes_read},
              {"bytes_written", plan.bytes_written},
              {"tokenizer", TokenizerText(plan)},
              {"has_turn_format", !plan.turn_format.empty()},
              {"system_turns", kSystemTurns[static_cast<size_t>(plan.turn_format.system_turns)]},
              {"n_matrices", plan.n_multiplied},
              {"n_fast", plan.n_fast},
              {"caches", CachesJson(c)},
              {"warnings", plan.warnings}};
}

ReferenceCheck CheckAgainst(const std::string& model_path, const Json& document, const std::string& path) {
  const Json* tokens = nullptr;
  for (const char* name : {"tokens", "ids"}) {
    if (tokens == nullptr && document.is_object() && document.contains(name)) tokens = &document[name];
  }
  if (tokens == nullptr || !tokens->is_array() || tokens->empty() || !document.contains("logits") ||
      !document["logits"].is_array() || document["logits"].empty())
    throw Failure(path + ": {\"tokens\": [..], \"logits\": [[..], ..]} expected");
  const Json& given = document["logits"];
  const Json rows = given[0].is_array() ? given : Json::array({given});
  if (rows.size() > tokens->size()) throw Failure(path + ": more rows of logits than tokens");
  const Model model(model_path, "auto", DefaultModelParams());
  Session session(model, Policy("full:kv=f32"), DefaultSessionParams());  // what the weights alone do
  ReferenceCheck check;
  const size_t before = tokens->size() - rows.size();
  std::vector<float> logits;
  for (size_t i = 0; i < tokens->size(); ++i) {
    if (!(*tokens)[i].is_number_integer()) throw Failure(path + ": a token is no whole number");
    session.Prefill({(*tokens)[i].get<int32_t>()});
    if (i < before) continue;
    const Json& row = rows[i - before];
    if (!row.is_array() || row.size() != static_cast<size_t>(model.info().vocab_size))
      throw Failure(path + Format(": row %zu of the logits has %zu numbers, the vocabulary %d", i - before,
                                  row.size(), model.info().vocab_size));
    session.GetLogits(&logits);
    std::vector<double> wanted;
    for (const Json& x : row) {
      if (!x.is_number()) throw Failure(path + ": a logit is no number");
      wanted.push_back(x.get<double>());
    }
    for (size_t k = 0; k < wanted.size(); ++k)
      check.distance = std::max(check.distance, std::fabs(wanted[k] - static_cast<double>(logits[k])));
    const auto best = std::max_element(wanted.begin(), wanted.end()) - wanted.begin();
    check.n_same += std::max_element(logits.begin(), logits.end()) - logits.begin() == best;
    ++check.n_rows;
  }
  return check;
}

}  // namespace kvc::tool
