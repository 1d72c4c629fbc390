#include "bench/limits.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bench/clock.h"
#include "lib/base/sum_of_words.h"
#include "lib/ops/cpu/processor.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace kvc::bench {

namespace {

// Chains that do not wait for each other: latency (4 to 5 cycles) times units (2) of the widest cores, and
// some.
constexpr int kChains = 12;
constexpr int kRounds = 4096;

volatile float g_float_sink;
volatile int32_t g_int_sink;
volatile uint64_t g_word_sink;

// Operations a second of a function that says how many it does.
template <typename F>
double Rate(F&& f) {
  double operations = 0;
  const double seconds = BestSeconds(0.05, [&] { operations = f(); });
  return operations / seconds;
}

#if defined(__x86_64__)

__attribute__((target("avx512f"))) double Fma512() {
  __m512 sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512 x = _mm512_set1_ps(1 + g_float_sink), y = _mm512_set1_ps(0.5f);
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_fmadd_ps(sum[i], y, x);
  }
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  float out[16];
  _mm512_storeu_ps(out, sum[0]);
  g_float_sink = out[0] * 0;
  return 2.0 * 16 * kChains * kRounds;
}

__attribute__((target("avx2,fma"))) double Fma256() {
  __m256 sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = _mm256_set1_ps(static_cast<float>(i));
  const __m256 x = _mm256_set1_ps(1 + g_float_sink), y = _mm256_set1_ps(0.5f);
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = _mm256_fmadd_ps(sum[i], y, x);
  }
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum[0] = _mm256_add_ps(sum[0], sum[i]);
  g_float_sink = _mm256_cvtss_f32(sum[0]) * 0;
  return 2.0 * 8 * kChains * kRounds;
}

#if __has_include(<avxvnniintrin.h>)  // GCC 11, clang 12
#define KVC_BENCH_AVXVNNI
__attribute__((target("avx2,avxvnni"))) double Dot256Vnni() {
  __m256i sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = _mm256_set1_epi32(i);
  const __m256i x = _mm256_set1_epi32(g_int_sink), y = _mm256_set1_epi32(0x01020304);
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = _mm256_dpbusd_avx_epi32(sum[i], x, y);
  }
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum[0] = _mm256_add_epi32(sum[0], sum[i]);
  g_int_sink = _mm_cvtsi128_si32(_mm256_castsi256_si128(sum[0]));
  return 2.0 * 32 * kChains * kRounds;
}
#endif

__attribute__((target("avx512f,avx512vnni"))) double Dot512() {
  __m512i sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = _mm512_set1_epi32(i);
  const __m512i x = _mm512_set1_epi32(g_int_sink), y = _mm512_set1_epi32(0x01020304);
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = _mm512_dpbusd_epi32(sum[i], x, y);
  }
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum[0] = _mm512_add_epi32(sum[0], sum[i]);
  int32_t out[16];  // stored: GCC 12 warns of its own header where a lane is taken
  _mm512_storeu_si512(out, sum[0]);
  g_int_sink = out[0];
  return 2.0 * 64 * kChains * kRounds;
}

#if __has_include(<avx512bf16intrin.h>)  // GCC 10, clang 9
#define KVC_BENCH_AVX512BF16
__attribute__((target("avx512f,avx512bf16"))) double Dot512Pairs() {
  __m512 sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = _mm512_set1_ps(static_cast<float>(i));
  const __m512i x = _mm512_set1_epi32(g_int_sink), y = _mm512_set1_epi32(0x3f803f80);
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i)
      sum[i] = _mm512_dpbf16_ps(sum[i], reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
  }
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  float out[16];
  _mm512_storeu_ps(out, sum[0]);
  g_float_sink = out[0] * 0;
  return 2.0 * 32 * kChains * kRounds;
}
#endif

// Without dot products: bytes to pairs of 16 bits, those to 32, added.
__attribute__((target("avx2"))) double Dot256() {
  __m256i sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = _mm256_set1_epi32(i);
  const __m256i y = _mm256_set1_epi32(0x01020304), ones = _mm256_set1_epi16(1);
  for (int round = 0; round < kRounds; ++round) {
    const __m256i x = _mm256_set1_epi32(g_int_sink);
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      const __m256i pairs = _mm256_maddubs_epi16(_mm256_xor_si256(x, sum[i]), y);
      sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(pairs, ones));
    }
  }
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum[0] = _mm256_add_epi32(sum[0], sum[i]);
  g_int_sink = _mm_cvtsi128_si32(_mm256_castsi256_si128(sum[0]));
  return 2.0 * 32 * kChains * kRounds;
}

#elif defined(__aarch64__)

double FmaNeon() {
  float32x4_t sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = vdupq_n_f32(static_cast<float>(i));
  const float32x4_t x = vdupq_n_f32(1 + g_float_sink), y = vdupq_n_f32(0.5f);
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) sum[i] = vfmaq_f32(x, sum[i], y);
  }
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum[0] = vaddq_f32(sum[0], sum[i]);
  g_float_sink = vgetq_lane_f32(sum[0], 0) * 0;
  return 2.0 * 4 * kChains * kRounds;
}

