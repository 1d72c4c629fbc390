// Products of bytes in 256 bits, in the encoding that the file is compiled for. Included inside the anonymous
// namespace of an isa file, before the others.
#pragma once

// sum[i] += the four products of lane i, of unsigned bytes and signed ones.
#if defined(__AVXVNNI__)
inline __m256i Dot4Bytes(__m256i sum, __m256i u, __m256i s) { return _mm256_dpbusd_avx_epi32(sum, u, s); }
#elif defined(__AVX512VNNI__)
inline __m256i Dot4Bytes(__m256i sum, __m256i u, __m256i s) { return _mm256_dpbusd_epi32(sum, u, s); }
#endif
