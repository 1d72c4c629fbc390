// For documents whose questions are not known: how far the model looks at an entry when it reads the document
// once more behind the instruction to repeat it. The largest probability that any row of the second reading,
// in any query head of the group, gave the entry: KVzip's score (Kim et al., NeurIPS 2025, arXiv 2505.23416),
// here with the softmax over everything the row sees. Or the sum of the squares, over the rows and averaged
// over the group: to first order the squared error in the rows' outputs where the entry goes, had all values
// one length (the library's own). What it costs is another prefill whose rows all see the whole prompt;
// cheaper readings are the library's own (docs/methods.md 2.13).
#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"
#include "lib/compress/scorers/shared.h"

namespace kvc {
namespace {

constexpr OptionId kOptions[] = {OptionId::kWindow,      OptionId::kKernel,      OptionId::kPool,
                                 OptionId::kAvgEdge,     OptionId::kReread,      OptionId::kRereadPart,
                                 OptionId::kRereadShare, OptionId::kRereadScore, OptionId::kOnce};

// What all readings gave so far; where nothing is compressed twice, nothing.
int32_t AuxCount(const Policy& policy) { return policy.Flag(OptionId::kOnce) ? 0 : 1; }
bool BySquares(const Policy& policy) { return policy.Int(OptionId::kRereadScore) == 1; }

SecondReading Reading(const Policy& policy) {
  return {true, policy.Int(OptionId::kReread) == 1, policy.Int(OptionId::kRereadPart),
          policy.Real(OptionId::kRereadShare), BySquares(policy)};
}

void Program(const Policy& policy, int32_t, ScoreProgram* p) {
  const int32_t w = policy.Int(OptionId::kWindow);
  p->Add(ScoreOp::kMaxima, 1);
  if (AuxCount(policy) > 0) {
    p->Add(ScoreOp::kLoad, 2, 0);
    p->Add(BySquares(policy) ? ScoreOp::kAdd : ScoreOp::kMax, 1, 2);
    p->Add(ScoreOp::kStore, 0, 1);
  }
  ScoreInstr& pool = p->Add(ScoreOp::kPool, 0, 1);
  pool.pool = PoolingOf(policy), pool.tail = w;
  p->Add(ScoreOp::kInfinite, 0).tail = w;
}

constexpr Scorer Row() {
  Scorer row{"reconstruct", kNeedsNothing, kOptions, ProtectWindow, Program};
  row.n_aux = AuxCount, row.reading = Reading;
  return row;
}

}  // namespace

extern const Scorer kScorerReconstruct = Row();

}  // namespace kvc
