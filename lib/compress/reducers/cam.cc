// CaM: the value of an evicted entry may be added to the kept entries that follow it (methods.md 2.9). Needs
// accumulated attention.
#include "lib/compress/reducers.h"

namespace kvc {

constexpr Reducer kReducerCam = {"cam",
                                 ReduceKind::kCam,
                                 kNeedsColumnSums,
                                 {OptionId::kMergeBudget, OptionId::kCamExpected, OptionId::kCamDenominator,
                                  OptionId::kSeed, OptionId::kSequence}};

}  // namespace kvc
