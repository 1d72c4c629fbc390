// A prompt's second reading, for scorers that ask for one (lib/compress/scorers/reconstruct.cc).
#pragma once
#include "lib/compress/method.h"
#include "lib/engine/model.h"
#include "lib/model/reread.h"

namespace kvc {

// Run again: `tokens` cut into parts, each behind an instruction to repeat them and the last tokens of the
// part before: so the model knows where it is (KVzip, arXiv 2505.23416). n_tokens: length of the sequence
// that the prompt ends; it decides how long a part that sees everything can be within the model's context. By
// its own queries: the prompt's rows, a chunk at a time (the library's own; docs/methods.md 2.13).
Status MakeReread(const Model& model, const SecondReading& reading, Span<const int32_t> tokens,
                  int32_t n_tokens, Reread* reread);
// What memory goes by, of n tokens: how many are run, the longest part, the one that sees most.
Status PlanReread(const Model& model, const SecondReading& reading, int32_t n, int32_t n_tokens,
                  Reread* reread);

}  // namespace kvc
