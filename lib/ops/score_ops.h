// What a method does with the attention it saw, as data: short programs that a device runs or fuses.
// lib/compress makes them; no device knows a method by name.
#pragma once
#include <algorithm>
#include <cstdint>

#include "lib/ops/cache_ops.h"

namespace kvc {

enum class PoolKind : uint8_t { kMax = 0, kAvg = 1 };
constexpr int32_t kMaxPoolKernel = 255;

// y[t] over x[u], |u - t| <= (kernel - 1) / 2, inside the line (methods.md 1.10). kernel 1: none.
struct Pooling {
  PoolKind kind = PoolKind::kMax;
  int32_t kernel = 1;
  bool shrink_edges = false;  // averages divide by the number of terms
};

enum class GroupKind : uint8_t { kMean = 0, kMax = 1, kSum = 2 };

// What was recorded of a layer while its prompt was attended.
struct ObservedView {
  int32_t n_rows = 0;  // newest rows, oldest first: row i sees the entries [0, len - n_rows + 1 + i)
  int32_t n_new = 0;   // new tokens of the prompt: what column sums are over
  DevicePtr<const float> queries;  // [n_rows, H, D], turned as the layer's keys
  DevicePtr<const float>
      sums;  // [G, capacity]: group mean of the summed probabilities of the new rows; or null
  DevicePtr<const float>
      maxima;  // [G, capacity]: largest probability any row of a second reading gave; or null
};

// How the rows of kRows weigh: row i of n.
enum class RowWeight : uint8_t { kOne = 0, kRamp = 1 };  // kRamp: 1/n * (1 + (ramp - 1) * i / (n - 1))
// The factor on the logits of a row whose newest entry is the i-th: 1 up to k, then sqrt(2 ln(i / k))
// (methods.md 2.14).
enum class RowGain : uint8_t { kNone = 0, kLogLength = 1 };
struct RowRule {
  int32_t n_rows = 0;  // of the newest; at most as many as were recorded
  RowWeight weight = RowWeight::kOne;
  float ramp = 1;
  RowGain gain = RowGain::kNone;
  int32_t gain_length = 0;                       // k
  bool gain_scaled = false, gain_floor = false;  // divided by D under the root; at least 1
  Pooling pool;                                  // of every row, over all but the newest n_pool_tail columns
  int32_t n_pool_tail = 0;
};

// methods.md 2.14: 1 for i <= length, then sqrt(2 ln(i / length)): the longer the prompt against k, the
// sharper.
float LengthGain(int32_t i, int32_t length, bool scaled, bool floor, int32_t d);

// What the n rows of a rule are multiplied by [n].
void FillRowWeights(const RowRule& rule, int32_t n, float* weight);
// Where the rule has a gain: the factor on the logits of a row that sees i entries of its head.
inline float GainOf(const RowRule& rule, int32_t i, int32_t d) {
  return LengthGain(i, rule.gain_length, rule.gain_scaled, rule.gain_floor, d);
}

// Lines: one of every query head (Q), registers 0 .. 3 of every KV head, and the side values of its entries;
// as long as the head. Columns: how many, counted from the oldest entry, an instruction is over: all but the
// newest `tail`.
enum class ScoreOp : uint8_t {
  kRows,                // Q = sum of the recorded rows' probabilities by RowRule
  kMeanQ,               // Q *= 1 / recorded rows used
  kDivideQ,             // Q /= recorded rows used
  kDivideQByRemaining,  // Q[t] /= n - t
  kPoolQ,               // Q = pool(Q), columns
  kGroup,               // dst = the group's Q by GroupKind, columns
  kLayerMean,           // dst = mean of Q over all query heads of the layer
  kGroupMean,           // the same over those of the group
  kSums,                // dst = column sums
  kMaxima,              // dst = column maxima
  kLoad,                // dst = side value src
  kStore,               // side value dst = src
  kAdd,                 // dst += src, columns
  kMax,                 // dst = max(dst, src)
  kMul,                 // dst *= src
  kDiv,                 // dst /= src
  kScale,               // dst *= x
  kCopy,                // dst = src
  kRowsThatSaw,         // dst = rows of the prompt that saw the entry
  kAge,                 // dst = tokens since the entry came, itself included
  kPool,                // dst = pool(src), columns; dst != src
  kShare,               // dst *= x / (sum of dst), columns; 0 where that is 0
  kValueNorms,          // dst = |v|^2
  kByMax,               // dst *= 1 / largest of dst; 0 where that is 0
  kSpreadMax,           // dst = largest of src, everywhere
  kInfinite,            // dst = +inf in the first `head` and the newest `tail` columns
  kHistory,             // side values 0 ..: the recorded rows, oldest first, as history (HistoryRule)
  kIndex,               // dst[t] = t
  kKeyNorms,            // dst = |k|^2
  kSqrt,                // dst = sqrt(dst)
  kKeyCosine,           // dst = cosine of k and the mean direction of all keys (methods.md 2.20)
  kLag,                 // dst = rank in its part by lag-relative spread, and what has no next part (2.21)
  kExpected,            // Q = softmax of the logits that queries to come are expected to give (2.22)
  kRestLast,            // dst of an entry that stands for others is -inf, of all others more (2.25)
};

// Whether all heads have to be through `first`, and what came behind it, before one of them begins `op`: a
// mean of the layer reads the Q of all, which a head may change only when nobody reads it any more.
constexpr bool WaitsForAllHeads(ScoreOp first, ScoreOp op) {
  return op == ScoreOp::kLayerMean ||
         (first == ScoreOp::kLayerMean && op >= ScoreOp::kMeanQ && op <= ScoreOp::kPoolQ);
}

struct ScoreInstr {
  ScoreOp op;
  int8_t dst = 0, src = 0;
  int32_t tail = 0, head = 0;
  float x = 1;
  Pooling pool;
  GroupKind group = GroupKind::kMean;
  int32_t size = 0;  // kLag: entries of a part; kExpected: positions to come
};

// Rows below average, remembered: side value 0 the count of low bits among the newest `length` rows, then the
// bits themselves, newest lowest, 32 a value. sums: side value 0 is the summed attention and there are no
// bits.
struct HistoryRule {
  int32_t length = 0;
  bool sums = false;
  constexpr int32_t words() const { return sums ? 0 : (length + 31) / 32; }
};

constexpr int kMaxScoreInstrs = 24;
struct ScoreProgram {
  int32_t n = 0;
  RowRule rows;
  HistoryRule history;
  ScoreInstr code[kMaxScoreInstrs];
  ScoreInstr& Add(ScoreOp op, int dst = 0, int src = 0) {
    ScoreInstr& i = code[n++];
    i = {};
    i.op = op, i.dst = static_cast<int8_t>(dst), i.src = static_cast<int8_t>(src);
    return i;
  }
};

// What the scratch of scoring depends on; all but the program may be larger than they turn out.
struct ScoreShape {
  const ScoreProgram* program;
  int32_t n_heads, n_kv_heads, head_dim;
  int32_t n_rows;  // recorded
  int64_t stride;
};

// Runs a program over one layer. scores [G, stride]: register 0 at the end. per_head [H, stride]: Q, for
// methods whose query heads choose for themselves.
struct ScoreArgs {
  const ScoreProgram* program;
  LayerView layer;  // side values are written
  ObservedView observed;
  int32_t n_heads;
  float scale;  // of the attention logits
  DevicePtr<float> scores, per_head;
  int64_t stride;
  DeviceBytes scratch;      // ScoreScratchBytes
  float cap = 0;            // scaled logits z become cap * tanh(z / cap); 0: they stay
  KeyTurning turning = {};  // of the recorded queries (kExpected)
  // [H] logits that join every softmax, times the row's factor where it has one; null: none.
  DevicePtr<const float> sinks = {};
};

// ---- choosing ----

// The entries no score may give up: the first n_sink and the newest n_recent.
struct Protected {
  int32_t n_sink = 0, n_recent = 0;
};

enum class SelectKind : uint8_t {
  kTop = 0,     // the best `count` candidates (methods.md 1.7)
  kLowest = 1,  // drops the worst, `drop` at a time, until no more than the budget is left (methods.md 2.5)
  kDraw = 2     // a share is drawn by Gumbel keys from those the best leave (methods.md 2.17)
};
struct SelectRule {
  SelectKind kind = SelectKind::kTop;
  Protected protect;
  int32_t drop = 0;         // kLowest: entries at once; 0: half of the budget, at least 1
  double random_share = 0;  // kDraw
  uint64_t seed = 0;
};

// How many of n entries a head keeps that has room for `count` candidates beside the protected ones.
constexpr int32_t KeptCount(const SelectRule& rule, int32_t n, int32_t count) {
  const int32_t fixed = rule.protect.n_sink + rule.protect.n_recent;
  if (n <= fixed + count) return n;
  if (rule.kind != SelectKind::kLowest) return fixed + std::max(count, 0);
  const int32_t budget = std::max(count, 0) + rule.protect.n_recent, n_free = n - rule.protect.n_recent,
                at_once = rule.drop > 0 ? rule.drop : std::max(budget / 2, 1);
  return n - std::min(at_once * ((n - budget + at_once - 1) / at_once), n_free);
}

// kDraw: how many of `count` are drawn.
int32_t DrawnCount(const SelectRule& rule, int32_t count);

// Marks what every head keeps: marks [G, stride]. counts [G]: candidates beside the protected part.
struct SelectArgs {
  SelectRule rule;
  LayerView layer;
  int32_t layer_index;
  const int32_t* counts;  // [G]
  DevicePtr<const float> scores;
  DevicePtr<uint8_t> marks;
  int64_t stride;
  DeviceBytes scratch;
};

// SpindleKV (c): every query head keeps its best `count` by per_head; what any of them keeps is marked, with
// a mask of those who see it. What a head gave up before does not come back to it. kept [G], on the host:
// entries marked.
struct SelectByQueryHeadArgs {
  LayerView layer;
  int32_t n_heads, n_recent;
  const int32_t* counts;
  DevicePtr<float> per_head;
  DevicePtr<uint8_t> marks;
  DevicePtr<uint32_t> seen;
  int64_t stride;
  DeviceBytes scratch;
  int32_t* kept;
};

// Takes the mark off the oldest marked entries behind the first n_sink until held[g] are left.
struct UnmarkArgs {
  LayerView layer;
  const int32_t* held;  // [G]
  int32_t n_sink;
  DevicePtr<uint8_t> marks;
  int64_t stride;
};

// How many of the `total` best candidates of a layer each head has, when every head first takes its own
// `locked` best. Order: score descending, head ascending, position ascending (methods.md 2.11). A head has as
// many candidates as it has entries beside the protected ones. concentrated: scores times the share that a
// head's `average` best have in its total. counts [G], on the host. 0 < total < the candidates there are.
struct CountBestArgs {
  LayerView layer;
  Protected protect;
  DevicePtr<const float> scores;
  int64_t stride;
  int64_t total, locked;
  int32_t average;
  bool concentrated;
  int64_t* counts;
  DeviceBytes scratch;  // of Select
};

// ---- merging ----

// CaM (2.9), WeightedKV (2.15), one entry for all that goes (2.25)
enum class MergeKind : uint8_t { kNone = 0, kSpread = 1, kIntoNext = 2, kIntoRest = 3 };
struct MergeRule {
  MergeKind kind = MergeKind::kNone;
  int32_t sums = -1, counts = -1;  // side values: accumulated attention, and the rows it was accumulated over
  int32_t n_targets = 0;           // kSpread: followers that share a value
  bool by_maximum = false, expected = false;
  uint32_t sequence = 0;
  uint64_t seed = 0;
};

// Gives the values of entries that are not marked to kept ones of the layer. kIntoRest: of a head with
// entries that are not marked these become one, in its first slot, which is marked then (cache_ops.h,
// TokensOf); what was marked before them moves on by one slot.
struct MergeArgs {
  MergeRule rule;
  LayerView layer;
  int32_t layer_index;
  DevicePtr<uint8_t> marks;
  int64_t stride;
  DeviceBytes scratch;
};

}  // namespace kvc
