// Scissorhands: entries whose attention was below average again and again are dropped, several at once.
// methods.md 2.5.
#include <algorithm>
#include <cmath>

#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"

namespace kvc {
namespace {

constexpr OptionId kOptions[] = {OptionId::kRecent, OptionId::kHistory, OptionId::kDrop,
                                 OptionId::kScissorMode};
constexpr int32_t kDefaultRecent = 10;

void History(const Policy& policy, HistoryRule* rule) {
  rule->length = policy.Int(OptionId::kHistory);
  rule->sums = policy.Int(OptionId::kScissorMode) == 1;
}

int32_t AuxCount(const Policy& policy) {
  HistoryRule rule;
  History(policy, &rule);
  return 1 + rule.words();
}

int32_t Rows(const Policy& policy, int32_t) { return policy.Int(OptionId::kHistory); }

Protected Protect(const Policy& policy, int32_t) {
  const int32_t recent = policy.Int(OptionId::kRecent);
  return {0, recent < 0 ? kDefaultRecent : recent};
}

void Program(const Policy& policy, int32_t, ScoreProgram* p) {
  p->rows.n_rows = policy.Int(OptionId::kHistory);
  p->Add(ScoreOp::kHistory);
  p->Add(ScoreOp::kLoad, 0, 0);
  if (!p->history.sums) p->Add(ScoreOp::kScale, 0).x = -1.0f;
}

void Select(const Policy& policy, SelectRule* rule) {
  rule->kind = SelectKind::kLowest;
  rule->drop = std::max(policy.Int(OptionId::kDrop), 0);
}

void Step(const Policy& policy, StepScoring* step) {
  HistoryRule rule;
  History(policy, &rule);
  step->rank = rule.sums ? RankBy::kAux : RankBy::kNegatedAux;
  step->instrs[step->n_instrs++] = {StepOp::kHistory, 0};
  step->needs_attention = true;
}

// Many entries go at once, and they must not be protected ones.
Status CheckSlots(const Policy& policy, int32_t budget) {
  const int32_t recent = Protect(policy, budget).n_recent, drop = policy.Int(OptionId::kDrop);
  const double dropped = drop < 0 ? budget / 2.0 : drop;
  double own_recent = GetOption(OptionId::kRecent).default_value;
  for (const OptionDefault& own : policy.method->defaults) {
    if (own.id == OptionId::kRecent) own_recent = own.value;
  }
  // With the preset's own recent part the published rule holds; whoever chooses another only has to leave as
  // much as a drop takes.
  const bool preset = recent == (own_recent < 0 ? kDefaultRecent : own_recent);
  if (preset ? budget >= recent + 1 + dropped : budget >= recent + std::floor(dropped)) return {};
  const std::string half =
      drop < 0 ? Format("half of the budget, which is %d", budget / 2) : Format("%d", drop);
  return Error(
      Code::kInvalid,
      "scissorhands needs a budget of at least recent%s + drop: recent = %d, drop = %s, but the budget is %d",
      preset ? " + 1" : "", recent, half.c_str(), budget);
}

constexpr Scorer Row() {
  Scorer row{"persistence", kNeedsNothing, kOptions, Protect, Program};
  row.n_aux = AuxCount;
  row.window_rows = Rows;
  row.select = Select;
  row.history = History;
  row.step = Step;
  row.check_slots = CheckSlots;
  row.incomparable =
      "compares the scores of heads, and the counters of scorer persistence are not comparable";
  row.clear_after_reduce = true;
  return row;
}

}  // namespace

extern const Scorer kScorerPersistence = Row();

}  // namespace kvc
