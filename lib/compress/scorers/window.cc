// SnapKV: mean attention of the last w rows, group mean, pooled. methods.md 2.6.
#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"
#include "lib/compress/scorers/shared.h"

namespace kvc {
namespace {

constexpr OptionId kOptions[] = {OptionId::kWindow,       OptionId::kKernel, OptionId::kPool,
                                 OptionId::kAvgEdge,      OptionId::kGqaAgg, OptionId::kPoolBeforeGroup,
                                 OptionId::kPoolRowsFirst};

// The window's own columns get +inf: they stay whatever the order of candidates.
void Program(const Policy& policy, int32_t, ScoreProgram* p) {
  const bool rows_first = policy.Flag(OptionId::kPoolRowsFirst),
             head_first = !rows_first && policy.Flag(OptionId::kPoolBeforeGroup);
  const int32_t w = policy.Int(OptionId::kWindow);
  p->rows.n_rows = p->rows.n_pool_tail = w;
  if (rows_first) p->rows.pool = PoolingOf(policy);
  p->Add(ScoreOp::kRows);
  p->Add(ScoreOp::kMeanQ);
  if (head_first) {
    ScoreInstr& pool = p->Add(ScoreOp::kPoolQ);
    pool.pool = PoolingOf(policy), pool.tail = w;
  }
  const bool pooled = rows_first || head_first;
  ScoreInstr& group = p->Add(ScoreOp::kGroup, pooled ? 0 : 1);
  group.group = GroupOf(policy), group.tail = w;
  if (!pooled) {
    ScoreInstr& pool = p->Add(ScoreOp::kPool, 0, 1);
    pool.pool = PoolingOf(policy), pool.tail = w;
  }
  p->Add(ScoreOp::kInfinite, 0).tail = w;
}

constexpr Scorer Row() {
  Scorer row{"window", kNeedsNothing, kOptions, ProtectWindow, Program};
  row.window_rows = WindowRows;
  row.residual = WindowResidual;
  row.can_reobserve = true;
  return row;
}

}  // namespace

extern const Scorer kScorerWindow = Row();

}  // namespace kvc
