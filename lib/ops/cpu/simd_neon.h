// Advanced SIMD (Armv8.0) under the names the kernels use. Included inside the anonymous namespace of an isa
// file.
#pragma once

using F = float32x4_t;
using I = int32x4_t;
constexpr int kWidth = 4;
constexpr int kTileTokens =
    6;  // tokens of a float matrix tile: 4 x 6 sums, 6 tokens and a weight in 32 registers
constexpr int kTileVectors = 4,
              kTileRows = 6;   // sums of an attention tile: 4 vectors of keys (or channels) x 6 queries
constexpr int kTileHeads = 4;  // query heads of a cached tile: 4 entries x 4 heads
constexpr int kPanelVectors = 4, kPanelTokens = 4;  // int8: 4 vectors of rows x 4 tokens
constexpr int kTilePanels = 1, kFloatTileTokens = 6, kCodeTileTokens = 4;  // panels: 24 sums, 16 of codes
constexpr int kBlockStreams = 1, kStreams = 1, kAheadBytes = 4096, kAheadLevel = 2;  // not tuned
constexpr bool kMayReadInTurn = false;

inline F Zero() { return vdupq_n_f32(0); }
inline F Set(float x) { return vdupq_n_f32(x); }
inline F Load(const float* p) { return vld1q_f32(p); }
inline void Store(float* p, F x) { vst1q_f32(p, x); }
inline F LoadN(const float* p, int n) {  // zeros beyond n
  float all[4] = {};
  for (int i = 0; i < n; ++i) all[i] = p[i];
  return vld1q_f32(all);
}
inline void StoreN(float* p, int n, F x) {
  if (n == 4) return vst1q_f32(p, x);
  float all[4];
  vst1q_f32(all, x);
  for (int i = 0; i < n; ++i) p[i] = all[i];
}
inline F Add(F a, F b) { return vaddq_f32(a, b); }
inline F Sub(F a, F b) { return vsubq_f32(a, b); }
inline F Mul(F a, F b) { return vmulq_f32(a, b); }
inline F Div(F a, F b) { return vdivq_f32(a, b); }
inline F Max(F a, F b) { return vmaxq_f32(a, b); }  // NaN where one is NaN
inline F Min(F a, F b) { return vminq_f32(a, b); }
inline F Fma(F a, F b, F c) { return vfmaq_f32(c, a, b); }
inline F NegFma(F a, F b, F c) { return vfmsq_f32(c, a, b); }  // c - a b
inline F Abs(F a) { return vabsq_f32(a); }
inline F Round(F a) { return vrndnq_f32(a); }
inline F TimesPow2(F a, F n) {  // n: whole numbers in [-126, 127]
  return vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23)));
}
inline F ZeroWhereBelow(F x, F limit, F y) {  // y, 0 in lanes where x < limit
  return vbslq_f32(vcltq_f32(x, limit), vdupq_n_f32(0), y);
}
inline float Sum(F a) { return vaddvq_f32(a); }
inline float MaxOf(F a) { return vmaxvq_f32(a); }
// In lane i of every four what four lanes of the i-th vector add up to.
inline F SumsInFours(F a, F b, F c, F d) { return vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)); }
// out[0, 4) = the sums of a, b, c, d, each in the same order.
inline void Sum4(F a, F b, F c, F d, float* out) { vst1q_f32(out, SumsInFours(a, b, c, d)); }

// Lanes by fours, of a head each. SpreadHeads: x[0, n) to the lanes of n heads, what other lanes have is
// some number; StoreHeads: back.
inline F SpreadHeads(const float* x, int) { return vdupq_n_f32(*x); }
inline void StoreHeads(F a, int, float* x) { *x = vgetq_lane_f32(a, 0); }
// Of every four lanes: 0 with 1 and 2 with 3; the first two with the others.
inline F SwapNeighbours(F a) { return vrev64q_f32(a); }
inline F SwapPairs(F a) { return vextq_f32(a, a, 2); }
// The sums of four vectors of every head.
inline F SumsOfHeads(const F (*a)[4]) { return SumsInFours(a[0][0], a[0][1], a[0][2], a[0][3]); }

