#include "models/convert/columns_first.h"

#include <algorithm>

namespace kvc {
namespace {

constexpr int32_t kColumns = 64;  // read before they are written side by side

// columns [n_cols][(n - 1) * step + 1] to columns [col, col + n_cols) of rows [n][cols].
template <typename Element>
void Transpose(const uint8_t* columns, int64_t n, int64_t step, int32_t n_cols, int32_t col, int32_t cols,
               uint8_t* rows) {
  const int64_t column = (n - 1) * step + 1;
  for (int64_t r = 0; r < n; ++r) {
    Element* out = reinterpret_cast<Element*>(rows) + r * cols + col;
    const Element* in = reinterpret_cast<const Element*>(columns) + r * step;
    for (int32_t c = 0; c < n_cols; ++c) out[c] = in[c * column];
  }
}

}  // namespace

size_t ColumnsFirstBytes(int64_t n, int32_t step, int64_t element_bytes) {
  return static_cast<size_t>(kColumns * ((n - 1) * step + 1) * element_bytes);
}

Status ReadColumnsFirst(const SourceFile& file, const SourceTensor::Run& run, int64_t first, int64_t n,
                        int32_t cols, int64_t element_bytes, uint8_t* read, uint8_t* out) {
  const int64_t column = ((n - 1) * run.step + 1) * element_bytes;
  const int64_t offset = run.offset + first * run.step * element_bytes;
  for (int32_t col = 0; col < cols; col += kColumns) {
    const int32_t n_cols = std::min(kColumns, cols - col);
    for (int32_t c = 0; c < n_cols; ++c) {
      KVC_RETURN_IF_ERROR(file.Read(offset + (col + c) * run.column_bytes, read + c * column, column));
    }
    const auto transpose = element_bytes == 2 ? Transpose<uint16_t> : Transpose<uint32_t>;
    transpose(read, n, run.step, n_cols, col, cols, out);
  }
  return {};
}

}  // namespace kvc
