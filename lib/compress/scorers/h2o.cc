// H2O: attention summed over all rows. methods.md 2.3. `h2o_count` divides by the rows that could see the
// entry.
#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"

namespace kvc {
namespace {

constexpr OptionId kOptions[] = {OptionId::kH2oRecent, OptionId::kH2oNorm},
                   kCountOptions[] = {OptionId::kH2oRecent};

int32_t AuxCount(const Policy&) { return 1; }

Protected Protect(const Policy& policy, int32_t budget) {
  const int32_t recent = policy.Int(OptionId::kH2oRecent);
  return {0, recent < 0 ? (budget + 1) / 2 : recent};
}

void SumProgram(ScoreProgram* p) {
  p->Add(ScoreOp::kSums, 1);
  p->Add(ScoreOp::kLoad, 0, 0);
  p->Add(ScoreOp::kAdd, 0, 1);
  p->Add(ScoreOp::kStore, 0, 0);
}

// What is there is a mean over the rows before: A += (sums - A * new rows) / all rows.
void CountProgram(const Policy&, int32_t, ScoreProgram* p) {
  p->Add(ScoreOp::kLoad, 0, 0);
  p->Add(ScoreOp::kRowsThatSaw, 1);
  p->Add(ScoreOp::kMul, 1, 0);
  p->Add(ScoreOp::kScale, 1).x = -1.0f;
  p->Add(ScoreOp::kSums, 2);
  p->Add(ScoreOp::kAdd, 1, 2);
  p->Add(ScoreOp::kAge, 2);
  p->Add(ScoreOp::kDiv, 1, 2);
  p->Add(ScoreOp::kAdd, 0, 1);
  p->Add(ScoreOp::kStore, 0, 0);
}

bool Counts(const Policy& policy) { return policy.Int(OptionId::kH2oNorm) == 1; }
void Program(const Policy& policy, int32_t budget, ScoreProgram* p) {
  Counts(policy) ? CountProgram(policy, budget, p) : SumProgram(p);
}

// Merging weighs by sums; a mean is none.
Accumulates Sum(const Policy& policy) { return Counts(policy) ? Accumulates::kNothing : Accumulates::kSum; }

void Step(const Policy&, StepScoring* step) {
  step->rank = RankBy::kAux;
  step->instrs[step->n_instrs++] = {StepOp::kAddAttention, 0};
  step->needs_attention = true;
}

constexpr Scorer Row(const char* name, OptionSpan options, decltype(Scorer::program) program,
                     decltype(Scorer::accumulates) accumulates) {
  Scorer row{name, kNeedsColumnSums, options, Protect, program};
  row.n_aux = AuxCount;
  row.step = Step;
  row.accumulates = accumulates;
  row.merges_spread = row.merges_next = true;
  return row;
}

}  // namespace

extern const Scorer kScorerH2o = Row("h2o", kOptions, Program, Sum);
extern const Scorer kScorerH2oCount = Row("h2o_count", kCountOptions, CountProgram, nullptr);

}  // namespace kvc
