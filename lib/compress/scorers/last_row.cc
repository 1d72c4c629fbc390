// TOVA: the newest token's attention, mean over all heads of the layer. methods.md 2.4.
#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"

namespace kvc {
namespace {

constexpr OptionId kOptions[] = {OptionId::kProtectLast, OptionId::kTovaScope};

Protected Protect(const Policy& policy, int32_t) { return {0, policy.Flag(OptionId::kProtectLast) ? 1 : 0}; }
int32_t Rows(const Policy&, int32_t) { return 1; }
bool OneSet(const Policy& policy) { return policy.Int(OptionId::kTovaScope) == 0; }

void Program(const Policy& policy, int32_t, ScoreProgram* p) {
  p->rows.n_rows = 1;
  p->Add(ScoreOp::kRows);
  p->Add(OneSet(policy) ? ScoreOp::kLayerMean : ScoreOp::kGroupMean, 0);
}

void Step(const Policy&, StepScoring* step) {
  step->rank = RankBy::kAttention;
  step->needs_attention = true;
}

constexpr Scorer Row() {
  Scorer row{"last_row", kNeedsNothing, kOptions, Protect, Program};
  row.window_rows = Rows;
  row.step = Step;
  row.one_set = OneSet;
  row.one_set_unless = "tova_scope=kvhead";
  return row;
}

}  // namespace

extern const Scorer kScorerLastRow = Row();

}  // namespace kvc
