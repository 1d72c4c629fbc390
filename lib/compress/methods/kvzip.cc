// A document is read twice, and the best entries of all heads of all layers stay.
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {

constexpr Method kMethodKvzip = {"kvzip",
                                 "A document is read twice, and of all heads of all layers together the "
                                 "entries stay that the second reading looked at most",
                                 "Kim et al., KVzip: Query-Agnostic KV Cache Compression with Context "
                                 "Reconstruction (NeurIPS 2025, arXiv 2505.23416); methods.md 2.18",
                                 &kAllocatorGlobal,
                                 &kScorerReconstruct,
                                 &kReducerEvict,
                                 DecodeMode::kGrow,
                                 PositionMode::kOriginal,
                                 {{OptionId::kWindow, 1}, {OptionId::kKernel, 1}}};

}  // namespace kvc
