// Unicode normal form C.
#pragma once
#include <string>

#include "lib/base/span.h"
#include "lib/base/status.h"

namespace kvc {

// `text` must be valid UTF-8; its normal form goes to *out. Linear but for runs of combining marks, which are
// sorted.
Status NormalizeNfc(Span<const uint8_t> text, std::string* out);

}  // namespace kvc
