#include <algorithm>
#include <iterator>

#include "lib/base/json_text.h"
#include "lib/compress/method_table.h"
#include "lib/compress/policy.h"
#include "lib/compress/policy_text.h"
#include "lib/compress/scorers.h"

namespace kvc {
namespace {

const char* KindName(OptionKind kind) {
  constexpr const char* kNames[] = {"int", "real", "flag", "choice", "bytes", "levels"};
  return kNames[static_cast<int>(kind)];
}

double DefaultOf(const Method& method, const Option& option) {
  for (const OptionDefault& own : method.defaults) {
    if (own.id == option.id) return own.value;
  }
  return option.default_value;
}

// Every option some setting of this method can use; which of them count depends on kv and decode.
std::vector<OptionId> AllOptionsOf(const Method& method) {
  Policy policy;
  policy.method = &method, policy.allocator = method.allocator, policy.scorer = method.scorer,
  policy.reducer = method.reducer;
  policy.decode =
      method.scorer != nullptr && method.scorer->can_reobserve ? DecodeMode::kReobserve : method.decode;
  // No storage has all options: some are of codes of one type, some of kv=mixed.
  policy.options[static_cast<int>(OptionId::kKv)] = kStoreInt8;
  const std::vector<OptionId> codes = OptionsOf(policy);
  policy.options[static_cast<int>(OptionId::kKv)] = kStoreMixed;
  const std::vector<OptionId> mixed = OptionsOf(policy);
  std::vector<OptionId> all;
  std::set_union(codes.begin(), codes.end(), mixed.begin(), mixed.end(), std::back_inserter(all));
  return all;
}

void WriteOption(const Method& method, const Option& option, JsonWriter* json) {
  json->BeginObject();
  json->Field("key", option.key);
  json->Field("kind", KindName(option.kind));
  const double value = DefaultOf(method, option);
  if (option.kind == OptionKind::kChoice) {
    json->Key("choices").BeginArray();
    for (const std::string_view choice : ChoicesOf(option)) json->Value(std::string(choice));
    json->EndArray();
    json->Field("default", ValueText(option, value));
  } else if (option.kind == OptionKind::kLevels) {
    json->Field("default", ValueText(option, value));
  } else {
    json->Field("min", option.min);
    json->Field("max", option.max);
    const std::string text = ValueText(option, value);
    text == "auto" ? json->Field("default", text) : json->Field("default", value);
  }
  json->Field("range", RangeOf(option));
  json->Field("help", option.help);
  json->EndObject();
}

}  // namespace

std::string DescribePolicy(const Policy& policy) {
  const Method& method = *policy.method;
  std::string text = method.name;
  char separator = ':';
  const auto add = [&](std::string_view key, std::string_view value) {
    text += separator;
    text.append(key).append("=").append(value);
    separator = ',';
  };
  if (policy.budget_kind != BudgetKind::kNone) add(BudgetKey(policy.budget_kind), BudgetText(policy.budget));
  if (!policy.keeps_all()) {
    if (policy.allocator != method.allocator) add("allocator", policy.allocator->name);
    if (policy.scorer != method.scorer) add("scorer", policy.scorer->name);
    if (policy.reducer != method.reducer) add("reducer", policy.reducer->name);
    add("decode", kDecodeNames[static_cast<int>(policy.decode)]);
    add("pos_mode", kPositionNames[static_cast<int>(policy.positions)]);
  }
  if (!policy.scores_name.empty()) add("scores", policy.scores_name);
  for (const OptionId id : OptionsOf(policy)) add(GetOption(id).key, OptionText(policy, id));
  return text;
}

int MethodCount() { return static_cast<int>(Methods().size()); }

const Method* GetMethod(int index) {
  return index >= 0 && index < MethodCount() ? Methods()[static_cast<size_t>(index)] : nullptr;
}

std::string DescribeMethodJson(int index) {
  std::string text;
  const Method* method = GetMethod(index);
  if (method == nullptr) return text;
  JsonWriter json(&text);
  json.BeginObject();
  json.Field("name", method->name);
  json.Field("summary", method->summary);
  json.Field("source", method->source);
  json.Field("budget", method->allocator == nullptr ? "none"
                       : method->budget_optional    ? "optional"
                                                    : "required");
  if (method->allocator != nullptr) {
    json.Field("allocator", method->allocator->name);
    json.Field("scorer", method->scorer->name);
    json.Field("reducer", method->reducer->name);
    json.Field("decode", std::string(kDecodeNames[static_cast<int>(method->decode)]));
    json.Field("pos_mode", std::string(kPositionNames[static_cast<int>(method->positions)]));
    json.Field("head_scores", (method->allocator->needs & kNeedsHeadScores) != 0);
  }
  json.Key("options").BeginArray();
  for (const OptionId id : AllOptionsOf(*method)) WriteOption(*method, GetOption(id), &json);
  json.EndArray();
  json.EndObject();
  return text;
}

}  // namespace kvc
