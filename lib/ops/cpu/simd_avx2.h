// AVX2 with FMA and F16C under the names the kernels use. Included inside the anonymous namespace of an isa
// file.
#pragma once

using F = __m256;
using I = __m256i;  // kWidth lanes of 32 bits
constexpr int kWidth = 8;
constexpr int kTileTokens =
    3;  // tokens of a float matrix tile: 4 x 3 sums, 3 tokens and a weight in 16 registers
constexpr int kTileVectors = 2,
              kTileRows = 6;   // sums of an attention tile: 2 vectors of keys (or channels) x 6 queries
constexpr int kTileHeads = 2;  // query heads of a cached tile: 4 entries x 2 heads
constexpr int kPanelVectors = 2, kPanelTokens = 4;  // int8: 2 vectors of rows x 4 tokens
constexpr int kTilePanels = 1, kFloatTileTokens = 6, kCodeTileTokens = 4;  // panels: 12 sums, 8 of codes
constexpr int kBlockStreams = 2, kStreams = 2, kAheadBytes = 2048, kAheadLevel = 3;
constexpr bool kMayReadInTurn = true;

inline __m256i First(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

inline F Zero() { return _mm256_setzero_ps(); }
inline F Set(float x) { return _mm256_set1_ps(x); }
inline F Load(const float* p) { return _mm256_loadu_ps(p); }
inline void Store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline F LoadN(const float* p, int n) { return _mm256_maskload_ps(p, First(n)); }  // zeros beyond n
// Whole vectors go without a mask: a load of what was stored under one waits until it is in memory, behind
// all stores before it.
inline void StoreN(float* p, int n, F x) { n == kWidth ? Store(p, x) : _mm256_maskstore_ps(p, First(n), x); }
inline F Add(F a, F b) { return _mm256_add_ps(a, b); }
inline F Sub(F a, F b) { return _mm256_sub_ps(a, b); }
inline F Mul(F a, F b) { return _mm256_mul_ps(a, b); }
inline F Div(F a, F b) { return _mm256_div_ps(a, b); }
inline F Max(F a, F b) { return _mm256_max_ps(a, b); }  // b where one is NaN
inline F Min(F a, F b) { return _mm256_min_ps(a, b); }
inline F Fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F NegFma(F a, F b, F c) { return _mm256_fnmadd_ps(a, b, c); }  // c - a b
inline F Abs(F a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
inline F Round(F a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline F TimesPow2(F a, F n) {  // n: whole numbers in [-126, 127]
  const I bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(a, _mm256_castsi256_ps(bits));
}
inline F ZeroWhereBelow(F x, F limit, F y) {  // y, 0 in lanes where x < limit
  return _mm256_andnot_ps(_mm256_cmp_ps(x, limit, _CMP_LT_OQ), y);
}
inline float Sum(F a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
inline float MaxOf(F a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
// In lane i of every four what four lanes of the i-th vector add up to.
inline F SumsInFours(F a, F b, F c, F d) {
  const F ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
  const F cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
  return _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));
}
// out[0, 4) = the sums of a, b, c, d, each in the same order.
inline void Sum4(F a, F b, F c, F d, float* out) {
  const F all = SumsInFours(a, b, c, d);
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}

// Lanes by fours, of a head each. SpreadHeads: x[0, n) to the lanes of n heads, what other lanes have is
// some number; StoreHeads: back.
inline F SpreadHeads(const float* x, int n) {
  return _mm256_set_m128(_mm_set1_ps(x[n - 1]), _mm_set1_ps(x[0]));
}
inline void StoreHeads(F a, int n, float* x) {
  x[0] = _mm256_cvtss_f32(a);
  if (n > 1) x[1] = _mm_cvtss_f32(_mm256_extractf128_ps(a, 1));
}
// Of every four lanes: 0 with 1 and 2 with 3; the first two with the others.
inline F SwapNeighbours(F a) { return _mm256_permute_ps(a, 0xb1); }
inline F SwapPairs(F a) { return _mm256_permute_ps(a, 0x4e); }
// The sums of four vectors of every head.
inline F SumsOfHeads(const F (*a)[4]) {
  const F first = SumsInFours(a[0][0], a[0][1], a[0][2], a[0][3]),
          second = SumsInFours(a[1][0], a[1][1], a[1][2], a[1][3]);
  return _mm256_add_ps(_mm256_permute2f128_ps(first, second, 0x20),
                       _mm256_permute2f128_ps(first, second, 0x31));
}

// The first n of 8 halves, zeros behind.
inline __m128i LoadHalves(const uint16_t* p, int n) {
  uint16_t all[8] = {};
  for (int i = 0; i < n; ++i) all[i] = p[i];
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(all));
}
inline void StoreHalves(uint16_t* p, int n, __m128i x) {
  if (n == 8) return _mm_storeu_si128(reinterpret_cast<__m128i*>(p), x);
  uint16_t all[8];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(all), x);
  for (int i = 0; i < n; ++i) p[i] = all[i];
}
inline F LoadF16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline F LoadF16N(const uint16_t* p, int n) { return _mm256_cvtph_ps(LoadHalves(p, n)); }
inline F WidenBf16(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
inline F LoadBf16(const uint16_t* p) {
  return WidenBf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline F LoadBf16N(const uint16_t* p, int n) { return WidenBf16(LoadHalves(p, n)); }
inline void StoreF16N(uint16_t* p, int n, F x) {
  StoreHalves(p, n, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline __m128i Narrow16(I x) {  // lanes in [0, 65535]
  return _mm_packus_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}
inline void StoreBf16N(uint16_t* p, int n, F x) {
  const I bits = _mm256_castps_si256(x);
  const I odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const I rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const I quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const I result = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
  StoreHalves(p, n, Narrow16(_mm256_srli_epi32(result, 16)));
}
inline F LoadI8N(const int8_t* p, int n) {
  int8_t all[16] = {};
  for (int i = 0; i < n; ++i) all[i] = p[i];
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(all))));
}
inline F WidenI8(__m128i x) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)); }
inline F LoadI8(const uint8_t* p) { return WidenI8(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))); }
// Codes two a byte, low nibble first: each lane moves its own to the top and down again with its sign.
inline F LoadI4(const uint8_t* p) {
  int32_t eight;
  __builtin_memcpy(&eight, p, 4);
  const __m256i up = _mm256_setr_epi32(28, 24, 20, 16, 12, 8, 4, 0);
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_sllv_epi32(_mm256_set1_epi32(eight), up), 28));
}
inline F LoadI2(const uint8_t* p) {
  uint16_t eight;
  __builtin_memcpy(&eight, p, 2);
  const __m256i down = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
  const F numbers = _mm256_setr_ps(-3, -1, 1, 3, -3, -1, 1, 3);
  return _mm256_permutevar8x32_ps(numbers, _mm256_srlv_epi32(_mm256_set1_epi32(eight), down));
}
inline F SetF16(uint16_t half) { return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(half))); }
inline void StoreI8N(int8_t* p, int n, F x) {  // x: whole numbers in [-128, 127]
  const I words = _mm256_cvtps_epi32(x);
  const __m128i halves = _mm_packs_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  int8_t all[16];
  _mm_storeu_si128(reinterpret_cast<__m128i*>(all), _mm_packs_epi16(halves, halves));
  for (int i = 0; i < n; ++i) p[i] = all[i];
}

