// The parts a compression method is made of (methods.md 4). A published method is a preset: a row that names
// its parts and defaults. No part knows a model, a device or a cache layout; the compressor (compressor.h)
// runs them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "lib/base/status.h"
#include "lib/compress/option.h"
#include "lib/ops/score_ops.h"
#include "lib/ops/step_ops.h"

namespace kvc {

struct Policy;
struct AllocateInput;  // allocate.h

enum class DecodeMode : uint8_t { kGrow = 0, kStep = 1, kReobserve = 2 };
enum class PositionMode : uint8_t { kOriginal = 0, kInCache = 1 };

// What a part of a method wants beside keys and values: sums of attention over all rows of a prompt; scores
// of heads; a table of slots.
enum Needs : uint32_t { kNeedsNothing = 0, kNeedsColumnSums = 1, kNeedsHeadScores = 2, kNeedsTable = 4 };

// Attention that a scorer accumulates in its side values, which merging can use: nothing; the sum, in 0; the
// sum and, in 1, the rows it is over.
enum class Accumulates : uint8_t { kNothing = 0, kSum = 1, kSumAndCount = 2 };

// How a scorer ranks entries at steps, and what it adds to their side values.
struct StepScoring {
  RankBy rank = RankBy::kAux;
  int32_t n_instrs = 0;
  StepInstr instrs[kMaxStepInstrs];
  bool needs_attention = false;
  bool gain = false, gain_scaled = false, gain_floor = false;  // StepPlan's, with the budget as its length
};

// Parts of a second reading that see only themselves are multiples of this.
constexpr int32_t kRereadPartStep = 256;

// How a prompt is read a second time.
struct SecondReading {
  bool wanted = false;
  bool own = false;      // by its own queries, instead of running its tokens again
  int32_t part = 0;      // tokens of a part that sees only itself; 0: everything is seen
  double share = 1;      // of the parts
  bool squares = false;  // what counts are the squares of all probabilities, instead of the largest
  bool operator==(const SecondReading& o) const {
    return wanted == o.wanted && own == o.own && part == o.part && share == o.share && squares == o.squares;
  }
};

// A static list of options.
class OptionSpan {
 public:
  constexpr OptionSpan() = default;
  template <size_t n>
  constexpr OptionSpan(const OptionId (&list)[n]) : first_(list), n_(n) {}  // NOLINT: as an array converts
  constexpr const OptionId* begin() const { return first_; }
  constexpr const OptionId* end() const { return first_ + n_; }

 private:
  const OptionId* first_ = nullptr;
  size_t n_ = 0;
};

struct Scorer {
  const char* name;
  uint32_t needs;  // kNeedsColumnSums
  OptionSpan options;
  // Protected part for an average budget of `budget` slots.
  Protected (*protect)(const Policy& policy, int32_t budget);
  // The program over one layer of a prompt: scores (higher = keep) of all entries, and their side values.
  void (*program)(const Policy& policy, int32_t budget, ScoreProgram* out);

  // What else there is to know. Functions may be null: none, no, the usual.
  int32_t (*n_aux)(const Policy& policy) = nullptr;  // f32 side values per cached entry
  // Rows of queries to record for a prompt of n tokens.
  int32_t (*window_rows)(const Policy& policy, int32_t n) = nullptr;
  SecondReading (*reading)(const Policy& policy) = nullptr;
  void (*select)(const Policy& policy,
                 SelectRule* out) = nullptr;  // beside the protected part; usual: the best
  void (*history)(const Policy& policy, HistoryRule* out) = nullptr;
  void (*step)(const Policy& policy, StepScoring* out) = nullptr;  // null: it cannot evict at decode
  Status (*check_slots)(const Policy& policy, int32_t budget) = nullptr;
  bool (*one_set)(const Policy& policy) = nullptr;  // every KV head of a layer keeps the same entries
  const char* one_set_unless = nullptr;             // the option that says otherwise
  int32_t (*residual)(const Policy& policy) =
      nullptr;  // newest entries that quantised heads keep raw; usual: 32
  const char* incomparable =
      nullptr;  // what an allocator that compares scores of heads does, and why they cannot be
  Accumulates (*accumulates)(const Policy& policy) = nullptr;
  bool per_query_head = false;                      // selects for every query head
  bool can_reobserve = false;                       // scores again at decode, with the newest queries
  bool merges_spread = false, merges_next = false;  // reducers it goes with, beside what it accumulates
  bool clear_after_reduce = false;                  // side values of the survivors restart at 0
};

struct Allocator {
  const char* name;
  uint32_t needs;  // kNeedsHeadScores, kNeedsTable
  bool dynamic;    // splits a layer's budget by the scores (Ada)
  std::initializer_list<OptionId> options;
  // Before layer 0: candidates (beyond the protected part) of every KV head, counts [L, G]. Dynamic: the
  // averages.
  Status (*plan)(const AllocateInput& in, int32_t* counts);
  bool shares_bytes =
      false;  // plan can share bytes by its weights where entries differ in size (methods.md 4.4 b)
  bool per_query_head = false;  // its score tables may have a number for every query head
  // The scores of all layers share one budget: a prompt is stored whole first. Wants a scorer whose side
  // values say everything.
  bool across_layers = false;
  bool whole_heads_grow = false;  // heads that keep all of a prompt keep all that is generated
};

// What happens to the values of entries that are not kept.
struct Reducer {
  const char* name;
  std::initializer_list<OptionId> options;
  // Null: they go. The accumulated attention of every entry is then wanted: the scorer's side values, or
  // others.
  void (*merge)(const Policy& policy, MergeRule* out) = nullptr;
  MergeKind kind = MergeKind::kNone;
  bool codebook = false;                             // entries become references into codebooks
  bool (*by_steps)(const Policy& policy) = nullptr;  // prompts beyond the budget are fed token by token
};

struct OptionDefault {
  OptionId id;
  double value;
};

struct Method {
  const char* name;
  const char* summary;         // one sentence
  const char* source;          // paper and section of methods.md
  const Allocator* allocator;  // null: everything is kept (full)
  const Scorer* scorer;
  const Reducer* reducer;
  DecodeMode decode;
  PositionMode positions;
  std::initializer_list<OptionDefault> defaults;  // where they differ from options.list
  bool budget_optional = false;  // without a budget: everything is kept, or the table is the budget
  bool reads_pages = false;      // a step reads the pages that could matter; nothing leaves
};

}  // namespace kvc
