// What several scorers share: what they protect, and what options say of rows, pooling and groups.
#pragma once
#include "lib/compress/policy.h"

namespace kvc {

inline Protected ProtectWindow(const Policy& policy, int32_t) { return {0, policy.Int(OptionId::kWindow)}; }
// Scorers that look at no attention: what was just fed stays.
inline Protected ProtectNewest(const Policy&, int32_t) { return {0, 1}; }
inline int32_t WindowRows(const Policy& policy, int32_t) { return policy.Int(OptionId::kWindow); }
inline int32_t WindowResidual(const Policy& policy) { return policy.Int(OptionId::kWindow); }

inline Pooling PoolingOf(const Policy& policy) {
  return {policy.Int(OptionId::kPool) == 0 ? PoolKind::kMax : PoolKind::kAvg, policy.Int(OptionId::kKernel),
          policy.Int(OptionId::kAvgEdge) == 1};
}
inline GroupKind GroupOf(const Policy& policy) {
  return static_cast<GroupKind>(policy.Int(OptionId::kGqaAgg));
}

}  // namespace kvc
