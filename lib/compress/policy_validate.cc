// Which parts go together, and why the others do not (methods.md 4.2, 4.5, Appendix C).
#include <algorithm>
#include <cmath>

#include "lib/compress/allocators.h"
#include "lib/compress/policy.h"
#include "lib/compress/policy_text.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {
namespace {

bool IsH2o(const Scorer* scorer) { return scorer == &kScorerH2o || scorer == &kScorerH2oCount; }

bool Uses(const std::vector<OptionId>& used, OptionId id) {
  return std::find(used.begin(), used.end(), id) != used.end();
}

Status CheckAllocator(const Policy& policy) {
  const Allocator& allocator = *policy.allocator;
  const Scorer* scorer = policy.scorer;
  const bool per_head = allocator.dynamic || allocator.needs & (kNeedsHeadScores | kNeedsTable);
  if (allocator.dynamic && scorer == &kScorerPosition) {
    return Error(Code::kInvalid, "allocator %s compares the scores of heads, and scorer position has none",
                 allocator.name);
  }
  if (allocator.dynamic && scorer == &kScorerProxyRandom) {
    return Error(
        Code::kInvalid,
        "allocator %s splits by scores, and the sampled part of scorer proxy_random has no share in them",
        allocator.name);
  }
  if (allocator.dynamic && scorer == &kScorerPersistence) {
    return Error(Code::kInvalid,
                 "allocator %s compares the scores of heads, and the counters of scorer persistence are not "
                 "comparable",
                 allocator.name);
  }
  if (per_head && scorer == &kScorerWindowQhead) {
    return Error(Code::kInvalid,
                 "allocator %s has budgets per KV head, and scorer window_qhead selects per query head",
                 allocator.name);
  }
  if (per_head && scorer == &kScorerLastRow &&
      GetOption(OptionId::kTovaScope).default_value == policy.Real(OptionId::kTovaScope)) {
    return Error(Code::kInvalid,
                 "allocator %s has budgets per KV head, and scorer last_row keeps one set of tokens for a "
                 "whole layer; set tova_scope=kvhead",
                 allocator.name);
  }
  if (per_head && scorer->one_set_per_layer && scorer != &kScorerLastRow) {
    return Error(
        Code::kInvalid,
        "allocator %s has budgets per KV head, and scorer %s keeps one set of tokens for a whole layer",
        allocator.name, scorer->name);
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

Status CheckReducer(const Policy& policy) {
  const Scorer* scorer = policy.scorer;
  switch (policy.reducer->kind) {
    case ReduceKind::kEvict:
      break;
    case ReduceKind::kCam:
      if (scorer != &kScorerPosition && !IsH2o(scorer)) {
        return Error(Code::kInvalid, "reducer cam works with scorer position, h2o or h2o_count, not with %s",
                     scorer->name);
      }
      if (policy.decode != DecodeMode::kStep)
        return Error(Code::kInvalid, "reducer cam merges what each step evicts: it needs decode=step");
      break;
    case ReduceKind::kWeighted:
      if (scorer != &kScorerAvgAccum && !IsH2o(scorer)) {
        return Error(Code::kInvalid,
                     "reducer weighted works with scorer avg_accum, h2o or h2o_count, not with %s",
                     scorer->name);
      }
      if (policy.decode != DecodeMode::kStep)
        return Error(Code::kInvalid, "reducer weighted merges what each step evicts: it needs decode=step");
      break;
    case ReduceKind::kCodebook:
      if (policy.decode != DecodeMode::kGrow) {
        return Error(Code::kInvalid,
                     "reducer codebook never removes an entry of its codebook: it needs decode=grow");
      }
      if (policy.Int(OptionId::kKv) > 2) {
        return Error(
            Code::kInvalid,
            "reducer codebook stores directions and magnitudes, and kv=%s only its newest entries: use "
            "f32, f16 or bf16",
            ValueText(GetOption(OptionId::kKv), policy.Real(OptionId::kKv)).c_str());
      }
      break;
  }
  if (policy.decode == DecodeMode::kStep && scorer->rank == nullptr) {
    return Error(Code::kInvalid,
                 "decode=step needs a score at every token, and scorer %s takes several rows of queries: use "
                 "decode=grow%s",
                 scorer->name, scorer == &kScorerWindow ? " or decode=reobserve" : "");
  }
  if (policy.decode == DecodeMode::kReobserve && scorer != &kScorerWindow) {
    return Error(Code::kInvalid,
                 "decode=reobserve scores again with the newest queries: it needs scorer window, not %s",
                 scorer->name);
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
  if (Uses(used, OptionId::kDrop) && policy.Int(OptionId::kDrop) == 0)
    return Error(Code::kInvalid, "drop = 0 keeps no budget: 1 .. 1048576, or auto for half of the budget");
  KVC_RETURN_IF_ERROR(CheckLevels(policy.levels));
  if (policy.Real(OptionId::kBitsLevels) != static_cast<double>(policy.levels.size()))
    return Error(Code::kInvalid, "bits_levels has %zu levels, but %d are announced", policy.levels.size(),
                 policy.Int(OptionId::kBitsLevels));
  if (Uses(used, OptionId::kAlpha) && policy.Int(OptionId::kAlpha) == 0) {
    return Error(Code::kInvalid, "alpha = 0 is out of range: 1 .. KV heads of the model - 1, or auto");
  }
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

// Scissorhands drops many entries at once, and they must not be protected ones (methods.md Appendix C).
Status CheckPersistence(const Policy& policy, int32_t budget) {
  const int32_t recent = policy.Int(OptionId::kRecent), drop = policy.Int(OptionId::kDrop);
  const double dropped = drop < 0 ? budget / 2.0 : drop;
  double own_recent = GetOption(OptionId::kRecent).default_value;
  for (const OptionDefault& own : policy.method->defaults) {
    if (own.id == OptionId::kRecent) own_recent = own.value;
  }
  // With the preset's own recent part the published rule holds; whoever chooses another only has to leave as
  // much as a drop takes.
  const bool preset = recent == own_recent;
  if (preset ? budget >= recent + 1 + dropped : budget >= recent + std::floor(dropped)) return {};
  const std::string half =
      drop < 0 ? Format("half of the budget, which is %d", budget / 2) : Format("%d", drop);
  return Error(
      Code::kInvalid,
      "scissorhands needs a budget of at least recent%s + drop: recent = %d, drop = %s, but the budget is %d",
      preset ? " + 1" : "", recent, half.c_str(), budget);
}

}  // namespace

Status ValidateSlots(const Policy& policy, int32_t budget) {
  if (policy.keeps_all()) return {};
  if (budget < 1) return Error(Code::kInvalid, "budget = %d leaves no slot: 1 .. 16777216", budget);
  if (policy.scorer == &kScorerPersistence) KVC_RETURN_IF_ERROR(CheckPersistence(policy, budget));
  const Protected part = policy.scorer->protect(policy, budget);
  const int64_t least = int64_t{part.n_sink} + part.n_recent;
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
