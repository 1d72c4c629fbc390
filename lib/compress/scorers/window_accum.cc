// For documents whose questions are not known: what the newest rows look at and what all rows looked at, each
// as a share of its head's total, pooled and added. The window finds what the end of the text recalls, the
// accumulated attention what the text itself kept coming back to. Own composition of the scores of SnapKV and
// H2O (methods.md 2.6, 2.3).
#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"
#include "lib/compress/scorers/shared.h"

namespace kvc {
namespace {

constexpr OptionId kOptions[] = {OptionId::kWindow,  OptionId::kKernel, OptionId::kPool,
                                 OptionId::kAvgEdge, OptionId::kGqaAgg, OptionId::kAccumWeight};

int32_t AuxCount(const Policy&) { return 1; }  // attention accumulated over all prompts

// dst = pool(src's share of its sum, times x); src is changed.
void PooledShare(const Policy& policy, int dst, int src, double x, ScoreProgram* p) {
  const int32_t w = policy.Int(OptionId::kWindow);
  ScoreInstr& share = p->Add(ScoreOp::kShare, src);
  share.x = static_cast<float>(x), share.tail = w;
  ScoreInstr& pool = p->Add(ScoreOp::kPool, dst, src);
  pool.pool = PoolingOf(policy), pool.tail = w;
}

void Program(const Policy& policy, int32_t, ScoreProgram* p) {
  const int32_t w = policy.Int(OptionId::kWindow);
  p->rows.n_rows = w;
  p->Add(ScoreOp::kRows);
  ScoreInstr& group = p->Add(ScoreOp::kGroup, 1);
  group.group = GroupOf(policy), group.tail = w;
  PooledShare(policy, 0, 1, 1, p);
  p->Add(ScoreOp::kLoad, 1, 0);
  p->Add(ScoreOp::kSums, 2);
  p->Add(ScoreOp::kAdd, 1, 2);
  p->Add(ScoreOp::kStore, 0, 1);
  PooledShare(policy, 2, 1, policy.Real(OptionId::kAccumWeight), p);
  p->Add(ScoreOp::kAdd, 0, 2).tail = w;
  p->Add(ScoreOp::kInfinite, 0).tail = w;
}

constexpr Scorer Row() {
  Scorer row{"window_accum", kNeedsColumnSums, kOptions, ProtectWindow, Program};
  row.n_aux = AuxCount;
  row.window_rows = WindowRows;
  return row;
}

}  // namespace

extern const Scorer kScorerWindowAccum = Row();

}  // namespace kvc
