// Unicode normal form C.
#pragma once
#include "lib/base/memory_meter.h"
#include "lib/base/span.h"
#include "lib/base/status.h"

namespace kvc {

// `text` must be valid UTF-8. *out: its normal form, which is `text` itself where nothing changes, else lies
// in *storage, taken through the meter. Linear but for runs of combining marks, which are sorted; works on a
// few KiB at a time, or on one such run.
Status NormalizeNfc(Span<const uint8_t> text, MemoryMeter* meter, Buffer<uint8_t>* storage,
                    Span<const uint8_t>* out);

}  // namespace kvc