inline I SetI(int32_t x) { return _mm256_set1_epi32(x); }
inline I LoadI(const int32_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
inline void StoreI(int32_t* p, I x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
inline I And(I a, I b) { return _mm256_and_si256(a, b); }
inline I Or(I a, I b) { return _mm256_or_si256(a, b); }
// Bits of 16 moved up or down: those that come from a neighbouring byte are the caller's to mask.
template <int n>
inline I BitsUp(I x) {
  return _mm256_slli_epi16(x, n);
}
template <int n>
inline I BitsDown(I x) {
  return _mm256_srli_epi16(x, n);
}
inline I HighNibbles(I bytes) { return _mm256_srli_epi16(bytes, 4); }  // those of the next byte above them
inline I FlipSigns(I bytes) { return _mm256_xor_si256(bytes, _mm256_set1_epi8(-128)); }
inline I Negative(I x) { return _mm256_sub_epi32(_mm256_setzero_si256(), x); }
inline F ToFloat(I x) { return _mm256_cvtepi32_ps(x); }
inline I AsI(F x) { return _mm256_castps_si256(x); }
inline F AsF(I x) { return _mm256_castsi256_ps(x); }

// r[i][j] -> r[j][i].
inline void Transpose(F* r) {
  F t[8];
  for (int i = 0; i < 8; i += 4) {
    const F a = _mm256_unpacklo_ps(r[i], r[i + 1]), b = _mm256_unpackhi_ps(r[i], r[i + 1]);
    const F c = _mm256_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
    t[i] = _mm256_shuffle_ps(a, c, 0x44), t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
    t[i + 2] = _mm256_shuffle_ps(b, d, 0x44), t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
  }
  for (int i = 0; i < 4; ++i) {  // t[4 b + i] holds columns i, 4 + i of rows 4 b .. 4 b + 3
    r[i] = _mm256_permute2f128_ps(t[i], t[4 + i], 0x20);
    r[4 + i] = _mm256_permute2f128_ps(t[i], t[4 + i], 0x31);
  }
}

// Integer products, a lane a row. A word holds kUnit codes of a row: four bytes with VNNI, in either
// encoding; else two widened to 16 bits, as sums of bytes would saturate.
#if defined(__AVXVNNI__) || defined(__AVX512VNNI__)
constexpr int kUnit = 4;
constexpr bool kNarrowSums = false;
constexpr bool kUnsignedCodes = true;  // as products of panels take them
using CodeWord = I;
inline I CodeWordOf(I bytes) { return bytes; }
constexpr bool kBiased =
    true;  // activations + 128 are unsigned; the excess 128 * sum(codes) is taken off beforehand
inline I DotWords(I sum, I weights, I x) {
  sum = Dot4Bytes(sum, x, weights);
  asm("" : "+x"(sum));  // keeps the sum in one register: GCC 12 else copies it twice a product
  return sum;
}
inline I AddProducts(I sum, I codes, I x) { return DotWords(sum, x, codes); }
inline I LoadWords(const int8_t* codes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
}
inline void StoreActivations(const int8_t* codes, int32_t* words) {
  StoreI(words, FlipSigns(LoadWords(codes)));
}
#else
constexpr int kUnit = 2;
constexpr bool kBiased = false;
inline I DotWords(I sum, I weights, I x) { return _mm256_add_epi32(sum, _mm256_madd_epi16(x, weights)); }
inline I LoadWords(const int8_t* codes) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
}
inline void StoreActivations(const int8_t* codes, int32_t* words) { StoreI(words, LoadWords(codes)); }
// Sums of two products of a byte from 0 to 63 and a signed one, in 16 bits; how they add, and become 32 bits.
constexpr bool kNarrowSums = true;
inline I PairProducts(I codes, I x) { return _mm256_maddubs_epi16(codes, x); }
inline I AddNarrow(I sum, I products) {
  sum = _mm256_add_epi16(sum, products);
  asm("" : "+x"(sum));  // one after the other: GCC 12 else begins all products and has no registers for them
  return sum;
}
inline I AddPairs(I sum, I pairs) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
constexpr bool kUnsignedCodes = false;
// Signed codes as bytes without sign beside what has their signs: x takes these, and a sum of two products,
// 128 * 127 each at most, just fits in 16 bits. Activations are never -128 (KernelTable::quantize_row), codes
// may be.
struct CodeWord {
  I size, signs;
};
inline CodeWord CodeWordOf(I bytes) { return {_mm256_abs_epi8(bytes), bytes}; }
inline I AddProducts(I sum, const CodeWord& codes, I x) {
  sum = AddPairs(sum, PairProducts(codes.size, _mm256_sign_epi8(x, codes.signs)));
  asm("" : "+x"(sum));  // as above
  return sum;
}
#endif
