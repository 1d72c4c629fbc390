// Entries stay whose keys differ most from the mean direction of all keys. methods.md 2.20.
#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"
#include "lib/compress/scorers/shared.h"

namespace kvc {
namespace {

void Program(const Policy&, int32_t, ScoreProgram* p) {
  p->Add(ScoreOp::kKeyCosine, 0);
  p->Add(ScoreOp::kScale, 0).x = -1.0f;
}

}  // namespace

extern const Scorer kScorerKeyDifference = {"key_difference", kNeedsNothing, {}, ProtectNewest, Program};

}  // namespace kvc
