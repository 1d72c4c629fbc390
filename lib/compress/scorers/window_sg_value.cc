// AhaKV: sharpened softmax over a fixed number of recent rows, weighted by a prior from the value norms.
// methods.md 2.14.
#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"

namespace kvc {
namespace {

constexpr OptionId kOptions[] = {OptionId::kRecent,       OptionId::kValueKernel,  OptionId::kAhaUnits,
                                 OptionId::kAhaGainFloor, OptionId::kAhaScorePool, OptionId::kAhaDecodePrior,
                                 OptionId::kAhaRows,      OptionId::kAhaGain,      OptionId::kAhaPrior,
                                 OptionId::kAhaDecodeI};
constexpr int32_t kDefaultRecent = 32, kAllRows = 1 << 28;
// F; the prior; the largest value norm there was when the entry came.
enum Aux { kScore = 0, kPrior = 1, kPriorMax = 2 };

int32_t Recent(const Policy& policy) {
  const int32_t recent = policy.Int(OptionId::kRecent);
  return recent < 0 ? kDefaultRecent : recent;
}
bool DecodePrior(const Policy& policy) { return policy.Flag(OptionId::kAhaDecodePrior); }
int32_t AuxCount(const Policy& policy) { return DecodePrior(policy) ? 3 : 1; }
Protected Protect(const Policy& policy, int32_t) { return {0, Recent(policy)}; }
int32_t Rows(const Policy& policy, int32_t n) {
  return policy.Int(OptionId::kAhaRows) == 1 ? n : Recent(policy);
}

void Program(const Policy& policy, int32_t budget, ScoreProgram* p) {
  p->rows.n_rows = policy.Int(OptionId::kAhaRows) == 1 ? kAllRows : Recent(policy);
  p->rows.gain = policy.Flag(OptionId::kAhaGain) ? RowGain::kLogLength : RowGain::kNone;
  p->rows.gain_length = budget;
  p->rows.gain_scaled = policy.Int(OptionId::kAhaUnits) != 0;
  p->rows.gain_floor = policy.Flag(OptionId::kAhaGainFloor);
  p->Add(ScoreOp::kRows);
  // Register 2: the prior, pooled norms of the values; 3: as a share of the largest.
  p->Add(ScoreOp::kValueNorms, 1);
  p->Add(ScoreOp::kPool, 2, 1).pool = {PoolKind::kAvg, policy.Int(OptionId::kValueKernel), true};
  p->Add(ScoreOp::kCopy, 3, 2);
  p->Add(ScoreOp::kByMax, 3);
  if (DecodePrior(policy)) p->Add(ScoreOp::kStore, kPrior, 3);
  p->Add(ScoreOp::kGroup, 0).group = GroupKind::kMean;
  p->Add(policy.Flag(OptionId::kAhaPrior) ? ScoreOp::kMul : ScoreOp::kCopy, 3, 0);
  p->Add(ScoreOp::kPool, 0, 3).pool = {PoolKind::kAvg, policy.Int(OptionId::kAhaScorePool), false};
  p->Add(ScoreOp::kLoad, 1, kScore);
  p->Add(ScoreOp::kAdd, 0, 1);
  p->Add(ScoreOp::kStore, kScore, 0);
  if (DecodePrior(policy)) {
    p->Add(ScoreOp::kSpreadMax, 3, 2);
    p->Add(ScoreOp::kStore, kPriorMax, 3);
  }
}

void Step(const Policy& policy, StepScoring* step) {
  step->gain = policy.Flag(OptionId::kAhaGain) && policy.Int(OptionId::kAhaDecodeI) == 1;
  step->gain_scaled = policy.Int(OptionId::kAhaUnits) != 0;
  step->gain_floor = policy.Flag(OptionId::kAhaGainFloor);
  step->rank = RankBy::kAux;
  step->instrs[step->n_instrs++] = {DecodePrior(policy) ? StepOp::kAddPrior : StepOp::kAddAttention, kScore};
  step->needs_attention = true;
}

constexpr Scorer Row() {
  Scorer row{"window_sg_value", kNeedsNothing, kOptions, Protect, Program};
  row.n_aux = AuxCount;
  row.window_rows = Rows;
  row.step = Step;
  return row;
}

}  // namespace

extern const Scorer kScorerWindowSgValue = Row();

}  // namespace kvc
