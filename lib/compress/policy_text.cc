#include "lib/compress/policy_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "lib/base/ascii.h"
#include "lib/base/byte_size.h"
#include "lib/base/decimal.h"
#include "lib/base/json_text.h"

namespace kvc {
namespace {

// Symbols of the papers and of other tools, and the keys that mean the same here.
struct Alias {
  std::string_view symbol, key;
};
constexpr Alias kAliases[] = {{"w", "window"},
                              {"kappa", "kernel"},
                              {"kappa_v", "value_kernel"},
                              {"bits", "kv"},
                              {"nbits", "kv"},
                              {"c", "budget"},
                              {"phi", "ada_floor"},
                              {"floor_alpha", "ada_floor"},
                              {"alpha_safeguard", "ada_floor"},
                              {"pooling", "pool"},
                              {"kernel_size", "kernel"},
                              {"window_size", "window"},
                              {"max_capacity_prompt", "budget"},
                              {"group_size", "quant_group"},
                              {"sinks", "n_sink"},
                              {"num_sinks", "n_sink"},
                              {"sink_size", "n_sink"},
                              {"start_size", "n_sink"},
                              {"ratio", "budget_ratio"},
                              {"bytes", "budget_bytes"},
                              {"merge_budget", "m_b"}};

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t above = row[j];
      row[j] = std::min({above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = above;
    }
  }
  return row[b.size()];
}

bool ReadInteger(std::string_view text, double* value) {
  int64_t whole = 0;
  const std::from_chars_result end = std::from_chars(text.data(), text.data() + text.size(), whole);
  // Beyond 2^53 a double is that of a neighbour, which may be in range.
  constexpr int64_t kExact = int64_t{1} << 53;
  *value = whole > kExact ? HUGE_VAL : static_cast<double>(whole);
  return end.ec == std::errc() && end.ptr == text.data() + text.size();
}

// A whole number of bytes; false: not one.
bool ReadBytes(std::string_view text, double* value) {
  if (!ReadByteSize(text, value)) return false;
  *value = std::floor(*value);
  return true;
}

std::string NumberText(double value) {
  std::string text;
  value == std::floor(value) && std::fabs(value) < 1e16 ? AppendJsonNumber(&text, static_cast<int64_t>(value))
                                                        : AppendJsonNumber(&text, value);
  return text;
}

bool HasAuto(const Option& option) { return option.kind == OptionKind::kInt && option.default_value == -1; }

}  // namespace

std::string Shown(std::string_view text) {
  constexpr size_t kMost = 40;
  std::string shown(text.substr(0, kMost));
  for (char& c : shown) {
    if (c < 0x20 || c > 0x7e || c == '"') c = '?';
  }
  return text.size() > kMost ? shown + "..." : shown;
}

std::string_view Nearest(std::string_view name, const std::vector<std::string_view>& names) {
  constexpr size_t kLeastBeginning = 3;
  std::string small;
  for (const char c : name.substr(0, 64)) small += LowerAscii(c);
  for (const Alias& alias : kAliases) {
    if (alias.symbol == small && std::find(names.begin(), names.end(), alias.key) != names.end())
      return alias.key;
  }
  std::string_view longer, shorter, nearest;
  size_t least = (small.size() > 8 ? small.size() / 4 : small.size() > 3 ? 2 : 1) + 1;
  for (const std::string_view candidate : names) {
    const size_t n = std::min(candidate.size(), small.size()), distance = EditDistance(small, candidate);
    if (n >= kLeastBeginning && candidate.substr(0, n) == std::string_view(small).substr(0, n)) {
      if (n == small.size() && (longer.empty() || candidate.size() < longer.size())) longer = candidate;
      if (n == candidate.size() && candidate.size() > shorter.size()) shorter = candidate;
    }
    if (distance < least) least = distance, nearest = candidate;
  }
  return !longer.empty() ? longer : !nearest.empty() ? nearest : shorter;
}

std::string NearestText(std::string_view name, const std::vector<std::string_view>& names) {
  const std::string_view nearest = Nearest(name, names);
  return nearest.empty() ? "" : "; nearest is " + std::string(nearest);
}

