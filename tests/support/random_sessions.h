// Models, policies and calls drawn at random, and sessions that do the same calls in several ways.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/compress/policy_text.h"
#include "lib/engine/session.h"
#include "tests/support/split_mix.h"
#include "tests/support/tiny_model.h"

namespace kvc::test {

class Draws {
 public:
  explicit Draws(uint64_t seed);
  uint32_t Next();
  int Below(int n);
  int Between(int low, int high);  // both included
  bool OneIn(int n);
  template <typename T, size_t n>
  const T& Of(const T (&list)[n]) {
    return list[Below(static_cast<int>(n))];
  }

 private:
  SplitMix64 bits_;
};

// ---- models ----

struct World {
  AlignedBytes bytes;
  std::shared_ptr<const Model> models[2];  // with two threads and with one
  bool windows = false;
  int64_t used[2] = {};
};

// Any of the first kWorlds; the others have one layer, and heads that all see the same entries.
constexpr int kWorlds = 6, kWithoutRope = 6, kOneHead = 7, kAllWorlds = 8;

// Opened once.
World& WorldOf(int which);

// ---- policies ----

// A policy that can be had, and its text.
Policy RandomPolicy(const ModelConfig& c, Draws* d, std::string* text);
// Slots that a first prompt of n tokens leaves in layers without windows when it is compressed at once. Below
// 0 where the budget does not say how many.
int64_t ExpectedSlots(const Policy& p, const ModelConfig& c, int n);

// ---- what can be seen ----

struct Seen {
  std::string problem;  // why something could not be looked at
  int32_t n_tokens = 0, n_answer = 0, n_prompt = 0, stop_token = -1;
  std::vector<std::vector<int32_t>> kept;  // of layers without windows
  std::vector<float> logits;
};

Seen Look(Session& s);
// Empty where they are equal. near: logits may be added up in another order.
std::string Difference(const Seen& a, const Seen& b, bool near = false);

// ---- calls ----

enum class Op {
  kPrefill,
  kAppend,
  kSteps,
  kDraft,
  kAccept,
  kFeed,
  kRewind,
  kCompress,
  kTrim,
  kReset,
  kSampling
};
struct Call {
  Op op;
  int n = 0;
  uint32_t seed = 0;
  int argument = 0;
};

// empty: the session has no tokens, and what needs some is not drawn.
Call RandomCall(Draws* d, bool empty);
// As a test names it where it fails.
std::string TextOf(const Call& call);

// ---- what sessions may differ by ----

// How far an answer may be from one of the same entries in f32, or in the same codes, in logits of these
// models.
float NearOf(const Policy& policy);
// Whether what pages leave of its bytes goes to more entries than are planned (methods.md 2.18).
bool UsesBytesUp(const Policy& policy);

// ---- sessions ----

struct Outcome {
  Code code = Code::kOk;
  std::string message;
  std::vector<int32_t> tokens;  // that were chosen
};

// How a replica does what it is asked for.
enum class Way { kPlain, kOneThread, kRestored, kForked, kBatch };
constexpr Way kWays[] = {Way::kPlain, Way::kOneThread, Way::kRestored, Way::kForked, Way::kBatch};
const char* NameOf(Way way);

struct Replica {
  Way way = Way::kPlain;
  std::shared_ptr<const Model> model;
  std::unique_ptr<Session> session, companion;  // the companion shares the batches
  std::string text;
};

// tokens: what a call that reads or feeds takes.
Outcome Do(Replica& r, const Call& call, const std::vector<int32_t>& tokens);

}  // namespace kvc::test
