// What AVX2 and AVX-512 do alike, in 128 and 256 bits. Included inside the anonymous namespace of an isa
// file.
#pragma once

constexpr bool kPairProducts = false;  // of two tokens with two rows by one instruction

// The low nibbles as codes from -8 to 7.
inline __m128i SignedNibbles(__m128i bytes) {
  const __m128i sign = _mm_set1_epi8(8);
  return _mm_sub_epi8(_mm_xor_si128(_mm_and_si128(bytes, _mm_set1_epi8(15)), sign), sign);
}

// 16 bytes -> 32 codes, low nibble first.
inline void ExpandNibbles(const int8_t* in, int8_t* codes) {
  const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(in));
  const __m128i even = SignedNibbles(pairs), odd = SignedNibbles(_mm_srli_epi16(pairs, 4));
  const __m256i all = _mm256_set_m128i(_mm_unpackhi_epi8(even, odd), _mm_unpacklo_epi8(even, odd));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes), all);  // one store: it is read again at once
}

// Adds the products of 32 codes to eight sums.
#if defined(__AVXVNNI__) || defined(__AVX512VNNI__)
constexpr bool kShiftedDot =
    true;  // codes of the weight + 128 are unsigned: the result is too large by 128 * sum(x)
inline __m256i Dot32(__m256i sum, const int8_t* w, const int8_t* x) {
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(w));
  return Dot4Bytes(sum, _mm256_xor_si256(codes, _mm256_set1_epi8(-128)),
                   _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
}
#else
constexpr bool kShiftedDot = false;
inline __m256i Wide16(const int8_t* codes) {
  return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes)));
}
inline __m256i Dot32(__m256i sum, const int8_t* w, const int8_t* x) {
  const __m256i low = _mm256_madd_epi16(Wide16(w), Wide16(x)),
                high = _mm256_madd_epi16(Wide16(w + 16), Wide16(x + 16));
  return _mm256_add_epi32(sum, _mm256_add_epi32(low, high));
}
#endif

// sum[i] += (start + sum of w[i][j] * x[j] for j in [0, n)) * (factor * scale[i]), four rows; n a multiple
// of 32. start takes off what kShiftedDot adds.
inline void AddRows4(const int8_t* const* w, const int8_t* x, int32_t n, int32_t start, float factor,
                     const float* scale, float* sum) {
  __m256i a = _mm256_setzero_si256(), b = a, c = a, d = a;
  for (int32_t j = 0; j < n; j += 32) {
    a = Dot32(a, w[0] + j, x + j), b = Dot32(b, w[1] + j, x + j);
    c = Dot32(c, w[2] + j, x + j), d = Dot32(d, w[3] + j, x + j);
  }
  const __m256i all = _mm256_hadd_epi32(_mm256_hadd_epi32(a, b), _mm256_hadd_epi32(c, d));
  const __m128i dot = _mm_add_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
  const __m128 value = _mm_cvtepi32_ps(_mm_add_epi32(dot, _mm_set1_epi32(start)));
  const __m128 both = _mm_mul_ps(_mm_set1_ps(factor), _mm_loadu_ps(scale));
  _mm_storeu_ps(sum, _mm_fmadd_ps(value, both, _mm_loadu_ps(sum)));
}
