// WeightedKV: average attention since the entry came. methods.md 2.15.
#include <algorithm>

#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"

namespace kvc {
namespace {

constexpr OptionId kOptions[] = {OptionId::kNSink, OptionId::kRecent};
enum Aux { kSum = 0, kCount = 1 };

int32_t AuxCount(const Policy&) { return 2; }

Protected Protect(const Policy& policy, int32_t budget) {
  const int32_t n_sink = policy.Int(OptionId::kNSink), recent = policy.Int(OptionId::kRecent);
  // The newest entry is never a candidate; a derived recent part that does not fit is clamped (Appendix
  // C, 1.9).
  return {n_sink, std::max(1, recent < 0 ? budget / 2 - 4 : recent)};
}

void Program(const Policy&, int32_t, ScoreProgram* p) {
  p->Add(ScoreOp::kSums, 1);
  p->Add(ScoreOp::kLoad, 0, kSum);
  p->Add(ScoreOp::kAdd, 0, 1);
  p->Add(ScoreOp::kStore, kSum, 0);
  p->Add(ScoreOp::kAge, 1);
  p->Add(ScoreOp::kStore, kCount, 1);
  p->Add(ScoreOp::kDiv, 0, 1);
}

void Step(const Policy&, StepScoring* step) {
  step->rank = RankBy::kRatio;
  step->instrs[step->n_instrs++] = {StepOp::kAddAttention, kSum};
  step->instrs[step->n_instrs++] = {StepOp::kAddOne, kCount};
  step->needs_attention = true;
}

Accumulates SumAndCount(const Policy&) { return Accumulates::kSumAndCount; }

constexpr Scorer Row() {
  Scorer row{"avg_accum", kNeedsColumnSums, kOptions, Protect, Program};
  row.n_aux = AuxCount;
  row.step = Step;
  row.accumulates = SumAndCount;
  row.merges_next = true;
  return row;
}

}  // namespace

extern const Scorer kScorerAvgAccum = Row();

}  // namespace kvc
