// What a prompt is read once more with, for scorers that ask for it (lib/compress/scorers/reconstruct.cc).
#pragma once
#include "lib/engine/model.h"
#include "lib/model/forward.h"

namespace kvc {

// `tokens` again, cut into parts, each behind an instruction to repeat them and the last tokens of the part
// before: so the model knows where it is (KVzip, arXiv 2505.23416). n_tokens: length of the
// sequence that the prompt ends; it decides how long a part can be within the model's context.
Status MakeReread(const Model& model, Span<const int32_t> tokens, int32_t n_tokens, Reread* reread);

}  // namespace kvc
