// Everything is kept, and a step reads the pages whose keys could matter to it.
#include "lib/compress/methods.h"

namespace kvc {

constexpr Method kMethodQuest = {
    "quest",
    "Keeps every entry, and at every step each head reads only the pages that could matter to the query: "
    "frees nothing, reads less",
    "Tang et al., Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference (arXiv 2406.10774); "
    "methods.md 2.24",
    nullptr,
    nullptr,
    nullptr,
    DecodeMode::kGrow,
    PositionMode::kOriginal,
    {{OptionId::kGqaAgg, 1}},
    /*budget_optional=*/false,
    /*reads_pages=*/true};

}  // namespace kvc
