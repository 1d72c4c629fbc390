// AVX-512 (F, BW, DQ, VL) under the names the kernels use. Included inside the anonymous namespace of an isa
// file.
#pragma once

using F = __m512;
using I = __m512i;  // kWidth lanes of 32 bits
constexpr int kWidth = 16;
constexpr int kTileTokens =
    6;  // tokens of a float matrix tile: 4 x 6 sums, 6 tokens and a weight in 32 registers
constexpr int kTileVectors = 4,
              kTileRows = 6;   // sums of an attention tile: 4 vectors of keys (or channels) x 6 queries
constexpr int kTileHeads = 4;  // query heads of a cached tile: 4 entries x 4 heads
constexpr int kPanelVectors = 2, kPanelTokens = 6;  // int8: 2 vectors of rows x 6 tokens
constexpr int kTilePanels = 2, kFloatTileTokens = 12,
              kCodeTileTokens =
                  8;  // panels: 24 sums; 16 of codes, 16 of groups, of which some wait in memory
constexpr int kBlockStreams = 4, kStreams = 2, kAheadBytes = 2048, kAheadLevel = 3;
constexpr bool kMayReadInTurn = true;

inline __mmask16 First(int n) { return static_cast<__mmask16>((1u << n) - 1); }

inline F Zero() { return _mm512_setzero_ps(); }
inline F Set(float x) { return _mm512_set1_ps(x); }
inline F Load(const float* p) { return _mm512_loadu_ps(p); }
inline void Store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline F LoadN(const float* p, int n) { return _mm512_maskz_loadu_ps(First(n), p); }  // zeros beyond n
// Whole vectors go without a mask: a load of what was stored under one waits until it is in memory, behind
// all stores before it.
inline void StoreN(float* p, int n, F x) {
  n == kWidth ? Store(p, x) : _mm512_mask_storeu_ps(p, First(n), x);
}
inline F Add(F a, F b) { return _mm512_add_ps(a, b); }
inline F Sub(F a, F b) { return _mm512_sub_ps(a, b); }
inline F Mul(F a, F b) { return _mm512_mul_ps(a, b); }
inline F Div(F a, F b) { return _mm512_div_ps(a, b); }
inline F Max(F a, F b) { return _mm512_max_ps(a, b); }  // b where one is NaN
inline F Min(F a, F b) { return _mm512_min_ps(a, b); }
inline F Fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F NegFma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a b
inline F Abs(F a) { return _mm512_abs_ps(a); }
inline F Round(F a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F TimesPow2(F a, F n) { return _mm512_scalef_ps(a, n); }
inline F ZeroWhereBelow(F x, F limit, F y) {  // y, 0 in lanes where x < limit
  return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(x, limit, _CMP_LT_OQ), _mm512_setzero_ps());
}
inline float Sum(F a) { return _mm512_reduce_add_ps(a); }
inline float MaxOf(F a) { return _mm512_reduce_max_ps(a); }
// In lane i of every four what four lanes of the i-th vector add up to.
inline F SumsInFours(F a, F b, F c, F d) {
  const F ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
  const F cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
  return _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
}
// out[0, 4) = the sums of a, b, c, d, each in the same order.
inline void Sum4(F a, F b, F c, F d, float* out) {
  const F all = SumsInFours(a, b, c, d);
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

// Lanes by fours, of a head each. SpreadHeads: x[0, n) to the lanes of n heads, what other lanes have is
// some number; StoreHeads: back.
inline F SpreadHeads(const float* x, int n) {
  const __m512i head = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
  return _mm512_permutexvar_ps(head, LoadN(x, n));
}
inline void StoreHeads(F a, int n, float* x) {
  const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
  StoreN(x, n, _mm512_permutexvar_ps(first, a));
}
// Of every four lanes: 0 with 1 and 2 with 3; the first two with the others.
inline F SwapNeighbours(F a) { return _mm512_permute_ps(a, 0xb1); }
inline F SwapPairs(F a) { return _mm512_permute_ps(a, 0x4e); }
// The sums of four vectors of every head.
inline F SumsOfHeads(const F (*a)[4]) {
  F head[4];
  for (int h = 0; h < 4; ++h) head[h] = SumsInFours(a[h][0], a[h][1], a[h][2], a[h][3]);
  const F low = _mm512_add_ps(_mm512_shuffle_f32x4(head[0], head[1], 0x44),
                              _mm512_shuffle_f32x4(head[0], head[1], 0xee));
  const F high = _mm512_add_ps(_mm512_shuffle_f32x4(head[2], head[3], 0x44),
                               _mm512_shuffle_f32x4(head[2], head[3], 0xee));
  return _mm512_add_ps(_mm512_shuffle_f32x4(low, high, 0x88), _mm512_shuffle_f32x4(low, high, 0xdd));
}

inline F LoadF16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F LoadF16N(const uint16_t* p, int n) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(First(n), p)); }
inline F WidenBf16(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
inline F LoadBf16(const uint16_t* p) {
  return WidenBf16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline F LoadBf16N(const uint16_t* p, int n) { return WidenBf16(_mm256_maskz_loadu_epi16(First(n), p)); }
inline void StoreHalves(uint16_t* p, int n, __m256i x) {
  n == kWidth ? _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x)
              : _mm256_mask_storeu_epi16(p, First(n), x);
}
inline void StoreF16N(uint16_t* p, int n, F x) {
  StoreHalves(p, n, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void StoreBf16N(uint16_t* p, int n, F x) {
  const I bits = _mm512_castps_si512(x);
  const I odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const I rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const I quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  const I result = _mm512_mask_mov_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
  StoreHalves(p, n, _mm512_cvtepi32_epi16(_mm512_srli_epi32(result, 16)));
}
inline F LoadI8N(const int8_t* p, int n) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(First(n), p)));
}
inline F WidenI8(__m128i x) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(x)); }
inline F LoadI8(const uint8_t* p) { return WidenI8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
// Codes two a byte, low nibble first: each lane moves its own down, and looks up what number it is.
inline F LoadI4(const uint8_t* p) {
  int32_t low, high;
  __builtin_memcpy(&low, p, 4);
  __builtin_memcpy(&high, p + 4, 4);
  const __m512i codes = _mm512_mask_set1_epi32(_mm512_set1_epi32(low), 0xff00, high),
                down = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28);
  const F numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
  return _mm512_permutexvar_ps(_mm512_srlv_epi32(codes, down), numbers);
}
inline F LoadI2(const uint8_t* p) {
  int32_t sixteen;
  __builtin_memcpy(&sixteen, p, 4);
  const __m512i down = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const F numbers = _mm512_setr_ps(-3, -1, 1, 3, -3, -1, 1, 3, -3, -1, 1, 3, -3, -1, 1, 3);
  return _mm512_permutexvar_ps(_mm512_srlv_epi32(_mm512_set1_epi32(sixteen), down), numbers);
}
inline F SetF16(uint16_t half) { return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<int16_t>(half))); }
inline void StoreI8N(int8_t* p, int n, F x) {  // x: whole numbers in [-128, 127]
  _mm_mask_storeu_epi8(p, First(n), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x)));
}

