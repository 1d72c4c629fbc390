// Entries with short keys stay: attention tends to go to them. methods.md 2.19.
#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"
#include "lib/compress/scorers/shared.h"

namespace kvc {
namespace {

void Program(const Policy&, int32_t, ScoreProgram* p) {
  p->Add(ScoreOp::kKeyNorms, 0);
  p->Add(ScoreOp::kSqrt, 0);
  p->Add(ScoreOp::kScale, 0).x = -1.0f;
}

}  // namespace

extern const Scorer kScorerKeyNorm = {"key_norm", kNeedsNothing, {}, ProtectNewest, Program};

}  // namespace kvc
