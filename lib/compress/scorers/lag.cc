// LagKV: entries are ranked within parts of the text by how far they spread in the range of the next part.
// methods.md 2.21.
#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"

namespace kvc {
namespace {

constexpr OptionId kOptions[] = {OptionId::kNSink, OptionId::kLag};

Protected Protect(const Policy& policy, int32_t) { return {policy.Int(OptionId::kNSink), 1}; }

void Program(const Policy& policy, int32_t, ScoreProgram* p) {
  ScoreInstr& lag = p->Add(ScoreOp::kLag, 0);
  lag.head = policy.Int(OptionId::kNSink), lag.size = policy.Int(OptionId::kLag);
}

}  // namespace

extern const Scorer kScorerLag = {"lag", kNeedsNothing, kOptions, Protect, Program};

}  // namespace kvc
