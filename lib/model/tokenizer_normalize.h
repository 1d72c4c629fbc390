// Unicode normal form C.
#pragma once
#include "lib/base/memory_meter.h"
#include "lib/base/span.h"
#include "lib/base/status.h"

namespace kvc {

// `text` must be valid UTF-8. *out: its normal form, which is `text` itself where nothing changes, else lies
// in *storage. Linear; works on a few KiB at a time, or on one run of combining marks, which are sorted. All
// its memory is taken through the meter.
Status NormalizeNfc(Span<const uint8_t> text, MemoryMeter* meter, Buffer<uint8_t>* storage,
                    Span<const uint8_t>* out);

}  // namespace kvc
