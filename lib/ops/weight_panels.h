// Weights in panels: 16 rows side by side, so that one vector load brings the same columns of many rows. Rows
// are lanes: however many rows of activations are multiplied, every output adds its columns in the same
// order.
//
// A panel holds rows [16 p, 16 p + 16); the last one is filled up with rows of zeros. Panels follow each
// other:
//   f32, f16, bf16   [cols][16 rows] elements
//   int8             [cols / 4][16 rows][4 columns] bytes, code + 128
//   int4             [cols / 8][16 rows][4] bytes, code + 8 in four bits: columns 0 to 3 of eight below, 4 to
//                    7 above
//   scales           of int8 and int4: [cols / group][16 rows] f16 a panel, apart from the codes
//   q4_k, q6_k       [cols / 256] blocks of 16 rows, each with its scales before its codes (weight_blocks.h)
// Codes are unsigned because processors multiply unsigned by signed bytes; the excess is taken off by the sum
// of the activations of a group. One geometry serves every instruction set: 16 lanes are one vector of
// AVX-512, two of AVX2, four of NEON, and a file packed on one machine is mapped by all.
//
// Portable on purpose: packed files come from other machines, and nobody needs to trust them.
#pragma once
#include <cstdint>

#include "lib/ops/tensor.h"

namespace kvc {

constexpr int32_t kPanelLanes = 16;

// One row a weight type. pack and row are each other's inverse.
struct PanelFormat {
  const char* name;  // "f32x16", for people
  WeightType type;
  int32_t columns;  // that lie together: every group has a multiple of them
  // Elements of one panel from rows [row, row + 16) of a row-major weight; rows beyond its end become zeros.
  void (*pack)(const Weight& from, int32_t row, uint8_t* to);
  // Row `lane` of a panel as the row-major weight has it.
  void (*unpack)(const uint8_t* panel, int32_t cols, int32_t lane, uint8_t* to);
};

const PanelFormat& PanelFormatOf(WeightType type);
// Whether the panels of its type can hold a weight of this shape. Each matrix of a stack has whole panels.
bool FitsPanels(const Weight& w);

inline int32_t PanelsOf(int32_t rows) { return (rows + kPanelLanes - 1) / kPanelLanes; }
// Scales of a row that lie apart from its codes.
inline int64_t RowScales(const Weight& w) {
  return InfoOf(w.type).scales_apart && w.group > 0 ? w.cols / w.group : 0;
}
// Bytes of elements or codes of one panel; scales (numbers of f16) of one panel.
inline int64_t PanelBytes(const Weight& w) {
  const WeightTypeInfo& info = InfoOf(w.type);
  return kPanelLanes * ((int64_t{w.cols} + info.block - 1) / info.block * info.panel_bytes);
}
inline int64_t PanelScales(const Weight& w) { return kPanelLanes * RowScales(w); }
// What a row takes in the layout of w, scales apart not counted.
inline int64_t StoredRowBytes(const Weight& w) {
  return w.layout == WeightLayout::kRowMajor ? WeightRowBytes(w.type, w.cols) : PanelBytes(w) / kPanelLanes;
}

// Rows as they count in a layout: those of whole panels.
inline int64_t StoredRows(const Weight& w) {
  return w.layout == WeightLayout::kRowMajor ? w.rows : int64_t{PanelsOf(w.rows)} * kPanelLanes;
}

// Elements or codes, zeros up to a multiple of 64, then scales: sections of model files, and prepared
// weights.
struct WeightPlace {
  int64_t data_bytes = 0, scales_offset = 0, scales_bytes = 0, n_bytes = 0;
};
WeightPlace PlaceOf(const Weight& w);

// The shape of `w` in panels, without data.
inline Weight ShapeInPanels(const Weight& w) {
  return {w.type, WeightLayout::kPanels16, w.rows, w.cols, w.group, nullptr, nullptr, w.stack};
}
// The same with its data at `to` [PlaceOf(result).n_bytes], 64-byte aligned.
Weight PanelsAt(const Weight& from, uint8_t* to);
// Matrix i of a stack, where it lies in it.
Weight MatrixOf(const Weight& stack, int32_t i);
// Panel p of the elements or codes of a row-major weight to [PanelBytes], its scales to [PanelScales].
void PackElements(const Weight& from, int32_t p, uint8_t* to);
void PackScales(const Weight& from, int32_t p, uint16_t* to);
// Both, to where they belong in a whole weight at `to`.
void PackPanel(const Weight& from, int32_t p, uint8_t* to);
// Row r of panels as a row-major weight has it: WeightRowBytes(type, cols) bytes, RowScales(w) scales.
void UnpackRow(const Weight& w, int32_t r, uint8_t* data, uint16_t* scales);

}  // namespace kvc
