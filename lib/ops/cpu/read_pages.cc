// A page's keys k lie between its bounds, least <= k <= greatest in every channel, so no logit of a query q
// is above sum of max(q_j greatest_j, q_j least_j) = max(q, 0) . greatest + min(q, 0) . least: one product of
// 2 D numbers a query head. Byte model: the bounds of every page, 1 / slots of its keys and values, and of
// the pages that are chosen these.
#include "lib/ops/cpu/read_pages.h"

#include <algorithm>

#include "lib/ops/cpu/select.h"

namespace kvc::cpu {

void PageChoice::Choose(int32_t n, int32_t* chosen) const {
  const PageFormat& f = pages.format();
  const int32_t n_pages = (pages.main_len() + f.slots - 1) / f.slots;
  for (int32_t h = 0; h < group; ++h) {
    for (int32_t j = 0; j < f.d; ++j) {
      const float x = q[h * f.d + j];
      float* part = parts + int64_t{2} * h * f.d + j;
      part[0] = std::max(x, 0.0f), part[f.d] = std::min(x, 0.0f);
    }
  }
  for (int32_t page = 0; page + 1 < n_pages; ++page) lines.scores[page] = Bound(page);
  SelectRule rule;
  rule.protect.n_recent = 1;
  SelectEntries({rule, lines.scores, nullptr, n_pages, n - 1, 0, lines.keys, lines.line, lines.marks});
  for (int32_t page = 0; page < n_pages; ++page) {
    if (lines.marks[page] != 0) *chosen++ = page;
  }
}

float PageChoice::Bound(int32_t page) const {
  const PageFormat& f = pages.format();
  kernels.decode_vectors(f.bound_format(), pages.Main(page * f.slots).page + f.bounds, nullptr, 2,
                         lines.vectors);
  float bound = 0;
  for (int32_t h = 0; h < group; ++h) {
    const float own = kernels.dot(parts + int64_t{2} * h * f.d, lines.vectors, 2 * f.d);
    bound = h == 0 ? own : group_by == GroupKind::kMax ? std::max(bound, own) : bound + own;
  }
  return bound;  // a mean is in the order of the sums
}

}  // namespace kvc::cpu
