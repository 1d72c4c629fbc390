#include "lib/ops/weight_panels.h"

#include <algorithm>
#include <cstring>

#include "lib/ops/weight_blocks.h"

namespace kvc {
namespace {

// T per element; columns of a row lie kPanelLanes apart.
template <typename T>
void PackPlain(const Weight& from, int32_t row, uint8_t* to) {
  const int32_t n = std::min(kPanelLanes, from.rows - row);
  T* out = reinterpret_cast<T*>(to);
  const T* in = static_cast<const T*>(from.data) + int64_t{row} * from.cols;
  for (int32_t c = 0; c < from.cols; ++c) {
    for (int32_t i = 0; i < n; ++i) out[int64_t{c} * kPanelLanes + i] = in[int64_t{i} * from.cols + c];
    for (int32_t i = n; i < kPanelLanes; ++i) out[int64_t{c} * kPanelLanes + i] = 0;
  }
}

template <typename T>
void UnpackPlain(const uint8_t* panel, int32_t cols, int32_t lane, uint8_t* to) {
  const T* in = reinterpret_cast<const T*>(panel) + lane;
  T* out = reinterpret_cast<T*>(to);
  for (int32_t c = 0; c < cols; ++c) out[c] = in[int64_t{c} * kPanelLanes];
}

constexpr int32_t kUnitBytes = 4;  // of one row of a panel of codes, side by side
constexpr int32_t kLineBytes = kPanelLanes * kUnitBytes;

void PackInt8(const Weight& from, int32_t row, uint8_t* to) {
  for (int32_t i = 0; i < kPanelLanes; ++i) {
    const uint8_t* in = static_cast<const uint8_t*>(from.data) + int64_t{row + i} * from.cols;
    uint8_t* out = to + kUnitBytes * i;
    for (int32_t c = 0; c < from.cols; c += 4, out += kLineBytes) {
      uint32_t word = 0;
      if (row + i < from.rows) std::memcpy(&word, in + c, 4);
      word ^= 0x80808080u;
      std::memcpy(out, &word, 4);
    }
  }
}

void UnpackInt8(const uint8_t* panel, int32_t cols, int32_t lane, uint8_t* to) {
  const uint8_t* in = panel + kUnitBytes * lane;
  for (int32_t c = 0; c < cols; c += 4, in += kLineBytes) {
    uint32_t word;
    std::memcpy(&word, in, 4);
    word ^= 0x80808080u;
    std::memcpy(to + c, &word, 4);
  }
}

// Of eight columns: nibbles 0 1 | 2 3 | 4 5 | 6 7 of four bytes become 0 4 | 1 5 | 2 6 | 3 7, and back.
void PackInt4(const Weight& from, int32_t row, uint8_t* to) {
  const int64_t row_bytes = from.cols / 2;
  for (int32_t i = 0; i < kPanelLanes; ++i) {
    const uint8_t* in = static_cast<const uint8_t*>(from.data) + (row + i) * row_bytes;
    uint8_t* out = to + kUnitBytes * i;
    for (int64_t b = 0; b < row_bytes; b += 4, out += kLineBytes) {
      uint8_t four[4] = {};
      if (row + i < from.rows) std::memcpy(four, in + b, 4);
      for (int j = 0; j < 4; ++j) {
        const int low = four[j / 2] >> (4 * (j % 2)) & 15, high = four[2 + j / 2] >> (4 * (j % 2)) & 15;
        out[j] = static_cast<uint8_t>((low | high << 4) ^ 0x88);
      }
    }
  }
}

void UnpackInt4(const uint8_t* panel, int32_t cols, int32_t lane, uint8_t* to) {
  const uint8_t* in = panel + kUnitBytes * lane;
  for (int32_t c = 0; c < cols; c += 8, in += kLineBytes, to += 4) {
    for (int j = 0; j < 2; ++j) {
      const int a = in[2 * j] ^ 0x88, b = in[2 * j + 1] ^ 0x88;
      to[j] = static_cast<uint8_t>((a & 15) | (b & 15) << 4);
      to[2 + j] = static_cast<uint8_t>(a >> 4 | (b & 0xf0));
    }
  }
}

constexpr PanelFormat kFormats[] = {
    {"f32x16", WeightType::kF32, 1, PackPlain<uint32_t>, UnpackPlain<uint32_t>},
    {"f16x16", WeightType::kF16, 1, PackPlain<uint16_t>, UnpackPlain<uint16_t>},
    {"bf16x16", WeightType::kBf16, 1, PackPlain<uint16_t>, UnpackPlain<uint16_t>},
    {"int8x16", WeightType::kInt8, 4, PackInt8, UnpackInt8},
    {"int4x16", WeightType::kInt4, 8, PackInt4, UnpackInt4},
    {"q4_kx16", WeightType::kQ4K, 256, PackQ4K, UnpackQ4K},
    {"q6_kx16", WeightType::kQ6K, 256, PackQ6K, UnpackQ6K},
};
static_assert(sizeof(kFormats) / sizeof(kFormats[0]) == kWeightTypeCount, "a row a type");

}  // namespace

const PanelFormat& PanelFormatOf(WeightType type) { return kFormats[static_cast<size_t>(type)]; }

bool FitsPanels(const Weight& w) {
  if (static_cast<size_t>(w.type) >= kWeightTypeCount || w.rows <= 0 || w.cols <= 0) return false;
  if (w.stack > 1 && w.rows / w.stack % kPanelLanes != 0) return false;
  if (!HasCodes(w.type)) return w.group == 0;
  if (HasBlocks(w.type)) return w.group == InfoOf(w.type).group && w.cols % InfoOf(w.type).block == 0;
  return w.group > 0 && w.cols % w.group == 0 && w.group % PanelFormatOf(w.type).columns == 0;
}

WeightPlace PlaceOf(const Weight& w) {
  WeightPlace place;
  place.data_bytes = StoredRowBytes(w) * StoredRows(w);
  place.n_bytes = place.data_bytes;
  if (RowScales(w) == 0) return place;
  place.scales_offset = (place.data_bytes + 63) / 64 * 64;
  place.scales_bytes = StoredRows(w) * RowScales(w) * 2;
  place.n_bytes = place.scales_offset + place.scales_bytes;
  return place;
}

Weight PanelsAt(const Weight& from, uint8_t* to) {
  Weight w = ShapeInPanels(from);
  w.data = to;
  if (RowScales(w) > 0) w.scales = reinterpret_cast<const uint16_t*>(to + PlaceOf(w).scales_offset);
  return w;
}

// Rows of a matrix, and its panels, follow each other in a stack as in one tall matrix.
Weight MatrixOf(const Weight& stack, int32_t i) {
  if (stack.stack == 1) return stack;
  Weight w = stack;
  w.stack = 1, w.rows = stack.rows / stack.stack;
  const int64_t row = int64_t{i} * w.rows;
  w.data = static_cast<const uint8_t*>(stack.data) + row * StoredRowBytes(w);
  if (RowScales(w) > 0) w.scales = stack.scales + row * RowScales(w);
  return w;
}

void PackElements(const Weight& from, int32_t p, uint8_t* to) {
  PanelFormatOf(from.type).pack(from, p * kPanelLanes, to);
}

void PackScales(const Weight& from, int32_t p, uint16_t* to) {
  const int64_t groups = RowScales(from);
  for (int64_t g = 0; g < groups; ++g) {
    for (int32_t i = 0; i < kPanelLanes; ++i) {
      const int64_t r = int64_t{p} * kPanelLanes + i;
      to[g * kPanelLanes + i] = r < from.rows ? from.scales[r * groups + g] : uint16_t{0};
    }
  }
}

// Panels of codes are multiples of 64 bytes, so nothing lies between codes and scales apart from them.
void PackPanel(const Weight& from, int32_t p, uint8_t* to) {
  PackElements(from, p, to + p * PanelBytes(from));
  if (RowScales(from) == 0) return;
  uint16_t* scales = reinterpret_cast<uint16_t*>(to + PlaceOf(ShapeInPanels(from)).scales_offset);
  PackScales(from, p, scales + p * PanelScales(from));
}

void UnpackRow(const Weight& w, int32_t r, uint8_t* data, uint16_t* scales) {
  const int32_t p = r / kPanelLanes, lane = r % kPanelLanes;
  PanelFormatOf(w.type).unpack(static_cast<const uint8_t*>(w.data) + p * PanelBytes(w), w.cols, lane, data);
  for (int64_t g = 0; g < RowScales(w); ++g)
    scales[g] = w.scales[p * PanelScales(w) + g * kPanelLanes + lane];
}

}  // namespace kvc