inline I SetI(int32_t x) { return _mm512_set1_epi32(x); }
inline I LoadI(const int32_t* p) { return _mm512_loadu_si512(p); }
inline void StoreI(int32_t* p, I x) { _mm512_storeu_si512(p, x); }
inline I And(I a, I b) { return _mm512_and_si512(a, b); }
inline I Or(I a, I b) { return _mm512_or_si512(a, b); }
// Bits of 16 moved up or down: those that come from a neighbouring byte are the caller's to mask.
template <int n>
inline I BitsUp(I x) {
  return _mm512_slli_epi16(x, n);
}
template <int n>
inline I BitsDown(I x) {
  return _mm512_srli_epi16(x, n);
}
inline I HighNibbles(I bytes) { return _mm512_srli_epi16(bytes, 4); }  // those of the next byte above them
inline I FlipSigns(I bytes) { return _mm512_xor_si512(bytes, _mm512_set1_epi8(-128)); }
inline I Negative(I x) { return _mm512_sub_epi32(_mm512_setzero_si512(), x); }
inline F ToFloat(I x) { return _mm512_cvtepi32_ps(x); }
inline I AsI(F x) { return _mm512_castps_si512(x); }
inline F AsF(I x) { return _mm512_castsi512_ps(x); }

#if defined(__AVX512BF16__)
// Two columns of 16 rows as they lie in panels, of 16 bits each -> a row's two side by side.
inline I PairColumns(I columns) {
  const I order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                                   21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, columns);
}
inline I LoadColumn(const uint16_t* p) {  // one column, and zeros for the other
  return _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// sum[i] += the two products of lane i, of bf16.
inline F DotPairs(F sum, I a, I b) {
  sum = _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
  asm("" : "+v"(sum));  // as below
  return sum;
}
#endif

// r[i][j] -> r[j][i].
inline void Transpose(F* r) {
  F t[16];
  for (int i = 0; i < 16; i += 4) {
    const F a = _mm512_unpacklo_ps(r[i], r[i + 1]), b = _mm512_unpackhi_ps(r[i], r[i + 1]);
    const F c = _mm512_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm512_unpackhi_ps(r[i + 2], r[i + 3]);
    t[i] = _mm512_shuffle_ps(a, c, 0x44), t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
    t[i + 2] = _mm512_shuffle_ps(b, d, 0x44), t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
  }
  for (int i = 0; i < 4; ++i) {  // t[4 b + i] holds columns i, 4 + i, 8 + i, 12 + i of rows 4 b .. 4 b + 3
    const F a = _mm512_shuffle_f32x4(t[i], t[4 + i], 0x88),
            b = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0x88);
    const F c = _mm512_shuffle_f32x4(t[i], t[4 + i], 0xdd),
            d = _mm512_shuffle_f32x4(t[8 + i], t[12 + i], 0xdd);
    r[i] = _mm512_shuffle_f32x4(a, b, 0x88), r[8 + i] = _mm512_shuffle_f32x4(a, b, 0xdd);
    r[4 + i] = _mm512_shuffle_f32x4(c, d, 0x88), r[12 + i] = _mm512_shuffle_f32x4(c, d, 0xdd);
  }
}

