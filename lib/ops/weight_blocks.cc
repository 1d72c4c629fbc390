#include "lib/ops/weight_blocks.h"

#include <cstring>

#include "lib/base/half.h"
#include "lib/ops/weight_panels.h"

namespace kvc {
namespace {

constexpr int32_t kLine = 64, kUnitBytes = 4;  // of a panel; of one row in it
constexpr int32_t kQ4Bytes = InfoOf(WeightType::kQ4K).block_bytes;
constexpr int32_t kQ6Bytes = InfoOf(WeightType::kQ6K).block_bytes;
constexpr int32_t kQ4Panel = kPanelLanes * InfoOf(WeightType::kQ4K).panel_bytes;
constexpr int32_t kQ6Panel = kPanelLanes * InfoOf(WeightType::kQ6K).panel_bytes;
constexpr int32_t kQ4Groups = 8, kQ6Groups = 16;
// Of a block of 16 rows: what lies where.
constexpr int32_t kScales = kLine, kQ4Least = kScales + kQ4Groups * kPanelLanes,
                  kQ4Codes = kQ4Least + kQ4Groups * kPanelLanes, kQ6Codes = kScales + kQ6Groups * kPanelLanes;
static_assert(kQ4Codes + 32 * kLine == kQ4Panel && kQ6Codes + 48 * kLine == kQ6Panel, "whole lines");

float Half(const uint8_t* p) { return F16ToFloat(static_cast<uint16_t>(p[0] | p[1] << 8)); }

// ---- blocks taken apart, codes as they are stored: 0 to 15, 0 to 63 ----

struct Q4 {
  uint8_t halves[4];  // d, least
  uint8_t scale[kQ4Groups], least[kQ4Groups], code[kBlockColumns];
};
struct Q6 {
  uint8_t halves[2];  // d
  uint8_t scale[kQ6Groups], code[kBlockColumns];
};

void Read(const uint8_t* in, Q4* q) {
  std::memcpy(q->halves, in, 4);
  ReadSixBits(in + 4, q->scale, q->least);
  for (int32_t c = 0; c < kBlockColumns; ++c)
    q->code[c] = in[16 + c / 64 * 32 + c % 32] >> (c % 64 / 32 * 4) & 15;
}

void Write(const Q4& q, uint8_t* out) {
  std::memcpy(out, q.halves, 4);
  for (int32_t g = 0; g < 4; ++g) {
    out[4 + g] = static_cast<uint8_t>(q.scale[g] | (q.scale[g + 4] >> 4) << 6);
    out[8 + g] = static_cast<uint8_t>(q.least[g] | (q.least[g + 4] >> 4) << 6);
    out[12 + g] = static_cast<uint8_t>((q.scale[g + 4] & 15) | (q.least[g + 4] & 15) << 4);
  }
  for (int32_t i = 0; i < 128; ++i) {
    const uint8_t* code = q.code + i / 32 * 64 + i % 32;
    out[16 + i] = static_cast<uint8_t>(code[0] | code[32] << 4);
  }
}

void Read(const uint8_t* in, Q6* q) {
  std::memcpy(q->halves, in + 208, 2);
  std::memcpy(q->scale, in + 192, kQ6Groups);
  for (int32_t c = 0; c < kBlockColumns; ++c) {
    const int low = in[c / 128 * 64 + c % 64] >> (c % 128 / 64 * 4) & 15;
    const int high = in[128 + c / 128 * 32 + c % 32] >> (c % 128 / 32 * 2) & 3;
    q->code[c] = static_cast<uint8_t>(low | high << 4);
  }
}

void Write(const Q6& q, uint8_t* out) {
  std::memset(out, 0, 192);
  for (int32_t c = 0; c < kBlockColumns; ++c) {
    uint8_t &low = out[c / 128 * 64 + c % 64], &high = out[128 + c / 128 * 32 + c % 32];
    low = static_cast<uint8_t>(low | (q.code[c] & 15) << (c % 128 / 64 * 4));
    high = static_cast<uint8_t>(high | (q.code[c] >> 4) << (c % 128 / 32 * 2));
  }
  std::memcpy(out + 192, q.scale, kQ6Groups);
  std::memcpy(out + 208, q.halves, 2);
}

// ---- row `lane` of a block of 16 rows ----

void ReadLane(const uint8_t* at, int32_t lane, Q4* q) {
  std::memcpy(q->halves, at + 2 * lane, 2);
  std::memcpy(q->halves + 2, at + 2 * (kPanelLanes + lane), 2);
  for (int32_t g = 0; g < kQ4Groups; ++g) {
    q->scale[g] = at[kScales + g * kPanelLanes + lane];
    q->least[g] = at[kQ4Least + g * kPanelLanes + lane];
  }
  for (int32_t c = 0; c < kBlockColumns; ++c)
    q->code[c] = at[kQ4Codes + c / 8 * kLine + lane * kUnitBytes + c % 4] >> (c % 8 / 4 * 4) & 15;
}

// Four columns at once: a word is a byte each of four of them.
uint32_t Word(const uint8_t* at) {
  uint32_t word;
  std::memcpy(&word, at, 4);
  return word;
}
void SetWord(uint8_t* at, uint32_t word) { std::memcpy(at, &word, 4); }
constexpr uint32_t kLow4 = 0x0f0f0f0f, kLow2 = 0x03030303;

void WriteLane(const uint8_t* in, int32_t lane, uint8_t* at, const Q4*) {
  uint8_t scale[kQ4Groups], least[kQ4Groups];
  ReadSixBits(in + 4, scale, least);
  std::memcpy(at + 2 * lane, in, 2);
  std::memcpy(at + 2 * (kPanelLanes + lane), in + 2, 2);
  for (int32_t g = 0; g < kQ4Groups; ++g) {
    at[kScales + g * kPanelLanes + lane] = scale[g];
    at[kQ4Least + g * kPanelLanes + lane] = least[g];
  }
  uint8_t* line = at + kQ4Codes + lane * kUnitBytes;
  for (const uint8_t* codes = in + 16; codes < in + kQ4Bytes; codes += 32) {  // 64 columns
    for (int32_t shift = 0; shift < 8; shift += 4) {
      for (int32_t i = 0; i < 32; i += 8, line += kLine) {
        const uint32_t first = Word(codes + i) >> shift & kLow4,
                       second = Word(codes + i + 4) >> shift & kLow4;
        SetWord(line, first | second << 4);
      }
    }
  }
}

void ReadLane(const uint8_t* at, int32_t lane, Q6* q) {
  std::memcpy(q->halves, at + 2 * lane, 2);
  for (int32_t g = 0; g < kQ6Groups; ++g) {
    q->scale[g] = at[kScales + g * kPanelLanes + lane];
    const uint8_t* three = at + kQ6Codes + g * 3 * kLine + lane * kUnitBytes;
    for (int32_t c = 0; c < 16; ++c) {
      const int low = three[c / 8 * kLine + c % 4] >> (c % 8 / 4 * 4) & 15;
      const int high = three[2 * kLine + c % 4] >> (c / 4 * 2) & 3;
      q->code[16 * g + c] = static_cast<uint8_t>(low | high << 4);
    }
  }
}

void WriteLane(const uint8_t* in, int32_t lane, uint8_t* at, const Q6*) {
  std::memcpy(at + 2 * lane, in + 208, 2);
  uint8_t* line = at + kQ6Codes + lane * kUnitBytes;
  for (int32_t g = 0; g < kQ6Groups; ++g, line += 3 * kLine) {
    at[kScales + g * kPanelLanes + lane] = in[192 + g];
    const int32_t half = g / 8, c = g % 8 * 16;
    const uint8_t *low = in + half * 64 + c % 64, *high = in + 128 + half * 32 + c % 32;
    uint32_t lines[3] = {};
    for (int32_t i = 0; i < 4; ++i) {
      lines[i / 2] |= (Word(low + 4 * i) >> (c / 64 * 4) & kLow4) << (i % 2 * 4);
      lines[2] |= (Word(high + 4 * i) >> (c / 32 * 2) & kLow2) << (i * 2);
    }
    for (int32_t i = 0; i < 3; ++i) SetWord(line + i * kLine, lines[i]);
  }
}

// ---- values ----

void Value(const Q4& q, WeightBlock* out) {
  const float d = Half(q.halves), least = Half(q.halves + 2);
  for (int32_t g = 0; g < kQ4Groups; ++g) {
    out->scale[g] = d * static_cast<float>(q.scale[g]);
    out->least[g] = least * static_cast<float>(q.least[g]);
  }
  std::memcpy(out->code, q.code, kBlockColumns);
}

void Value(const Q6& q, WeightBlock* out) {
  const float d = Half(q.halves);
  for (int32_t g = 0; g < kQ6Groups; ++g) {
    out->scale[g] = d * static_cast<float>(static_cast<int8_t>(q.scale[g]));
    out->least[g] = 0;
  }
  for (int32_t c = 0; c < kBlockColumns; ++c) out->code[c] = static_cast<int8_t>(q.code[c] - 32);
}

// Rows beyond the last one are zeros, every value 0.
template <typename Q>
void PackBlocks(const Weight& from, int32_t row, int32_t block_bytes, int32_t panel_bytes, uint8_t* to) {
  const int64_t row_bytes = WeightRowBytes(from.type, from.cols);
  const uint8_t* rows = static_cast<const uint8_t*>(from.data) + row * row_bytes;
  const int32_t n = from.rows - row < kPanelLanes ? from.rows - row : kPanelLanes;
  for (int32_t b = 0; b < from.cols / kBlockColumns; ++b, to += panel_bytes) {
    std::memset(to, 0, static_cast<size_t>(n < kPanelLanes ? panel_bytes : kLine));
    for (int32_t i = 0; i < n; ++i)
      WriteLane(rows + i * row_bytes + int64_t{b} * block_bytes, i, to, static_cast<const Q*>(nullptr));
  }
}

template <typename Q>
void UnpackBlocks(const uint8_t* panel, int32_t cols, int32_t lane, int32_t block_bytes, int32_t panel_bytes,
                  uint8_t* to) {
  for (int32_t b = 0; b < cols / kBlockColumns; ++b, panel += panel_bytes, to += block_bytes) {
    Q q;
    ReadLane(panel, lane, &q);
    Write(q, to);
  }
}

template <typename Q>
void ReadOf(const Weight& w, int32_t r, int32_t b, WeightBlock* out) {
  const uint8_t* data = static_cast<const uint8_t*>(w.data);
  const WeightTypeInfo& info = InfoOf(w.type);
  Q q;
  if (w.layout == WeightLayout::kRowMajor) {
    Read(data + r * WeightRowBytes(w.type, w.cols) + int64_t{b} * info.block_bytes, &q);
  } else {
    const int64_t block = int64_t{r / kPanelLanes} * (w.cols / kBlockColumns) + b;
    ReadLane(data + block * kPanelLanes * info.panel_bytes, r % kPanelLanes, &q);
  }
  Value(q, out);
}

}  // namespace

void ReadSixBits(const uint8_t* in, uint8_t* scale, uint8_t* least) {
  for (int32_t g = 0; g < 4; ++g) {
    scale[g] = in[g] & 63, least[g] = in[g + 4] & 63;
    scale[g + 4] = static_cast<uint8_t>((in[g + 8] & 15) | (in[g] >> 6) << 4);
    least[g + 4] = static_cast<uint8_t>(in[g + 8] >> 4 | (in[g + 4] >> 6) << 4);
  }
}

void ReadBlock(const Weight& w, int32_t r, int32_t b, WeightBlock* out) {
  switch (w.type) {
    case WeightType::kQ4K:
      return ReadOf<Q4>(w, r, b, out);
    case WeightType::kQ6K:
      return ReadOf<Q6>(w, r, b, out);
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBf16:
    case WeightType::kInt8:
    case WeightType::kInt4:
      return;  // these have no blocks
  }
}

void ReadBlockOf(WeightType type, const uint8_t* block, WeightBlock* out) {
  ReadBlock({type, WeightLayout::kRowMajor, 1, kBlockColumns, InfoOf(type).group, block, nullptr}, 0, 0, out);
}

BlockHalves HalvesOf(WeightType type, WeightLayout layout) {
  const bool rows = layout == WeightLayout::kRowMajor;
  switch (type) {
    case WeightType::kQ4K:
      return rows ? BlockHalves{kQ4Bytes, 0, 2} : BlockHalves{kQ4Panel, 0, 2 * kPanelLanes};
    case WeightType::kQ6K:
      return rows ? BlockHalves{kQ6Bytes, 208, 1} : BlockHalves{kQ6Panel, 0, kPanelLanes};
    case WeightType::kF32:
    case WeightType::kF16:
    case WeightType::kBf16:
    case WeightType::kInt8:
    case WeightType::kInt4:
      break;  // these have no blocks
  }
  return {};
}

SixBitBytes SixBitBytesOfPanels() { return {kScales, kQ4Codes, 63}; }

void PackQ4K(const Weight& from, int32_t row, uint8_t* to) {
  PackBlocks<Q4>(from, row, kQ4Bytes, kQ4Panel, to);
}
void PackQ6K(const Weight& from, int32_t row, uint8_t* to) {
  PackBlocks<Q6>(from, row, kQ6Bytes, kQ6Panel, to);
}
void UnpackQ4K(const uint8_t* panel, int32_t cols, int32_t lane, uint8_t* to) {
  UnpackBlocks<Q4>(panel, cols, lane, kQ4Bytes, kQ4Panel, to);
}
void UnpackQ6K(const uint8_t* panel, int32_t cols, int32_t lane, uint8_t* to) {
  UnpackBlocks<Q6>(panel, cols, lane, kQ6Bytes, kQ6Panel, to);
}

}  // namespace kvc
