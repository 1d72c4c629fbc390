#include "lib/engine/lookup.h"

#include <algorithm>

namespace kvc {

// One pass from the newest place to the oldest: the first that agrees in as many tokens as can be asked for
// ends it.
int32_t LookUpDraft(Span<const int32_t> tokens, int32_t n_gram, int32_t* draft, int32_t cap) {
  const int64_t n = static_cast<int64_t>(tokens.size()), least = std::min(n_gram, 2);
  const auto at = [&](int64_t i) { return tokens[static_cast<size_t>(i)]; };
  int64_t best = 0, best_end = 0;  // tokens that agree, and where what followed begins
  for (int64_t end = n - 1; end >= least && best < n_gram; --end) {
    int64_t same = 0;
    while (same < std::min<int64_t>(n_gram, end) && at(end - 1 - same) == at(n - 1 - same)) ++same;
    if (same >= least && same > best) best = same, best_end = end;
  }
  const int32_t length = best == 0 ? 0 : static_cast<int32_t>(std::min<int64_t>(cap, n - best_end));
  std::copy_n(tokens.begin() + best_end, length, draft);
  return length;
}

}  // namespace kvc