// Integer products, a lane a row. A word holds kUnit codes of a row: two of 16 bits, or with VNNI four of 8
// bits.
#if defined(__AVX512VNNI__)
constexpr int kUnit = 4;
constexpr bool kNarrowSums = false;
constexpr bool kUnsignedCodes = true;  // as products of panels take them
using CodeWord = I;
inline I CodeWordOf(I bytes) { return bytes; }
constexpr bool kBiased =
    true;  // activations + 128 are unsigned; the excess 128 * sum(codes) is taken off beforehand
inline I DotWords(I sum, I weights, I x) {
  sum = _mm512_dpbusd_epi32(sum, x, weights);
  asm("" : "+v"(sum));  // keeps the sum in one register: GCC 12 else copies it twice a product
  return sum;
}
inline I AddProducts(I sum, I codes, I x) { return DotWords(sum, x, codes); }
inline I LoadWords(const int8_t* codes) { return _mm512_loadu_si512(codes); }
inline void StoreActivations(const int8_t* codes, int32_t* words) {
  StoreI(words, _mm512_xor_si512(_mm512_loadu_si512(codes), _mm512_set1_epi8(-128)));
}
#else
constexpr int kUnit = 2;
constexpr bool kBiased = false;
inline I DotWords(I sum, I weights, I x) { return _mm512_add_epi32(sum, _mm512_madd_epi16(x, weights)); }
inline I LoadWords(const int8_t* codes) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes)));
}
inline void StoreActivations(const int8_t* codes, int32_t* words) { StoreI(words, LoadWords(codes)); }
// Sums of two products of a byte from 0 to 63 and a signed one, in 16 bits; how they add, and become 32 bits.
constexpr bool kNarrowSums = true;
inline I PairProducts(I codes, I x) { return _mm512_maddubs_epi16(codes, x); }
inline I AddNarrow(I sum, I products) {
  sum = _mm512_add_epi16(sum, products);
  asm("" : "+v"(sum));  // one after the other: GCC 12 else begins all products and has no registers for them
  return sum;
}
inline I AddPairs(I sum, I pairs) {
  return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
constexpr bool kUnsignedCodes = false;
// Signed codes as bytes without sign and which were negative: see simd_avx2.h.
struct CodeWord {
  I size;
  __mmask64 negative;
};
inline CodeWord CodeWordOf(I bytes) { return {_mm512_abs_epi8(bytes), _mm512_movepi8_mask(bytes)}; }
inline I AddProducts(I sum, const CodeWord& codes, I x) {
  const I signed_x = _mm512_mask_sub_epi8(x, codes.negative, _mm512_setzero_si512(), x);
  sum = AddPairs(sum, PairProducts(codes.size, signed_x));
  asm("" : "+v"(sum));  // as above
  return sum;
}
#endif
