// Drafts from the text itself: what followed the newest tokens where they stood before.
#pragma once
#include <cstdint>

#include "lib/base/span.h"

namespace kvc {

// The tokens behind the newest earlier place of the longest suffix of `tokens` that has one, of n_gram tokens
// at most and two at least (one where n_gram is 1), to draft [cap]. Returns their number; 0: there is none.
// Time: n * n_gram.
int32_t LookUpDraft(Span<const int32_t> tokens, int32_t n_gram, int32_t* draft, int32_t cap);

}  // namespace kvc
