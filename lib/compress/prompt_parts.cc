// How much of a prompt is read at a time.
#include <algorithm>

#include "lib/compress/storage_plan.h"

namespace kvc {

int32_t StoragePlan::ChunkFor(int32_t n_before, int32_t given) const {
  if (policy_.keeps_all()) return 0;
  if (policy_.Flag(OptionId::kChunkCompress)) return given > kChunk ? kChunk : 0;
  if (!policy_.endless() || policy_.compresses_once() || policy_.reads_by_steps() ||
      shape_.trained_tokens == 0)
    return 0;
  const int32_t budget = BudgetFor(n_before + given), known = shape_.trained_tokens;
  if (int64_t{std::min(n_before, budget)} + given <= known) return 0;
  const int32_t chunk = std::clamp(known - budget, kLeastChunk, kChunk);
  return given > chunk ? chunk : 0;
}

int32_t StoragePlan::TokensAtOnce(int32_t n_before, int32_t given) const {
  if (const int32_t chunk = ChunkFor(n_before, given); chunk > 0) return chunk;
  if (!policy_.reads_by_steps()) return given;
  return std::clamp(BudgetFor(n_before + given) - n_before, 1, given);
}

}  // namespace kvc
