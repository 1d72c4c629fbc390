// SpindleKV's first stage: a set per query head from the mean of the window rows. methods.md 2.16 (b), (c).
#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"
#include "lib/compress/scorers/shared.h"

namespace kvc {
namespace {

constexpr OptionId kOptions[] = {OptionId::kWindow, OptionId::kSpindleNorm, OptionId::kSpindleGqa};

void Program(const Policy& policy, int32_t, ScoreProgram* p) {
  p->rows.n_rows = policy.Int(OptionId::kWindow);
  p->Add(ScoreOp::kRows);
  p->Add(policy.Int(OptionId::kSpindleNorm) == 1 ? ScoreOp::kDivideQByRemaining : ScoreOp::kDivideQ);
  p->Add(ScoreOp::kGroup, 0).group = GroupOf(policy);
}

constexpr Scorer Row() {
  Scorer row{"window_qhead", kNeedsNothing, kOptions, ProtectWindow, Program};
  row.window_rows = WindowRows;
  row.per_query_head = true;
  return row;
}

}  // namespace

extern const Scorer kScorerWindowQhead = Row();

}  // namespace kvc