inline uint16x4_t LoadHalves(const uint16_t* p, int n) {  // the first n of 4, zeros behind
  uint16_t all[4] = {};
  for (int i = 0; i < n; ++i) all[i] = p[i];
  return vld1_u16(all);
}
inline void StoreHalves(uint16_t* p, int n, uint16x4_t x) {
  if (n == 4) return vst1_u16(p, x);
  uint16_t all[4];
  vst1_u16(all, x);
  for (int i = 0; i < n; ++i) p[i] = all[i];
}
inline F WidenF16(uint16x4_t x) { return vcvt_f32_f16(vreinterpret_f16_u16(x)); }
inline F WidenBf16(uint16x4_t x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }
inline F LoadF16(const uint16_t* p) { return WidenF16(vld1_u16(p)); }
inline F LoadF16N(const uint16_t* p, int n) { return WidenF16(LoadHalves(p, n)); }
inline F LoadBf16(const uint16_t* p) { return WidenBf16(vld1_u16(p)); }
inline F LoadBf16N(const uint16_t* p, int n) { return WidenBf16(LoadHalves(p, n)); }
inline void StoreF16N(uint16_t* p, int n, F x) { StoreHalves(p, n, vreinterpret_u16_f16(vcvt_f16_f32(x))); }
inline void StoreBf16N(uint16_t* p, int n, F x) {
  const uint32x4_t bits = vreinterpretq_u32_f32(x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t rounded = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));
  StoreHalves(p, n, vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet), 16));
}
inline F LoadI8N(const int8_t* p, int n) {
  int8_t all[8] = {};
  for (int i = 0; i < n; ++i) all[i] = p[i];
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vld1_s8(all)))));
}
inline F LoadI8(const uint8_t* p) {
  uint32_t four;
  __builtin_memcpy(&four, p, 4);
  const int8x8_t bytes = vreinterpret_s8_u32(vdup_n_u32(four));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))));
}
inline F LoadI4(const uint8_t* p) {  // two a byte, the lower half first, from -8 to 7
  uint16_t two;
  __builtin_memcpy(&two, p, 2);
  const uint8x8_t bytes = vreinterpret_u8_u16(vdup_n_u16(two));
  const int8x8_t codes = vreinterpret_s8_u8(vzip1_u8(vshl_n_u8(bytes, 4), vand_u8(bytes, vdup_n_u8(0xf0))));
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vshr_n_s8(codes, 4)))));
}
inline F LoadI2(const uint8_t* p) {  // four a byte, the lowest first: -3, -1, 1 or 3
  const int32_t down[4] = {0, -2, -4, -6};
  const uint32x4_t codes = vandq_u32(vshlq_u32(vdupq_n_u32(*p), vld1q_s32(down)), vdupq_n_u32(3));
  return vsubq_f32(vcvtq_f32_u32(vshlq_n_u32(codes, 1)), vdupq_n_f32(3));
}
inline F SetF16(uint16_t half) { return WidenF16(vdup_n_u16(half)); }
inline void StoreI8N(int8_t* p, int n, F x) {  // x: whole numbers in [-128, 127]
  const int16x4_t halves = vmovn_s32(vcvtq_s32_f32(x));
  int8_t all[8];
  vst1_s8(all, vmovn_s16(vcombine_s16(halves, halves)));
  for (int i = 0; i < n; ++i) p[i] = all[i];
}

inline I SetI(int32_t x) { return vdupq_n_s32(x); }
inline I LoadI(const int32_t* p) { return vld1q_s32(p); }
inline void StoreI(int32_t* p, I x) { vst1q_s32(p, x); }
inline I And(I a, I b) { return vandq_s32(a, b); }
inline I Or(I a, I b) { return vorrq_s32(a, b); }
// Bits moved up or down: those that come from a neighbouring byte elsewhere are the caller's to mask.
template <int n>
inline I BitsUp(I x) {
  return vreinterpretq_s32_u8(vshlq_n_u8(vreinterpretq_u8_s32(x), n));
}
template <int n>
inline I BitsDown(I x) {
  return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(x), n));
}
inline I HighNibbles(I bytes) { return vreinterpretq_s32_u8(vshrq_n_u8(vreinterpretq_u8_s32(bytes), 4)); }
inline I FlipSigns(I bytes) { return veorq_s32(bytes, vdupq_n_s32(static_cast<int32_t>(0x80808080u))); }
constexpr bool kUnsignedCodes = false;  // products take signed bytes
inline I Negative(I x) { return vnegq_s32(x); }
inline F ToFloat(I x) { return vcvtq_f32_s32(x); }
inline I AsI(F x) { return vreinterpretq_s32_f32(x); }
inline F AsF(I x) { return vreinterpretq_f32_s32(x); }