// sdot where there is one; the compiler is told so for this function alone.
__attribute__((target("arch=armv8.2-a+dotprod"))) double DotNeon() {
  int32x4_t sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = vdupq_n_s32(i);
  const int8x16_t x = vdupq_n_s8(static_cast<int8_t>(g_int_sink)), y = vdupq_n_s8(3);
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      __asm__("sdot %0.4s, %1.16b, %2.16b" : "+w"(sum[i]) : "w"(x), "w"(y));
    }
  }
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum[0] = vaddq_s32(sum[0], sum[i]);
  g_int_sink = vgetq_lane_s32(sum[0], 0);
  return 2.0 * 16 * kChains * kRounds;
}

// smmla: 32 products, of two rows of eight with two others.
__attribute__((target("arch=armv8.2-a+i8mm"))) double MatrixNeon() {
  int32x4_t sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = vdupq_n_s32(i);
  const int8x16_t x = vdupq_n_s8(static_cast<int8_t>(g_int_sink)), y = vdupq_n_s8(3);
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      __asm__("smmla %0.4s, %1.16b, %2.16b" : "+w"(sum[i]) : "w"(x), "w"(y));
    }
  }
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum[0] = vaddq_s32(sum[0], sum[i]);
  g_int_sink = vgetq_lane_s32(sum[0], 0);
  return 2.0 * 32 * kChains * kRounds;
}

double MullNeon() {
  int32x4_t sum[kChains];
#pragma GCC unroll 12
  for (int i = 0; i < kChains; ++i) sum[i] = vdupq_n_s32(i);
  const int8x8_t x = vdup_n_s8(static_cast<int8_t>(g_int_sink)), y = vdup_n_s8(3);
  for (int round = 0; round < kRounds; ++round) {
#pragma GCC unroll 12
    for (int i = 0; i < kChains; ++i) {
      int8x8_t other = veor_s8(x, vreinterpret_s8_s32(vget_low_s32(sum[i])));
      sum[i] = vpadalq_s16(sum[i], vmull_s8(other, y));
    }
  }
#pragma GCC unroll 12
  for (int i = 1; i < kChains; ++i) sum[0] = vaddq_s32(sum[0], sum[i]);
  g_int_sink = vgetq_lane_s32(sum[0], 0);
  return 2.0 * 8 * kChains * kRounds;
}

#endif

// Sums of 256 MiB, so that no compiler may skip the reading; once for each width of registers.
using Reader = uint64_t (*)(const uint64_t* p, int64_t n, Streams streams);

uint64_t Read(const uint64_t* p, int64_t n, Streams streams) { return SumOfWords(p, n, streams); }
#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t Read256(const uint64_t* p, int64_t n, Streams streams) {
  return SumOfWords(p, n, streams);
}
__attribute__((target("avx512f"))) uint64_t Read512(const uint64_t* p, int64_t n, Streams streams) {
  return SumOfWords(p, n, streams);
}
#endif

double ReadRate(Reader reader, Streams streams) {
  constexpr size_t kWords = size_t{256} << 17;  // 256 MiB
  static const std::vector<uint64_t> buffer(kWords, 1);
  const double seconds = BestSeconds(0.5, [&] { g_word_sink = reader(buffer.data(), kWords, streams); });
  return 8.0 * kWords / seconds;
}

}  // namespace

Limits MeasureLimits() {
  Limits out;
  const ProcessorFeatures processor = ThisProcessor();
  out.read = ReadRate(Read, processor.streams);
#if defined(__x86_64__)
  if (processor.avx2) {
    out.read = std::max(out.read, ReadRate(Read256, processor.streams));
    out.fma = Rate(Fma256), out.dot = Rate(Dot256);
  }
#if defined(KVC_BENCH_AVXVNNI)
  if (processor.avxvnni) out.dot = std::max(out.dot, Rate(Dot256Vnni));
#endif
  if (processor.avx512) {
    out.read = std::max(out.read, ReadRate(Read512, processor.streams));
    out.fma = std::max(out.fma, Rate(Fma512));
  }
  if (processor.avx512vnni) out.dot = std::max(out.dot, Rate(Dot512));
#if defined(KVC_BENCH_AVX512BF16)
  if (processor.avx512bf16) out.pairs = Rate(Dot512Pairs);
#endif
#elif defined(__aarch64__)
  out.fma = Rate(FmaNeon);
  out.dot = processor.neon_dot ? Rate(DotNeon) : Rate(MullNeon);
  if (processor.neon_i8mm) out.dot = std::max(out.dot, Rate(MatrixNeon));
#else
  (void)processor;
#endif
  return out;
}

}  // namespace kvc::bench
