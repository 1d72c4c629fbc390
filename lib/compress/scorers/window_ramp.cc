// PyramidInfer: the last 1 + w rows, newer rows weigh more, mean over all heads of the layer. methods.md 2.8.
#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"
#include "lib/compress/scorers/shared.h"

namespace kvc {
namespace {

constexpr OptionId kOptions[] = {OptionId::kWindow, OptionId::kNSink, OptionId::kRamp};

int32_t Rows(const Policy& policy, int32_t) { return policy.Int(OptionId::kWindow) + 1; }
bool OneSet(const Policy&) { return true; }

void Program(const Policy& policy, int32_t, ScoreProgram* p) {
  p->rows.n_rows = Rows(policy, 0);
  p->rows.weight = RowWeight::kRamp;
  p->rows.ramp = static_cast<float>(policy.Real(OptionId::kRamp));
  p->Add(ScoreOp::kRows);
  p->Add(ScoreOp::kLayerMean, 0);
  p->Add(ScoreOp::kInfinite, 0).head = policy.Int(OptionId::kNSink);
}

constexpr Scorer Row() {
  Scorer row{"window_ramp", kNeedsNothing, kOptions, ProtectWindow, Program};
  row.window_rows = Rows;
  row.one_set = OneSet;
  return row;
}

}  // namespace

extern const Scorer kScorerWindowRamp = Row();

}  // namespace kvc
