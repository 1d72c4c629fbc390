// SpindleKV: kept keys and values are replaced by a direction of a shared codebook and a magnitude
// (methods.md 2.16 d).
#include "lib/compress/reducers.h"

namespace kvc {

constexpr Reducer kReducerCodebook = {
    "codebook",
    {OptionId::kThetaK, OptionId::kThetaV, OptionId::kTail, OptionId::kSpindleScope, OptionId::kSpindleCode,
     OptionId::kSpindleMagnitude, OptionId::kSpindleMaxBytes},
    nullptr,
    MergeKind::kNone,
    /*codebook=*/true};

}  // namespace kvc
