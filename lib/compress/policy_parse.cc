#include <algorithm>
#include <cstring>

#include "lib/compress/method_table.h"
#include "lib/compress/policy.h"
#include "lib/compress/policy_text.h"

namespace kvc {
namespace {

struct Pair {
  std::string_view key, value;
};

constexpr std::string_view kGeneralKeys[] = {"budget",  "budget_ratio", "budget_bytes", "allocator", "scorer",
                                             "reducer", "decode",       "pos_mode",     "scores"};
constexpr size_t kMaxScoresName = 128;

// "a=1,b=2" as pairs; every key once.
Result<std::vector<Pair>> SplitPairs(std::string_view text) {
  std::vector<Pair> pairs;
  for (;;) {
    const size_t end = std::min(text.find(','), text.size());
    const std::string_view item = Trim(text.substr(0, end));
    const size_t equals = item.find('=');
    if (equals == std::string_view::npos || equals == 0) {
      return Error(Code::kInvalid, "\"%s\" is not key=value; a policy is written method:key=value,key=value",
                   Shown(item).c_str());
    }
    const Pair pair = {Trim(item.substr(0, equals)), Trim(item.substr(equals + 1))};
    for (const Pair& earlier : pairs) {
      if (earlier.key == pair.key) return Error(Code::kInvalid, "%s is given twice", Shown(pair.key).c_str());
    }
    pairs.push_back(pair);
    if (end == text.size()) return pairs;
    text.remove_prefix(end + 1);
  }
}

template <typename Row>
Status SetPart(const char* what, std::string_view name, Span<const Row* const> rows, const Row** part) {
  if (const Row* row = FindRow(rows, name)) {
    *part = row;
    return {};
  }
  const std::vector<std::string_view> names = RowNames(rows);
  return Error(Code::kInvalid, "there is no %s \"%s\"%s. There are %s", what, Shown(name).c_str(),
               NearestText(name, names).c_str(), Join(names).c_str());
}

template <typename Enum, size_t n>
Status SetMode(std::string_view key, std::string_view value, const std::string_view (&names)[n], Enum* mode) {
  const auto found = std::find(names, names + n, value);
  if (found == names + n) {
    return Error(Code::kInvalid, "%s = \"%s\" is not one of %s", std::string(key).c_str(),
                 Shown(value).c_str(), Join(std::vector<std::string_view>(names, names + n)).c_str());
  }
  *mode = static_cast<Enum>(found - names);
  return {};
}

Status SetBudget(std::string_view key, std::string_view value, Policy* policy) {
  BudgetKind kind = BudgetKind::kSlots;
  while (key != BudgetKey(kind)) kind = static_cast<BudgetKind>(static_cast<int>(kind) + 1);
  if (policy->budget_kind != BudgetKind::kNone) {
    return Error(Code::kInvalid, "%s and %s are both given; a policy has one budget",
                 BudgetKey(policy->budget_kind), BudgetKey(kind));
  }
  policy->budget_kind = kind;
  return ParseBudget(kind, value, &policy->budget);
}

Status SetScoresName(std::string_view value, Policy* policy) {
  const bool printable = std::all_of(
      value.begin(), value.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
  if (value.empty() || value.size() > kMaxScoresName || !printable) {
    return Error(Code::kInvalid, "scores = \"%s\" is not the name of a table: 1 .. %zu printable characters",
                 Shown(value).c_str(), kMaxScoresName);
  }
  policy->scores_name = std::string(value);
  return {};
}

bool IsGeneral(std::string_view key) {
  return std::find(std::begin(kGeneralKeys), std::end(kGeneralKeys), key) != std::end(kGeneralKeys);
}

Status SetGeneral(const Pair& pair, Policy* policy) {
  if (pair.key.substr(0, 6) == "budget") return SetBudget(pair.key, pair.value, policy);
  if (pair.key == "scores") return SetScoresName(pair.value, policy);
  if (policy->method->allocator == nullptr) {
    return Error(Code::kInvalid, "%s keeps everything, so it has no %s", policy->method->name,
                 std::string(pair.key).c_str());
  }
  if (pair.key == "allocator") return SetPart("allocator", pair.value, Allocators(), &policy->allocator);
  if (pair.key == "scorer") return SetPart("scorer", pair.value, Scorers(), &policy->scorer);
  if (pair.key == "reducer") return SetPart("reducer", pair.value, Reducers(), &policy->reducer);
  if (pair.key == "decode") return SetMode(pair.key, pair.value, kDecodeNames, &policy->decode);
  return SetMode(pair.key, pair.value, kPositionNames, &policy->positions);
}

// A method with an optional budget keeps everything when it has none and no part of it was named. The table
// is a budget by itself.
Status SettleBudget(const std::vector<Pair>& pairs, Policy* policy) {
  const Method& method = *policy->method;
  if (policy->budget_kind != BudgetKind::kNone) {
    if (method.allocator != nullptr) return {};
    return Error(Code::kInvalid, "%s keeps everything, so it has no %s%s", method.name,
                 BudgetKey(policy->budget_kind),
                 method.reads_pages ? "; read=N says how many entries a step reads" : "");
  }
  if (method.allocator == nullptr || policy->allocator->needs & kNeedsTable) return {};
  const bool composed = std::any_of(pairs.begin(), pairs.end(),
                                    [](const Pair& p) { return IsGeneral(p.key) && p.key != "scores"; });
  if (method.budget_optional && !composed && (method.allocator->needs & kNeedsTable) == 0) {
    policy->allocator = nullptr, policy->scorer = nullptr, policy->reducer = nullptr;
    policy->decode = DecodeMode::kGrow, policy->positions = PositionMode::kOriginal;
    return {};
  }
  return Error(
      Code::kInvalid,
      "%s needs a budget: budget=N slots per KV head, budget_ratio=R of the prompt, or budget_bytes=B",
      method.name);
}

// Options that every method has with other storage, or with another decode mode.
constexpr OptionId kWithOtherValues[] = {OptionId::kKvValues, OptionId::kQuantGroup, OptionId::kKeyAxis,
                                         OptionId::kResidual, OptionId::kBitsLevels, OptionId::kHighBits,
                                         OptionId::kLowBits,  OptionId::kMedianMode, OptionId::kSlack};

Status UnknownKey(std::string_view key, const Policy& policy) {
  const std::vector<OptionId> used = OptionsOf(policy);
  std::vector<std::string_view> keys(std::begin(kGeneralKeys), std::end(kGeneralKeys)), others;
  for (const OptionId id : used) keys.push_back(GetOption(id).key);
  for (const OptionId id : kWithOtherValues) {
    const bool slack_of_nothing = id == OptionId::kSlack && policy.method->allocator == nullptr;
    if (std::find(used.begin(), used.end(), id) == used.end() && !slack_of_nothing)
      others.push_back(GetOption(id).key);
  }
  std::vector<std::string_view> known = keys;
  known.insert(known.end(), others.begin(), others.end());
  return Error(Code::kInvalid,
               "%s has no option \"%s\"%s. It has %s; with other values of kv or decode also %s",
               policy.method->name, Shown(key).c_str(), NearestText(key, known).c_str(), Join(keys).c_str(),
               Join(others).c_str());
}

Status SetOptions(const std::vector<Pair>& pairs, Policy* policy) {
  for (const Pair& pair : pairs) {  // the storage decides which other options there are
    for (const OptionId id :
         {OptionId::kKv, OptionId::kBitsLevels, OptionId::kHighBits, OptionId::kLowBits}) {
      if (pair.key == GetOption(id).key)
        KVC_RETURN_IF_ERROR(ParseValue(GetOption(id), pair.value, &policy->options[static_cast<int>(id)]));
    }
    if (pair.key == GetOption(OptionId::kBitsLevels).key)
      KVC_RETURN_IF_ERROR(ParseLevels(pair.value, &policy->levels));
  }
  const std::vector<OptionId> used = OptionsOf(*policy);
  for (const Pair& pair : pairs) {
    if (IsGeneral(pair.key)) continue;
    const Option* option = FindOption(pair.key.data(), static_cast<int>(pair.key.size()));
    if (option == nullptr) return UnknownKey(pair.key, *policy);
    if (std::find(used.begin(), used.end(), option->id) == used.end()) {
      return Error(Code::kInvalid, "%s", WhyUnused(*policy, *option).c_str());
    }
    KVC_RETURN_IF_ERROR(ParseValue(*option, pair.value, &policy->options[static_cast<int>(option->id)]));
  }
  return {};
}

Status UnknownMethod(std::string_view name) {
  const std::vector<std::string_view> names = RowNames(Methods());
  std::string meant;
  if (const KnownElsewhere* known = FindElsewhere(name)) {
    meant = Format(": %s; nearest is %s", known->what, known->nearest);
  } else if (const char* here = NameHere(name)) {
    meant = Format(": it is called %s here", here);
  } else {
    meant = NearestText(PlainName(name), names);
  }
  return Error(Code::kNotFound, "there is no method \"%s\"%s. There are %s; kvc methods explains them",
               Shown(name).c_str(), meant.c_str(), Join(names).c_str());
}

Policy FromMethod(const Method& method) {
  Policy policy;
  policy.method = &method;
  policy.allocator = method.allocator, policy.scorer = method.scorer, policy.reducer = method.reducer;
  policy.decode = method.decode, policy.positions = method.positions;
  for (int i = 0; i < kOptionCount; ++i)
    policy.options[i] = GetOption(static_cast<OptionId>(i)).default_value;
  for (const OptionDefault& own : method.defaults) policy.options[static_cast<int>(own.id)] = own.value;
  return policy;
}

}  // namespace

Result<Policy> ParsePolicy(const char* spec) {
  const size_t length = spec == nullptr ? 0 : strnlen(spec, kMaxPolicyText + 1);
  if (length > kMaxPolicyText)
    return Error(Code::kInvalid, "the policy is longer than %zu characters", kMaxPolicyText);
  const std::string_view text(spec == nullptr ? "" : spec, length);
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view name = Trim(text.substr(0, colon));
  if (name.empty())
    return Error(Code::kInvalid,
                 "the policy is empty; write a method and its options, like snapkv:budget=128");
  const Method* method = FindRow(Methods(), name);
  if (method == nullptr) return UnknownMethod(name);
  Policy policy = FromMethod(*method);
  std::vector<Pair> pairs;
  if (colon < text.size()) {
    Result<std::vector<Pair>> split = SplitPairs(text.substr(colon + 1));
    if (!split.ok()) return split.status();
    pairs = std::move(split.value());
  }
  for (const Pair& pair : pairs) {
    if (IsGeneral(pair.key)) KVC_RETURN_IF_ERROR(SetGeneral(pair, &policy));
  }
  const Status budget = SettleBudget(pairs, &policy), options = SetOptions(pairs, &policy);
  if (!budget.ok() && !options.ok())
    return Error(options.code(), "%s. Besides, %s", options.message().c_str(), budget.message().c_str());
  KVC_RETURN_IF_ERROR(budget);
  KVC_RETURN_IF_ERROR(options);
  KVC_RETURN_IF_ERROR(ValidatePolicy(policy));
  return policy;
}

}  // namespace kvc
