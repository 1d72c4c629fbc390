// Which parts go together, and why the others do not (methods.md 4.2).
#include <algorithm>
#include <cmath>

#include "lib/compress/method_table.h"
#include "lib/compress/policy.h"
#include "lib/compress/policy_text.h"

namespace kvc {
namespace {

bool Uses(const std::vector<OptionId>& used, OptionId id) {
  return std::find(used.begin(), used.end(), id) != used.end();
}

// The names of the scorers for which `good` holds, as "a, b or c".
template <typename F>
std::string ScorersThat(F&& good) {
  std::string names, last;
  for (const Scorer* scorer : Scorers()) {
    if (!good(*scorer)) continue;
    if (!last.empty()) names += (names.empty() ? "" : ", ") + last;
    last = scorer->name;
  }
  return names.empty() ? last : names + " or " + last;
}

Status CheckAllocator(const Policy& policy) {
  const Allocator& allocator = *policy.allocator;
  const Scorer* scorer = policy.scorer;
  const bool per_head = allocator.dynamic || allocator.needs & (kNeedsHeadScores | kNeedsTable);
  if (allocator.dynamic && scorer->incomparable != nullptr) {
    return Error(Code::kInvalid, "allocator %s %s", allocator.name, scorer->incomparable);
  }
  if (allocator.across_layers && (scorer->n_aux == nullptr || scorer->window_rows != nullptr)) {
    return Error(
        Code::kInvalid,
        "allocator %s compares layers when all of them have been read, and scorer %s does not remember its "
        "scores until then: use scorer %s",
        allocator.name, scorer->name, ScorersThat([](const Scorer& s) {
                                        return s.n_aux != nullptr && s.window_rows == nullptr &&
                                               s.incomparable == nullptr;
                                      }).c_str());
  }
  if (per_head && scorer->per_query_head) {
    return Error(Code::kInvalid, "allocator %s has budgets per KV head, and scorer %s selects per query head",
                 allocator.name, scorer->name);
  }
  if (per_head && scorer->one_set != nullptr && scorer->one_set(policy)) {
    return Error(
        Code::kInvalid,
        "allocator %s has budgets per KV head, and scorer %s keeps one set of tokens for a whole layer%s%s",
        allocator.name, scorer->name, scorer->one_set_unless == nullptr ? "" : "; set ",
        scorer->one_set_unless == nullptr ? "" : scorer->one_set_unless);
  }
  return {};
}

// Where bytes are shared no slots are rounded (methods.md 4.4 b).
Status CheckRounding(const Policy& policy) {
  if (policy.budget_kind != BudgetKind::kBytes || !policy.allocator->shares_bytes) return {};
  for (const OptionId id : policy.allocator->options) {
    const bool rounding = id == OptionId::kCokvRounding || id == OptionId::kHeadkvRounding;
    if (!rounding || policy.Int(id) == 0) continue;
    return Error(Code::kInvalid,
                 "%s=reference rounds slots, and with budget_bytes allocator %s shares bytes: use budget or "
                 "budget_ratio",
                 GetOption(id).key, policy.allocator->name);
  }
  return {};
}

// One entry stands for what the best scores of a prompt leave, in front of all others.
Status CheckRest(const Policy& policy) {
  const Scorer& scorer = *policy.scorer;
  if (policy.decode != DecodeMode::kGrow) {
    return Error(
        Code::kInvalid,
        "reducer rest makes one entry of what a prompt drops, and decode=%s drops tokens one by one: "
        "use decode=grow",
        std::string(kDecodeNames[static_cast<int>(policy.decode)]).c_str());
  }
  if (policy.positions == PositionMode::kInCache) {
    return Error(Code::kInvalid,
                 "reducer rest has the mean of keys at different positions, and pos_mode=incache turns keys "
                 "anew: use pos_mode=original");
  }
  if (scorer.per_query_head || scorer.select != nullptr) {
    return Error(Code::kInvalid, "reducer rest wants the best scores of a KV head, and scorer %s %s",
                 scorer.name, scorer.per_query_head ? "selects per query head" : "selects otherwise");
  }
  if (policy.allocator->dynamic && policy.Flag(OptionId::kAdaNormalize)) {
    return Error(
        Code::kInvalid,
        "ada_normalize weighs a head by its scores, and with reducer rest one of its entries has none");
  }
  const Protected part = scorer.protect(policy, static_cast<int32_t>(kMaxBudgetSlots));
  if (part.n_sink == 0) return {};
  return Error(Code::kInvalid,
               "reducer rest puts its entry where scorer %s keeps the first %d tokens: set n_sink=0",
               scorer.name, part.n_sink);
}

Status CheckMerge(const Policy& policy) {
  const Reducer& reducer = *policy.reducer;
  if (policy.n_rest() > 0) return CheckRest(policy);
  const auto goes = [&](const Scorer& s) {
    return reducer.kind == MergeKind::kSpread ? s.merges_spread : s.merges_next;
  };
  if (!goes(*policy.scorer)) {
    return Error(Code::kInvalid, "reducer %s works with scorer %s, not with %s", reducer.name,
                 ScorersThat(goes).c_str(), policy.scorer->name);
  }
  if (policy.decode == DecodeMode::kStep) return {};
  return Error(Code::kInvalid, "reducer %s merges what each step evicts: it needs decode=step", reducer.name);
}

Status CheckCodebook(const Policy& policy) {
  if (policy.decode != DecodeMode::kGrow) {
    return Error(Code::kInvalid,
                 "reducer codebook never removes an entry of its codebook: it needs decode=grow");
  }
  if (policy.Int(OptionId::kKv) <= 2) return {};
  return Error(Code::kInvalid,
               "reducer codebook stores directions and magnitudes, and kv=%s only its newest entries: use "
               "f32, f16 or bf16",
               ValueText(GetOption(OptionId::kKv), policy.Real(OptionId::kKv)).c_str());
}

Status CheckReducer(const Policy& policy) {
  const Scorer* scorer = policy.scorer;
  if (policy.reducer->kind != MergeKind::kNone) KVC_RETURN_IF_ERROR(CheckMerge(policy));
  if (policy.reducer->codebook) KVC_RETURN_IF_ERROR(CheckCodebook(policy));
  if (policy.decode == DecodeMode::kStep && scorer->step == nullptr) {
    return Error(Code::kInvalid,
                 "decode=step needs a score at every token, and scorer %s takes several rows of queries: use "
                 "decode=grow%s",
                 scorer->name, scorer->can_reobserve ? " or decode=reobserve" : "");
  }
  if (policy.decode == DecodeMode::kReobserve && !scorer->can_reobserve) {
    return Error(Code::kInvalid,
                 "decode=reobserve scores again with the newest queries: it needs scorer %s, not %s",
                 ScorersThat([](const Scorer& s) { return s.can_reobserve; }).c_str(), scorer->name);
  }
  return {};
}

// Keys of a channel share a scale over a page, so no key can leave or change alone (methods.md 4.3).
Status CheckKeyAxis(const Policy& policy) {
  if (policy.Int(OptionId::kKeyAxis) == 0) return {};
  if (policy.decode != DecodeMode::kGrow) {
    return Error(
        Code::kInvalid,
        "key_axis=channel codes the keys of many tokens together, and decode=%s drops tokens one by one: "
        "use decode=grow",
        std::string(kDecodeNames[static_cast<int>(policy.decode)]).c_str());
  }
  if (policy.positions == PositionMode::kInCache) {
    return Error(
        Code::kInvalid,
        "key_axis=channel codes the keys of many tokens together, and pos_mode=incache turns them one by "
        "one: use pos_mode=original");
  }
  return {};
}

// Rows of a part stand behind what they see, which is not what their head holds.
Status CheckReading(const Policy& policy) {
  if (policy.Int(OptionId::kRereadPart) == 0 || policy.positions == PositionMode::kOriginal) return {};
  return Error(Code::kInvalid,
               "reread_part moves queries behind their part, and pos_mode=incache counts entries of a head: "
               "use pos_mode=original or reread_part=0");
}

// What one range per option cannot say.
Status CheckValues(const Policy& policy, const std::vector<OptionId>& used) {
  for (int i = 0; i < kOptionCount; ++i) {
    const Option& option = GetOption(static_cast<OptionId>(i));
    if (IsAllowed(option, policy.options[i])) continue;
    return Error(Code::kInvalid, "%s is out of range: %s", option.key, RangeOf(option).c_str());
  }
  for (const OptionId id : {OptionId::kKernel, OptionId::kValueKernel, OptionId::kAhaScorePool}) {
    if (Uses(used, id) && policy.Int(id) % 2 == 0) {
      return Error(Code::kInvalid, "%s = %d is even: a kernel has a middle, 1, 3, 5 .. 255",
                   GetOption(id).key, policy.Int(id));
    }
  }
  if (Uses(used, OptionId::kRereadPart) && policy.Int(OptionId::kRereadPart) % kRereadPartStep != 0) {
    return Error(Code::kInvalid, "reread_part = %d is no multiple of %d", policy.Int(OptionId::kRereadPart),
                 kRereadPartStep);
  }
  for (const OptionId id : {OptionId::kHighBits, OptionId::kLowBits}) {
    const int32_t bits = policy.Int(id);
    if (Uses(used, id) && bits != 4 && bits != 8 && bits != 16) {
      return Error(Code::kInvalid, "%s = %d is not one of 4, 8, 16", GetOption(id).key, bits);
    }
  }
  if (Uses(used, OptionId::kHighBits) && policy.Int(OptionId::kHighBits) < policy.Int(OptionId::kLowBits)) {
    return Error(Code::kInvalid, "high_bits = %d is below low_bits = %d", policy.Int(OptionId::kHighBits),
                 policy.Int(OptionId::kLowBits));
  }
  const int32_t group = policy.Int(OptionId::kQuantGroup);
  const int32_t together = policy.codes_a_byte();
  if (Uses(used, OptionId::kQuantGroup) && group % together != 0) {
    return Error(Code::kInvalid, "quant_group = %d %s codes a byte, and a group whole bytes", group,
                 together == 2 ? "is odd: int4 has two" : "is no multiple of 4: int2 has four");
  }
  if (policy.compresses_once() && policy.Flag(OptionId::kChunkCompress))
    return Error(Code::kInvalid,
                 "once=1 remembers no scores, and compress_per_chunk=1 compresses by them again");
  KVC_RETURN_IF_ERROR(CheckLevels(policy.levels));
  if (policy.Real(OptionId::kBitsLevels) != static_cast<double>(policy.levels.size()))
    return Error(Code::kInvalid, "bits_levels has %zu levels, but %d are announced", policy.levels.size(),
                 policy.Int(OptionId::kBitsLevels));
  if (Uses(used, OptionId::kAdaLocked) && policy.Int(OptionId::kAdaLocked) > 0 &&
      policy.Int(OptionId::kAdaMode) == 0) {
    return Error(Code::kInvalid, "ada_locked needs ada_mode=safeguard");
  }
  if (Uses(used, OptionId::kPoolRowsFirst) && policy.Flag(OptionId::kPoolRowsFirst) &&
      policy.Flag(OptionId::kPoolBeforeGroup)) {
    return Error(Code::kInvalid,
                 "pool_rows_first and pool_before_group are two orders of the same steps: set one of them");
  }
  return {};
}

Status CheckTables(const Policy& policy) {
  for (size_t i = 0; i < policy.head_scores.size(); ++i) {
    if (!std::isfinite(policy.head_scores[i]))
      return Error(Code::kInvalid, "head score %zu is not a number", i);
  }
  for (size_t i = 0; i < policy.table.size(); ++i) {
    if (policy.table[i] < 0)
      return Error(Code::kInvalid, "slot count %zu of the table is negative: %d", i, policy.table[i]);
  }
  return {};
}

}  // namespace

Status ValidateSlots(const Policy& policy, int32_t budget) {
  if (policy.keeps_all()) return {};
  if (budget < 1) return Error(Code::kInvalid, "budget = %d leaves no slot: 1 .. 16777216", budget);
  if (policy.scorer->check_slots != nullptr) KVC_RETURN_IF_ERROR(policy.scorer->check_slots(policy, budget));
  const Protected part = policy.scorer->protect(policy, budget);
  const int64_t least = int64_t{part.n_sink} + part.n_recent + policy.n_rest();
  if (least > budget && policy.n_rest() > 0) {
    return Error(
        Code::kInvalid,
        "budget = %d is smaller than what %s with reducer rest always keeps: the newest %d tokens and "
        "the entry for the rest",
        budget, policy.method->name, part.n_recent);
  }
  if (least > budget) {
    return Error(Code::kInvalid,
                 "budget = %d is smaller than what %s always keeps: the first %d and the newest %d tokens",
                 budget, policy.method->name, part.n_sink, part.n_recent);
  }
  if (part.n_sink >= budget) {
    return Error(Code::kInvalid,
                 "budget = %d holds the first %d tokens (n_sink) and no new one; at least %d is needed",
                 budget, part.n_sink, part.n_sink + 1);
  }
  return {};
}

Status ValidatePolicy(const Policy& policy) {
  const bool mixed = ValueText(GetOption(OptionId::kKv), policy.Real(OptionId::kKv)) == "mixed";
  if (!policy.scores_name.empty() && !mixed &&
      (policy.keeps_all() || (policy.allocator->needs & kNeedsHeadScores) == 0)) {
    return Error(Code::kInvalid, "%s uses no head scores, so scores = \"%s\" has no meaning",
                 policy.method->name, Shown(policy.scores_name).c_str());
  }
  KVC_RETURN_IF_ERROR(CheckValues(policy, OptionsOf(policy)));
  KVC_RETURN_IF_ERROR(CheckTables(policy));
  if (Uses(OptionsOf(policy), OptionId::kKeyAxis)) KVC_RETURN_IF_ERROR(CheckKeyAxis(policy));
  if (policy.keeps_all()) return {};
  if (Uses(OptionsOf(policy), OptionId::kRereadPart)) KVC_RETURN_IF_ERROR(CheckReading(policy));
  KVC_RETURN_IF_ERROR(CheckAllocator(policy));
  KVC_RETURN_IF_ERROR(CheckRounding(policy));
  KVC_RETURN_IF_ERROR(CheckReducer(policy));
  if (policy.budget_kind != BudgetKind::kSlots) return {};
  if (!(policy.budget >= 1 && policy.budget <= kMaxBudgetSlots))
    return Error(Code::kInvalid, "budget = %.0f is out of range: slots per KV head, 1 .. 16777216",
                 policy.budget);
  return ValidateSlots(policy, static_cast<int32_t>(policy.budget));
}

}  // namespace kvc
