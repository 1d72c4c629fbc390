// NACL: attention of proxy rows, and a sampled part by Gumbel keys. methods.md 2.17.
#include <algorithm>

#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"
#include "lib/compress/scorers/shared.h"

namespace kvc {
namespace {

constexpr OptionId kOptions[] = {OptionId::kNSink, OptionId::kRecent, OptionId::kProxyRows,
                                 OptionId::kRandomFraction, OptionId::kSeed};
constexpr int32_t kDefaultRecent = 32, kAllRows = 1 << 28;

Protected Protect(const Policy& policy, int32_t) {
  const int32_t recent = policy.Int(OptionId::kRecent);
  return {policy.Int(OptionId::kNSink), recent < 0 ? kDefaultRecent : recent};
}

int32_t Rows(const Policy& policy, int32_t n) {
  const int32_t rows = policy.Int(OptionId::kProxyRows);
  return rows < 0 ? std::max(32, n / 100) : rows;
}

void Program(const Policy& policy, int32_t, ScoreProgram* p) {
  p->rows.n_rows = kAllRows;
  p->Add(ScoreOp::kRows);
  p->Add(ScoreOp::kGroup, 0).group = GroupOf(policy);
}

void Select(const Policy& policy, SelectRule* rule) {
  rule->kind = SelectKind::kDraw;
  rule->random_share = policy.Real(OptionId::kRandomFraction);
  rule->seed = static_cast<uint64_t>(policy.Real(OptionId::kSeed));
}

constexpr Scorer Row() {
  Scorer row{"proxy_random", kNeedsNothing, kOptions, Protect, Program};
  row.window_rows = Rows;
  row.select = Select;
  row.incomparable = "splits by scores, and the sampled part of scorer proxy_random has no share in them";
  return row;
}

}  // namespace

extern const Scorer kScorerProxyRandom = Row();

}  // namespace kvc
