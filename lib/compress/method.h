// The parts a compression method is made of (methods.md 4). A published method is a preset: a row that names
// its parts and defaults. No part knows a model, a device or a cache layout; the compressor (compressor.h)
// runs them.
#pragma once
#include <cstdint>
#include <initializer_list>

#include "lib/base/status.h"
#include "lib/compress/option.h"

namespace kvc {

struct Policy;
struct ScoreInput;  // scoring.h
struct ScoreOutput;
struct SelectInput;
struct DecodeInput;
struct AllocateInput;

enum class DecodeMode : uint8_t { kGrow = 0, kStep = 1, kReobserve = 2 };
enum class PositionMode : uint8_t { kOriginal = 0, kInCache = 1 };

// What must be recorded while a layer is prefilled.
enum Needs : uint32_t {
  kNeedsNothing = 0,
  kNeedsWindow = 1,
  kNeedsColumnSums = 2,
  kNeedsHeadScores = 4,
  kNeedsTable = 8,
  kNeedsReread = 16
};

// The entries no scorer may give up: the first n_sink and the newest n_recent.
struct Protected {
  int32_t n_sink = 0, n_recent = 0;
};

struct Scorer {
  const char* name;
  uint32_t needs;
  bool one_set_per_layer;  // every KV head keeps the same entries (TOVA unless tova_scope=kvhead,
                           // PyramidInfer)
  int32_t (*n_aux)(const Policy& policy);  // f32 side values per cached entry; null: none
  std::initializer_list<OptionId> options;
  // Protected part for an average budget of `budget` slots.
  Protected (*protect)(const Policy& policy, int32_t budget);
  // Rows of queries to record for a prompt of n tokens; null: none.
  int32_t (*window_rows)(const Policy& policy, int32_t n, int32_t budget);
  // One layer of the prompt: scores [G, S] (higher = keep) of all entries, and the side values.
  Status (*score)(const ScoreInput& in, ScoreOutput& out);
  // Chooses the kept entries of one head; null: sinks, recent and TOP(count) of the others.
  Status (*select)(const SelectInput& in);
  // Decode, one head, after the attention: adds this step's probabilities to the side values; null: no state.
  void (*observe)(const DecodeInput& in);
  // Decode: scores of the entries of one head, to find victims; null: the scorer cannot evict at decode.
  void (*rank)(const DecodeInput& in, float* scores);
  bool clear_after_reduce;  // side values of the survivors restart at 0 (Scissorhands)
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
};

// What happens to the values of entries that are not kept. cam and weighted need the accumulated attention of
// every entry: the scorer's side values where it is h2o or avg_accum, else the compressor adds them.
enum class ReduceKind : uint8_t { kEvict = 0, kCam = 1, kWeighted = 2, kCodebook = 3 };
struct Reducer {
  const char* name;
  ReduceKind kind;
  uint32_t needs;
  std::initializer_list<OptionId> options;
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
};

}  // namespace kvc
