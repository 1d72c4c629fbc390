// What heads are worth, as a policy was given it or found it in the model file.
#pragma once
#include <cstdint>
#include <vector>

#include "lib/base/status.h"
#include "lib/compress/policy.h"

namespace kvc {

struct ModelShape;

struct HeadScores {
  std::vector<double> values;  // [L, G] or [L, H]; empty: none
  int32_t alpha = 0;           // chosen on validation; 0 = not
};

// Of a policy that wants some, for its budgets or for its heads' precisions. kNotFound: there are none;
// kInvalid: not one for each KV head or each query head. Both say what to do.
Status CheckHeadScores(const Policy& policy, const ModelShape& shape, const HeadScores& scores);

}  // namespace kvc
