// Ada-SnapKV with the floor of the paper instead of that of its code.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodAdaPaper = {
    "ada-paper",
    "Ada-SnapKV with half of every layer's budget given out equally, as printed",
    "Feng et al., Ada-KV; methods.md 2.11",
    &kAllocatorAda,
    &kScorerWindow,
    &kReducerEvict,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {{OptionId::kAdaFloor, 0.5}}};

}  // namespace kvc
