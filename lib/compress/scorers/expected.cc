// The attention that tokens to come are expected to pay, times the length of the value. methods.md 2.22.
#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"
#include "lib/compress/scorers/shared.h"

namespace kvc {
namespace {

constexpr OptionId kOptions[] = {OptionId::kNSink, OptionId::kFuturePositions, OptionId::kGqaAgg};

Protected Protect(const Policy& policy, int32_t) { return {policy.Int(OptionId::kNSink), 1}; }
int32_t Rows(const Policy&, int32_t n) { return n; }

void Program(const Policy& policy, int32_t, ScoreProgram* p) {
  const int32_t n_sink = policy.Int(OptionId::kNSink);
  ScoreInstr& expected = p->Add(ScoreOp::kExpected);
  expected.head = n_sink, expected.size = policy.Int(OptionId::kFuturePositions);
  p->Add(ScoreOp::kGroup, 0).group = GroupOf(policy);
  p->Add(ScoreOp::kValueNorms, 1);
  p->Add(ScoreOp::kSqrt, 1);
  p->Add(ScoreOp::kMul, 0, 1);
  p->Add(ScoreOp::kInfinite, 0).head = n_sink;
}

constexpr Scorer Row() {
  Scorer row{"expected", kNeedsNothing, kOptions, Protect, Program};
  row.window_rows = Rows;
  return row;
}

}  // namespace

extern const Scorer kScorerExpected = Row();

}  // namespace kvc
