#include "tools/tune/ladder.h"

#include "tools/tune/bounds.h"

namespace kvc::tool {

LadderTest::LadderTest(const std::vector<int32_t>& rungs, int64_t n_draws, bool is_binary, double max_loss,
                       double confidence)
    : n_draws_(n_draws),
      is_binary_(is_binary),
      max_loss_(max_loss),
      level_((1 - confidence) / static_cast<double>(rungs.size())) {
  for (const int32_t n : rungs) {
    ladders_.emplace_back(static_cast<size_t>(n));
    open_.push_back(static_cast<size_t>(n));
  }
}

void LadderTest::Add(size_t ladder, size_t rung, double loss) {
  Rung& at = ladders_[ladder][rung];
  at.total_loss += loss;
  ++at.n;
}

double LadderTest::PValue(size_t ladder, size_t rung) const {
  const Rung& at = ladders_[ladder][rung];
  return RiskPValue(at.total_loss, n_draws_, max_loss_, is_binary_);
}

// A p-value only rises with more loss: what is above the level now stays there.
void LadderTest::EndDraw() {
  for (size_t ladder = 0; ladder < ladders_.size(); ++ladder) {
    size_t n = 0;
    while (n < open_[ladder] && PValue(ladder, n) <= level_) ++n;
    open_[ladder] = n;
  }
}

size_t LadderTest::CountPassed(size_t ladder) const {
  size_t n = 0;
  while (n < open_[ladder] && At(ladder, n).n == n_draws_ && PValue(ladder, n) <= level_) ++n;
  return n;
}

}  // namespace kvc::tool
