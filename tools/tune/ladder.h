// Fixed sequence testing of ordered budgets: which of several ladders' rungs, tested from the largest budget
// down, keep the expected loss within a bound with a stated confidence. Sources and the argument:
// docs/quality.md.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvc::tool {

// What is known of one rung.
struct Rung {
  double total_loss = 0;
  int64_t n = 0;  // draws it was measured on
};

// Ladders of rungs, the safest first. Losses are added draw by draw; each draw is one independent context.
class LadderTest {
 public:
  // rungs: of each ladder, how many. n_draws: how many there will be. is_binary: every loss will be 0 or 1;
  // to be known beforehand. The confidence is shared by the ladders in equal parts, so that whichever passing
  // rung of whichever ladder is chosen keeps its promise.
  LadderTest(const std::vector<int32_t>& rungs, int64_t n_draws, bool is_binary, double max_loss,
             double confidence);

  // Whether a rung can still pass: it and all before it could if every later draw lost nothing.
  bool IsOpen(size_t ladder, size_t rung) const { return rung < open_[ladder]; }
  void Add(size_t ladder, size_t rung, double loss);  // in [0, 1], of the next draw; of open rungs only
  void EndDraw();                                     // closes what can no longer pass
  // After the last draw: the rungs of a ladder that passed, always its first ones.
  size_t CountPassed(size_t ladder) const;
  double PValue(size_t ladder, size_t rung) const;  // over all draws, those to come without loss
  const Rung& At(size_t ladder, size_t rung) const { return ladders_[ladder][rung]; }
  double level() const { return level_; }  // of each ladder's tests: the largest p-value that passes

 private:
  std::vector<std::vector<Rung>> ladders_;
  std::vector<size_t> open_;
  const int64_t n_draws_;
  const bool is_binary_;
  const double max_loss_, level_;
};

}  // namespace kvc::tool
