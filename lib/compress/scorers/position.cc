// StreamingLLM: the newest entries stay. methods.md 2.2.
#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"

namespace kvc {
namespace {

constexpr OptionId kOptions[] = {OptionId::kNSink};

Protected Protect(const Policy& policy, int32_t) { return {policy.Int(OptionId::kNSink), 1}; }
void Program(const Policy&, int32_t, ScoreProgram* p) { p->Add(ScoreOp::kIndex, 0); }
void Step(const Policy&, StepScoring* step) { step->rank = RankBy::kPosition; }

constexpr Scorer Row() {
  Scorer row{"position", kNeedsNothing, kOptions, Protect, Program};
  row.step = Step;
  row.incomparable = "compares the scores of heads, and scorer position has none";
  row.merges_spread = true;
  return row;
}

}  // namespace

extern const Scorer kScorerPosition = Row();

}  // namespace kvc
