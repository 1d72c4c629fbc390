// What this processor can do, and the system with it. Asked by hand: the compiler's __builtin_cpu_supports
// needs a part of the C runtime that not every toolchain has, and cannot name F16C in every version.
#pragma once
#include <cstdint>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include "lib/base/streams.h"

namespace kvc {

struct ProcessorFeatures {
  bool avx2 = false;        // with FMA and F16C
  bool avxvnni = false;     // besides
  bool avx512 = false;      // F, BW, DQ, VL, besides AVX2
  bool avx512vnni = false;  // besides
  bool avx512bf16 = false;  // besides
  Streams streams = Streams::kSeveral;
  bool neon_dot = false;
  bool neon_i8mm = false;
};

inline ProcessorFeatures ThisProcessor() {
  ProcessorFeatures out;
#if defined(__x86_64__)
  const auto bit = [](unsigned word, int n) { return (word >> n & 1) != 0; };
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool amd = __get_cpuid(0, &a, &b, &c, &d) != 0 && b == signature_AMD_ebx && c == signature_AMD_ecx;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return out;
  constexpr unsigned kZen5 = 0x1a;
  const unsigned family = (a >> 8 & 0xf) + (a >> 20 & 0xff);  // of AMD's, whose first part is 15 for long
  if (amd) out.streams = family >= kZen5 ? Streams::kOneFar : Streams::kOne;
  if (!bit(c, 27)) return out;  // OSXSAVE: the next question may be asked
  const bool has_fma_avx_f16c = bit(c, 12) && bit(c, 28) && bit(c, 29);
  uint32_t saved_low = 0, saved_high = 0;  // the registers that the system saves for every thread
  __asm__("xgetbv" : "=a"(saved_low), "=d"(saved_high) : "c"(0));
  const bool saves_256 = (saved_low & 0x06) == 0x06, saves_512 = (saved_low & 0xe6) == 0xe6;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return out;
  out.avx2 = has_fma_avx_f16c && saves_256 && bit(b, 5);
  out.avx512 = out.avx2 && saves_512 && bit(b, 16) && bit(b, 17) && bit(b, 30) && bit(b, 31);
  out.avx512vnni = out.avx512 && bit(c, 11);
  const unsigned subleaves = a;
  if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0)
    out.avxvnni = out.avx2 && bit(a, 4), out.avx512bf16 = out.avx512vnni && bit(a, 5);
#elif defined(__aarch64__) && defined(__APPLE__)
  out.neon_dot = true;  // from the first one on
  int has = 0;
  size_t size = sizeof(has);
  out.neon_i8mm = sysctlbyname("hw.optional.arm.FEAT_I8MM", &has, &size, nullptr, 0) == 0 && has != 0;
#elif defined(__aarch64__)
  out.neon_dot = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
  constexpr unsigned long kI8mm = 1ul << 13;  // HWCAP2_I8MM, which older headers do not name
  out.neon_i8mm = (getauxval(AT_HWCAP2) & kI8mm) != 0;
#endif
  return out;
}

}  // namespace kvc
