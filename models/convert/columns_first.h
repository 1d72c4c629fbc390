// Rows of a matrix that a source stores columns first.
#pragma once
#include <cstddef>
#include <cstdint>

#include "models/convert/checkpoint.h"

namespace kvc {

// What ReadColumnsFirst needs for n rows at most.
size_t ColumnsFirstBytes(int64_t n, int32_t step, int64_t element_bytes);
// Rows [first, first + n) of the run, each of `cols` elements of `element_bytes` (2 or 4), row by row to out.
// read: room for that many bytes, aligned to elements.
Status ReadColumnsFirst(const SourceFile& file, const SourceTensor::Run& run, int64_t first, int64_t n,
                        int32_t cols, int64_t element_bytes, uint8_t* read, uint8_t* out);

}  // namespace kvc