// r[i][j] -> r[j][i].
inline void Transpose(F* r) {
  const float32x4x2_t a = vtrnq_f32(r[0], r[1]), b = vtrnq_f32(r[2], r[3]);
  r[0] = vcombine_f32(vget_low_f32(a.val[0]), vget_low_f32(b.val[0]));
  r[1] = vcombine_f32(vget_low_f32(a.val[1]), vget_low_f32(b.val[1]));
  r[2] = vcombine_f32(vget_high_f32(a.val[0]), vget_high_f32(b.val[0]));
  r[3] = vcombine_f32(vget_high_f32(a.val[1]), vget_high_f32(b.val[1]));
}

// Integer products, a lane a row: a word holds four codes of a row.
constexpr int kUnit = 4;
constexpr bool kNarrowSums = false;
constexpr bool kBiased = false;
inline I DotWords(I sum, I weights, I x) {
  const int8x16_t w = vreinterpretq_s8_s32(weights), v = vreinterpretq_s8_s32(x);
#if defined(__ARM_FEATURE_DOTPROD)
  return vdotq_s32(sum, w, v);
#else
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(v)));
  const int32x4_t high = vpaddlq_s16(vmull_s8(vget_high_s8(w), vget_high_s8(v)));
  return vaddq_s32(sum, vpaddq_s32(low, high));
#endif
}
using CodeWord = I;
inline I CodeWordOf(I bytes) { return bytes; }
inline I AddProducts(I sum, I codes, I x) { return DotWords(sum, codes, x); }
#if defined(__ARM_FEATURE_MATMUL_INT8)
constexpr bool kPairProducts = true;
// sums {r0 t0, r0 t1, r1 t0, r1 t1} of rows 0, 1 (sums[0]) and 2, 3 (sums[1]) += products of eight columns of
// four rows, two words a row, with those of two tokens.
inline void AddPairProducts(I* sums, I words, I next_words, const int8_t* token, const int8_t* next_token) {
  const int8x16_t x = vcombine_s8(vld1_s8(token), vld1_s8(next_token));
  sums[0] = vmmlaq_s32(sums[0], vreinterpretq_s8_s32(vzip1q_s32(words, next_words)), x);
  sums[1] = vmmlaq_s32(sums[1], vreinterpretq_s8_s32(vzip2q_s32(words, next_words)), x);
}
// Those of one token, a lane a row.
inline I OfFirst(const I* sums) { return vuzp1q_s32(sums[0], sums[1]); }
inline I OfSecond(const I* sums) { return vuzp2q_s32(sums[0], sums[1]); }
inline I AddI(I a, I b) { return vaddq_s32(a, b); }
#else
constexpr bool kPairProducts = false;
#endif
inline I LoadWords(const int8_t* codes) { return vreinterpretq_s32_s8(vld1q_s8(codes)); }
inline void StoreActivations(const int8_t* codes, int32_t* words) { StoreI(words, LoadWords(codes)); }

// 16 bytes -> 32 codes, low nibble first.
inline void ExpandNibbles(const int8_t* in, int8_t* codes) {
  const int8x16_t pairs = vld1q_s8(in);
  int8x16x2_t both;
  both.val[0] = vshrq_n_s8(vshlq_n_s8(pairs, 4), 4);
  both.val[1] = vshrq_n_s8(pairs, 4);
  vst2q_s8(codes, both);
}

// sum[i] += (start + sum of w[i][j] * x[j] for j in [0, n)) * (factor * scale[i]), four rows; n a multiple
// of 32. start takes off what kShiftedDot adds.
constexpr bool kShiftedDot = false;
inline void AddRows4(const int8_t* const* w, const int8_t* x, int32_t n, int32_t start, float factor,
                     const float* scale, float* sum) {
  I part[4];
  for (int i = 0; i < 4; ++i) {
    part[i] = vdupq_n_s32(0);
    for (int32_t j = 0; j < n; j += 16) part[i] = DotWords(part[i], LoadWords(w[i] + j), LoadWords(x + j));
  }
  const I dot = vpaddq_s32(vpaddq_s32(part[0], part[1]), vpaddq_s32(part[2], part[3]));
  const F value = vcvtq_f32_s32(vaddq_s32(dot, vdupq_n_s32(start)));
  vst1q_f32(sum, vfmaq_f32(vld1q_f32(sum), value, vmulq_n_f32(vld1q_f32(scale), factor)));
}