std::string Join(const std::vector<std::string_view>& names) {
  std::string text;
  for (const std::string_view name : names) {
    if (!text.empty()) text += ", ";
    text += name;
  }
  return text;
}

std::vector<std::string_view> ChoicesOf(const Option& option) {
  std::vector<std::string_view> choices;
  std::string_view rest = option.choices;
  while (!rest.empty()) {
    const size_t end = std::min(rest.find('|'), rest.size());
    choices.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return choices;
}

std::string RangeOf(const Option& option) {
  if (option.kind == OptionKind::kChoice) return Join(ChoicesOf(option));
  if (option.kind == OptionKind::kFlag) return "0 or 1";
  if (option.kind == OptionKind::kLevels) return "none or bits:share+..., bits 16, 8, 4";
  const std::string range = NumberText(option.min) + " .. " + NumberText(option.max);
  return HasAuto(option) ? range + " or auto" : range;
}

bool IsAllowed(const Option& option, double value) {
  if (HasAuto(option) && value == -1) return true;
  if (!(value >= option.min && value <= option.max)) return false;
  return option.kind == OptionKind::kReal || value == std::floor(value);
}

Status ParseValue(const Option& option, std::string_view text, double* value) {
  bool readable = false;
  switch (option.kind) {
    case OptionKind::kReal:
      readable = ReadDecimal(text, value);
      break;
    case OptionKind::kBytes:
      readable = ReadBytes(text, value);
      break;
    case OptionKind::kLevels: {
      std::vector<BitsLevel> levels;
      KVC_RETURN_IF_ERROR(ParseLevels(text, &levels));
      *value = static_cast<double>(levels.size());
      return {};
    }
    case OptionKind::kChoice: {
      const std::vector<std::string_view> choices = ChoicesOf(option);
      const auto found = std::find(choices.begin(), choices.end(), text);
      if (found == choices.end()) {
        return Error(Code::kInvalid, "%s = \"%s\" is not one of %s", option.key, Shown(text).c_str(),
                     RangeOf(option).c_str());
      }
      *value = static_cast<double>(found - choices.begin());
      return {};
    }
    case OptionKind::kInt:
    case OptionKind::kFlag:
      if (HasAuto(option) && text == "auto") {
        *value = -1;
        return {};
      }
      readable = ReadInteger(text, value);
      break;
  }
  if (!readable) {
    return Error(Code::kInvalid, "%s = \"%s\" is not a %s: %s", option.key, Shown(text).c_str(),
                 option.kind == OptionKind::kInt    ? "whole number"
                 : option.kind == OptionKind::kFlag ? "flag"
                                                    : "number",
                 RangeOf(option).c_str());
  }
  if (!IsAllowed(option, *value) || (HasAuto(option) && *value < 0)) {
    return Error(Code::kInvalid, "%s = %s is out of range: %s", option.key, Shown(text).c_str(),
                 RangeOf(option).c_str());
  }
  return {};
}

std::string ValueText(const Option& option, double value) {
  if (option.kind == OptionKind::kChoice) return std::string(ChoicesOf(option)[static_cast<size_t>(value)]);
  if (option.kind == OptionKind::kLevels) return "none";
  return HasAuto(option) && value < 0 ? "auto" : NumberText(value);
}

std::string OptionText(const Policy& policy, OptionId id) {
  const Option& option = GetOption(id);
  if (option.kind != OptionKind::kLevels || policy.levels.empty()) return ValueText(option, policy.Real(id));
  std::string text;
  for (const BitsLevel& level : policy.levels) {
    if (!text.empty()) text += "+";
    text += NumberText(level.bits) + ":" + NumberText(level.share);
  }
  return text;
}

Status ParseLevels(std::string_view text, std::vector<BitsLevel>* levels) {
  levels->clear();
  if (text == "none") return {};
  const auto refuse = [&] {
    return Error(Code::kInvalid, "bits_levels = \"%s\" is not a list like 16:0.1+8:0.4+4:0.5",
                 Shown(text).c_str());
  };
  for (std::string_view rest = text;;) {
    const std::string_view item = rest.substr(0, rest.find('+'));
    const size_t colon = item.find(':');
    double bits = 0, share = 0;
    if (colon == std::string_view::npos || !ReadInteger(Trim(item.substr(0, colon)), &bits) ||
        !ReadDecimal(Trim(item.substr(colon + 1)), &share) || bits < 0 || bits > 16)
      return refuse();
    levels->push_back({static_cast<int32_t>(bits), share});
    if (item.size() == rest.size()) break;
    rest.remove_prefix(item.size() + 1);
  }
  return CheckLevels(*levels);
}

Status CheckLevels(const std::vector<BitsLevel>& levels) {
  double sum = 0;
  for (size_t i = 0; i < levels.size(); ++i) {
    const BitsLevel& level = levels[i];
    if (level.bits != 4 && level.bits != 8 && level.bits != 16)
      return Error(Code::kInvalid, "bits_levels has a level of %d bits: 16, 8 and 4 are allowed", level.bits);
    if (i > 0 && level.bits >= levels[i - 1].bits) {
      return Error(Code::kInvalid, "bits_levels go down with the score: %d bits cannot follow %d", level.bits,
                   levels[i - 1].bits);
    }
    if (!(level.share > 0 && level.share <= 1)) {
      return Error(Code::kInvalid, "the share of %d bits in bits_levels is %s: above 0 and up to 1",
                   level.bits, NumberText(level.share).c_str());
    }
    sum += level.share;
  }
  if (levels.empty() || std::fabs(sum - 1) <= 1e-9) return {};
  return Error(Code::kInvalid, "the shares of bits_levels sum to %s and not to 1", NumberText(sum).c_str());
}

const char* BudgetKey(BudgetKind kind) {
  constexpr const char* kKeys[] = {"", "budget", "budget_ratio", "budget_bytes"};
  return kKeys[static_cast<int>(kind)];
}

Status ParseBudget(BudgetKind kind, std::string_view text, double* value) {
  bool good = false;
  const char* range = "";
  if (kind == BudgetKind::kSlots) {
    range = "slots per KV head, 1 .. 16777216";
    good = ReadInteger(text, value) && *value >= 1 && *value <= kMaxBudgetSlots;
  } else if (kind == BudgetKind::kRatio) {
    range = "the kept share of the prompt, above 0 and up to 1, or a percentage like 5%";
    const bool percent = !text.empty() && text.back() == '%';
    good = ReadDecimal(percent ? Trim(text.substr(0, text.size() - 1)) : text, value);
    if (percent) *value /= 100;
    good = good && *value > 0 && *value <= 1;
  } else {
    range = "bytes of the whole cache, 1 .. 2^53, such as 65536, 1e6, 100KB, 50KiB, 512M";
    good = ReadBytes(text, value) && *value >= 1 && *value <= kMaxBudgetBytes;
  }
  if (good) return {};
  return Error(Code::kInvalid, "%s = \"%s\" is not allowed: %s", BudgetKey(kind), Shown(text).c_str(), range);
}

std::string BudgetText(double value) { return NumberText(value); }

bool Policy::quantises() const {
  const int32_t kv = Int(OptionId::kKv);
  if (kv != kStoreMixed) return kv == kStoreInt8 || kv == kStoreInt4;
  // The bits of levels fall, and high_bits is at least low_bits.
  return levels.empty() ? Int(OptionId::kLowBits) < 16 : levels.back().bits < 16;
}

int32_t Policy::codes_a_byte() const {
  const int32_t kv = Int(OptionId::kKv), values = Int(OptionId::kKvValues);
  if (kv != kStoreMixed) {
    if (!quantises()) return 1;
    return values == kValuesInt2 ? 4 : kv == kStoreInt4 || values == kValuesInt4 ? 2 : 1;
  }
  if (levels.empty()) return Int(OptionId::kLowBits) == 4 ? 2 : 1;
  const auto four = [](const BitsLevel& level) { return level.bits == 4; };
  return std::any_of(levels.begin(), levels.end(), four) ? 2 : 1;
}

MergeRule Policy::merge_rule() const {
  MergeRule rule;
  if (keeps_all()) return rule;
  rule.kind = reducer->kind;
  if (reducer->merge != nullptr) reducer->merge(*this, &rule);
  return rule;
}

bool Policy::merges_small_codes() const {
  const MergeKind kind = merge_rule().kind;
  if (kind != MergeKind::kIntoNext && kind != MergeKind::kSpread) return false;
  const bool own =
      quantises() && Int(OptionId::kKv) != kStoreMixed && Int(OptionId::kKvValues) != kValuesSame;
  return own ? Int(OptionId::kKvValues) != kValuesInt8 : codes_a_byte() > 1;
}

bool Policy::parts_want_head_scores() const {
  return !keeps_all() && (allocator->needs & kNeedsHeadScores) != 0;
}

bool Policy::wants_head_scores() const {
  return Int(OptionId::kKv) == kStoreMixed || parts_want_head_scores();
}

bool Policy::reads_by_steps() const {
  return !keeps_all() && reducer->by_steps != nullptr && reducer->by_steps(*this);
}

std::vector<OptionId> OptionsOf(const Policy& policy) {
  bool used[kOptionCount] = {};
  const auto use = [&](OptionId id) { used[static_cast<int>(id)] = true; };
  if (!policy.keeps_all()) {
    for (const OptionId id : policy.allocator->options) use(id);
    for (const OptionId id : policy.scorer->options) use(id);
    for (const OptionId id : policy.reducer->options) use(id);
    use(OptionId::kChunkCompress);
    if (policy.decode == DecodeMode::kReobserve) use(OptionId::kSlack);
  }
  if (policy.method->reads_pages) use(OptionId::kRead), use(OptionId::kReadSkip), use(OptionId::kGqaAgg);
  use(OptionId::kKv);
  const bool mixed = policy.Int(OptionId::kKv) == kStoreMixed;
  if (policy.quantises()) use(OptionId::kQuantGroup), use(OptionId::kKeyAxis), use(OptionId::kResidual);
  if (policy.quantises() && !mixed) use(OptionId::kKvValues);
  if (mixed) use(OptionId::kBitsLevels);
  if (mixed && policy.Int(OptionId::kBitsLevels) == 0)
    use(OptionId::kHighBits), use(OptionId::kLowBits), use(OptionId::kMedianMode);
  std::vector<OptionId> options;
  for (int i = 0; i < kOptionCount; ++i) {
    if (used[i]) options.push_back(static_cast<OptionId>(i));
  }
  return options;
}

std::string WhyUnused(const Policy& policy, const Option& option) {
  switch (option.id) {
    case OptionId::kQuantGroup:
    case OptionId::kKeyAxis:
    case OptionId::kResidual:
      if (policy.Int(OptionId::kKv) == kStoreMixed)
        return Format("%s is about entries of 8 or 4 bits, and kv=mixed gives every head 16", option.key);
      return Format("%s needs kv=int8, int4 or mixed", option.key);
    case OptionId::kKvValues:
      if (policy.Int(OptionId::kKv) == kStoreMixed)
        return Format("kv=mixed gives every head its bits, of keys and values alike: %s has no meaning",
                      option.key);
      return Format("%s needs kv=int8 or int4, the type of the keys", option.key);
    case OptionId::kHighBits:
    case OptionId::kLowBits:
    case OptionId::kMedianMode:
      if (policy.Int(OptionId::kBitsLevels) > 0)
        return Format("%s and bits_levels both say which head has how many bits: give one of them",
                      option.key);
      return Format("%s needs kv=mixed", option.key);
    case OptionId::kBitsLevels:
      return Format("%s needs kv=mixed", option.key);
    case OptionId::kSlack:
      return "slack needs decode=reobserve";
    default:
      break;
  }
  if (policy.keeps_all())
    return Format("%s keeps everything, so it has no option %s", policy.method->name, option.key);
  std::vector<std::string_view> keys;
  for (const OptionId id : OptionsOf(policy)) keys.push_back(GetOption(id).key);
  return Format("%s has no option %s with its allocator %s, scorer %s and reducer %s; it has %s",
                policy.method->name, option.key, policy.allocator->name, policy.scorer->name,
                policy.reducer->name, Join(keys).c_str());
}

}  // namespace kvc
