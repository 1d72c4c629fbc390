// The pieces policy text is made of: names, numbers, values of options. Nothing here depends on the locale.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/status.h"
#include "lib/base/trim.h"
#include "lib/compress/option.h"
#include "lib/compress/policy.h"

namespace kvc {

constexpr size_t kMaxPolicyText = 4096;
constexpr double kMaxBudgetSlots = 16777216;  // 2^24, of budget=

// For messages: at most 40 characters, what is not printable ASCII as '?'.
std::string Shown(std::string_view text);
// What was perhaps meant: the plain word for a symbol of the papers ("kappa" -> "kernel"), a name that begins
// like it or with it, or the one that needs the fewest edits, a few at most. Empty: none of them.
std::string_view Nearest(std::string_view name, const std::vector<std::string_view>& names);
// "; nearest is window", or nothing.
std::string NearestText(std::string_view name, const std::vector<std::string_view>& names);
// "a, b, c"
std::string Join(const std::vector<std::string_view>& names);
std::vector<std::string_view> ChoicesOf(const Option& option);
// "1 .. 4096", "0 .. 64 or auto", "max, avg"
std::string RangeOf(const Option& option);

// A value as written, checked against the option's kind and range.
Status ParseValue(const Option& option, std::string_view text, double* value);
// Whether a number may be the option's value at all: in range, whole where it must be.
bool IsAllowed(const Option& option, double value);
// The value as ParseValue reads it. Of bits_levels only "none" is a value by itself: OptionText has the
// levels.
std::string ValueText(const Option& option, double value);
std::string OptionText(const Policy& policy, OptionId id);
// "16:0.1+8:0.4+4:0.5" or "none" (no levels).
Status ParseLevels(std::string_view text, std::vector<BitsLevel>* levels);
// The rules of levels: bits 16, 8 or 4, falling; shares above 0 that sum to 1.
Status CheckLevels(const std::vector<BitsLevel>& levels);

// The text after budget=, budget_ratio= or budget_bytes=.
Status ParseBudget(BudgetKind kind, std::string_view text, double* value);
const char* BudgetKey(BudgetKind kind);
std::string BudgetText(double value);

// The options that the parts of a policy, its decode mode and its storage use, in the order of options.list.
std::vector<OptionId> OptionsOf(const Policy& policy);
// Why an option that exists is not one of OptionsOf.
std::string WhyUnused(const Policy& policy, const Option& option);

constexpr std::string_view kDecodeNames[] = {"grow", "step", "reobserve"};
constexpr std::string_view kPositionNames[] = {"original", "incache"};

}  // namespace kvc
