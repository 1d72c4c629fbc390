// Ada-Pyramid: budgets by layer as PyramidKV, by head as Ada-KV.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodAdaPyramid = {"ada-pyramid",
                                      "PyramidKV's layer budgets, divided between heads as in Ada-SnapKV",
                                      "Feng et al., Ada-KV; methods.md 2.12",
                                      &kAllocatorAdaPyramid,
                                      &kScorerWindow,
                                      &kReducerEvict,
                                      DecodeMode::kGrow,
                                      PositionMode::kOriginal,
                                      {{OptionId::kBeta, 20}, {OptionId::kAdaFloor, 0.2}}};

}  // namespace kvc
