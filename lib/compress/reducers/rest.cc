// What is not kept becomes one entry a head: the mean key and the mean value of its tokens, with the weight
// of as many (methods.md 2.25). The library's own; such a weight is the proportional attention of Bolya et
// al., Token Merging (ICLR 2023, arXiv 2210.09461), and the votes of KeepKV (arXiv 2504.09936).
#include "lib/compress/reducers.h"

namespace kvc {

constexpr Reducer kReducerRest = {"rest", {}, nullptr, MergeKind::kIntoRest};

}  // namespace kvc
