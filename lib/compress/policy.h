// A policy: how the cache is compressed, parsed from text. One grammar for C, the program, bindings and
// files:
//   method[:key=value,...]       "cokv:budget=128,window=8"   "full"   "h2o:budget_bytes=64MiB,kv=int8"
// Exactly one of budget (slots per KV head, window included, averaged), budget_ratio (kept share of the
// prompt), budget_bytes (whole cache). Besides options.list: allocator=, scorer=, reducer=, decode=,
// pos_mode= replace a part of the preset; scores= names a table of the model file.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "lib/compress/budget.h"
#include "lib/compress/method.h"

namespace kvc {

// The choices of option kv, in its order (options.list).
enum KvStorage : int32_t {
  kStoreF32 = 0,
  kStoreF16 = 1,
  kStoreBf16 = 2,
  kStoreInt8 = 3,
  kStoreInt4 = 4,
  kStoreMixed = 5
};
// Of option kv_values.
enum KvValues : int32_t { kValuesSame = 0, kValuesInt8 = 1, kValuesInt4 = 2, kValuesInt2 = 3 };

enum class BudgetKind : uint8_t { kNone, kSlots, kRatio, kBytes };
constexpr double kMaxBudgetBytes = 9007199254740992.0;  // 2^53

struct Policy {
  const Method* method = nullptr;
  const Allocator* allocator = nullptr;
  const Scorer* scorer = nullptr;  // null: keep everything
  const Reducer* reducer = nullptr;
  DecodeMode decode = DecodeMode::kGrow;
  PositionMode positions = PositionMode::kOriginal;
  BudgetKind budget_kind = BudgetKind::kNone;
  double budget = 0;        // slots, share or bytes
  std::string scores_name;  // empty: the first table that fits
  double options[kOptionCount] = {};
  std::vector<BitsLevel> levels;   // of bits_levels; as many as options[kBitsLevels] says
  std::vector<float> head_scores;  // the caller's; empty: the model file's
  std::vector<int32_t> table;      // slots per head for method "table"

  double Real(OptionId id) const { return options[static_cast<int>(id)]; }
  int32_t Int(OptionId id) const { return static_cast<int32_t>(options[static_cast<int>(id)]); }
  bool Flag(OptionId id) const { return options[static_cast<int>(id)] != 0; }
  bool keeps_all() const { return scorer == nullptr; }
  // Slots of a head for an entry that stands for what was dropped (methods.md 2.25).
  int32_t n_rest() const { return !keeps_all() && reducer->kind == MergeKind::kIntoRest ? 1 : 0; }
  bool quantises() const;           // some head stores codes of 8 or 4 bits
  int32_t codes_a_byte() const;     // the most that some head may store: 4 of 2 bits, 2 of 4, 1
  MergeRule merge_rule() const;     // what its options say; which side values it takes is the compressor's
  bool merges_small_codes() const;  // values of 4 bits or fewer are merged, and coded anew each time
  bool compresses_once() const {    // what comes behind a compressed prompt is kept whole
    return !keeps_all() && scorer->reading != nullptr && Flag(OptionId::kOnce);
  }
  bool parts_want_head_scores() const;  // its allocator
  bool wants_head_scores() const;       // these, or its heads' precisions
  bool endless() const {                // positions are counted in slots, of which there are never more
    return !keeps_all() && decode == DecodeMode::kStep && positions == PositionMode::kInCache;
  }
  bool reads_by_steps() const;  // prompts beyond the budget: a token at a time (methods.md 2.9, 2.15)
};

// kNotFound: unknown method, with the nearest name. kInvalid: unknown key (with the nearest), value out of
// range (with the range), no or two budgets, a budget below the protected part, a combination that
// methods.md 4.2 rejects (with the reason).
Result<Policy> ParsePolicy(const char* spec);
// The canonical spec with all options the parts use written out; parses back to the same policy.
std::string DescribePolicy(const Policy& policy);
// The checks of ParsePolicy that hold between parts; also called after the caller replaced something.
Status ValidatePolicy(const Policy& policy);
// What only a number of slots can tell: the protected part fits, no head stays empty, the scorer's own
// minimum. ValidatePolicy calls it for budget=; call it again when budget_ratio or budget_bytes has become
// slots.
Status ValidateSlots(const Policy& policy, int32_t budget);

// The table of methods, in the order of methods.list.
int MethodCount();
const Method* GetMethod(int index);  // null past the end
std::string DescribeMethodJson(
    int index);  // name, summary, source, parts, options with kind, range, default, help

}  // namespace kvc
