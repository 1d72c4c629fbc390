// What kernels are made of, for both compilers: nvcc's device code, and C++ under the emulator of tests/emu.
// Everything that is an intrinsic or inline PTX stands here, with one definition for each; kernels use
// nothing else.
#pragma once
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdlib>

#include "lib/base/half.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
// In front of a loop over an array of registers: one that stays a loop takes the array to local memory.
#define KVC_UNROLL _Pragma("unroll")
// So many rounds of a loop at once, for which there are registers.
#define KVC_PRAGMA(text) _Pragma(#text)
#define KVC_UNROLL_BY(n) KVC_PRAGMA(unroll n)
#define KVC_DEVICE __device__ __forceinline__
// Dynamic shared memory, 16-byte aligned.
#define KVC_SHARED(T, name)                                   \
  extern __shared__ __align__(16) unsigned char kvc_shared[]; \
  T* const name = reinterpret_cast<T*>(kvc_shared)
#else
#define KVC_UNROLL
#define KVC_UNROLL_BY(n)
#define KVC_DEVICE inline
#define KVC_SHARED(T, name) T* const name = reinterpret_cast<T*>(::kvc::emu::block->shared)
#endif

namespace kvc::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

KVC_DEVICE int Lane() { return static_cast<int>(threadIdx.x) % kWarp; }
KVC_DEVICE int WarpOfBlock() { return static_cast<int>(threadIdx.x) / kWarp; }
KVC_DEVICE int ThreadOfBlock() { return static_cast<int>(threadIdx.x); }
// The same, read anew: what is computed from it is not kept in registers from one place to the next.
#if defined(__CUDACC__)
KVC_DEVICE int ThreadAgain() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  __builtin_assume(thread >= 0 && thread < 1024);
  return thread;
}
KVC_DEVICE uint2 BlockAgain() {
  uint2 block;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(block.x));
  asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(block.y));
  return block;
}
#else
KVC_DEVICE int ThreadAgain() { return ThreadOfBlock(); }
KVC_DEVICE uint2 BlockAgain() { return {blockIdx.x, blockIdx.y}; }
#endif
KVC_DEVICE int LaneAgain() { return ThreadAgain() % kWarp; }
KVC_DEVICE int BlockThreads() { return static_cast<int>(blockDim.x); }

// ---- kernels behind each other (PTX: griddepcontrol, from compute capability 9.0) ----
// A kernel launched with KVC_LAUNCH_EARLY may begin while those in front of it are still at work, as soon as
// all their blocks have begun and said so. Every thread then waits here, before it reads what they write, or
// writes anything; what it reads beforehand are weights, which nobody writes, and what had been written when
// the kernels in front of it began. Of that a multiprocessor's first cache may still have what lay there
// before: only the wait promises that it has not. So every thread first forgets what is in there, by a load
// that comes in front of its others (PTX: ld.acquire), of something that it may read.
#if defined(__CUDACC__)
KVC_DEVICE void WaitForEarlier() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
KVC_DEVICE void ReadsBeforeItWaits([[maybe_unused]] const void* at) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  [[maybe_unused]] uint32_t value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
#endif
}
KVC_DEVICE void LetNextBegin() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
#else
KVC_DEVICE void WaitForEarlier() { emu::WaitForEarlier(); }
KVC_DEVICE void ReadsBeforeItWaits(const void*) {}
KVC_DEVICE void LetNextBegin() {}
#endif

// Whether kernels that are compiled for a device can begin early there: what is only worth it then.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
constexpr bool kBeginsEarly = false;
#else
constexpr bool kBeginsEarly = true;
#endif

// ---- into the second cache (PTX: cp.async.bulk.prefetch, from compute capability 9.0) ----
// `bytes` from `at` on, both multiples of 16, are asked for from memory: what a kernel will read when it has
// waited for the one in front. Nobody writes them beside it. Older devices do nothing: there kernels do not
// begin early.
#if defined(__CUDACC__)
KVC_DEVICE void PrefetchBytes([[maybe_unused]] const void* at, [[maybe_unused]] int32_t bytes) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(bytes) : "memory");
#endif
}
#else
// All of them are read: by who looks for what lies beyond memory, and for races.
KVC_DEVICE void PrefetchBytes(const void* at, int32_t bytes) {
  if (bytes <= 0 || (reinterpret_cast<uintptr_t>(at) | static_cast<uintptr_t>(bytes)) % 16 != 0) std::abort();
  const auto* words = static_cast<const volatile uint32_t*>(at);
  for (int32_t i = 0; i < bytes / 4; ++i) static_cast<void>(words[i]);
  emu::Prefetch(at, bytes);
}
#endif

// ---- blocks that count ----
// By all threads of `n` blocks of a launch that share a count, which was zero in front of it: true in the
// last of them that comes here. What the others wrote before is there for it.
KVC_DEVICE bool IsLastOf(int32_t n, int32_t* count, int32_t* shared) {
#if defined(__CUDACC__)
  __threadfence();
#endif
  __syncthreads();
  if (ThreadAgain() == 0) {
#if !defined(__CUDACC__)
    emu::ReleaseCount(count);
#endif
    *shared = atomicAdd(count, 1);
  }
  __syncthreads();
  if (*shared != n - 1) return false;
#if defined(__CUDACC__)
  __threadfence();  // and what this multiprocessor has in its first cache is read anew
#else
  emu::AcquireCount(count);
#endif
  return true;
}

// ---- numbers ----
#if defined(__CUDACC__)
KVC_DEVICE float HalfBits(uint16_t h) { return __half2float(__ushort_as_half(h)); }
KVC_DEVICE uint16_t ToHalfBits(float f) { return __half_as_ushort(__float2half_rn(f)); }
KVC_DEVICE float BfBits(uint16_t h) { return __uint_as_float(static_cast<unsigned>(h) << 16); }
KVC_DEVICE uint16_t ToBfBits(float f) { return __bfloat16_as_ushort(__float2bfloat16_rn(f)); }
// Of two numbers, the first in the lower half.
KVC_DEVICE uint32_t ToHalfPair(float a, float b) {
  const __half2 pair = __floats2half2_rn(a, b);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
KVC_DEVICE uint32_t ToBfPair(float a, float b) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(a, b);
  uint32_t bits;
  memcpy(&bits, &pair, sizeof bits);
  return bits;
}
KVC_DEVICE float Infinity() { return __int_as_float(0x7f800000); }
// 2^x to two units of its last place, 0 below 2^-126.
KVC_DEVICE float PowerOfTwo(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#else
KVC_DEVICE float HalfBits(uint16_t h) { return F16ToFloat(h); }
KVC_DEVICE uint16_t ToHalfBits(float f) { return FloatToF16(f); }
KVC_DEVICE float BfBits(uint16_t h) { return Bf16ToFloat(h); }
KVC_DEVICE uint16_t ToBfBits(float f) { return FloatToBf16(f); }
KVC_DEVICE uint32_t ToHalfPair(float a, float b) {
  return FloatToF16(a) | static_cast<uint32_t>(FloatToF16(b)) << 16;
}
KVC_DEVICE uint32_t ToBfPair(float a, float b) {
  return FloatToBf16(a) | static_cast<uint32_t>(FloatToBf16(b)) << 16;
}
KVC_DEVICE float Infinity() { return INFINITY; }
KVC_DEVICE float PowerOfTwo(float x) { return x < -126 ? 0.0f : std::exp2(x); }
#endif

// 2^exponent, of one that f32 has without leading zeros.
KVC_DEVICE float ExponentOfTwo(int exponent) {
  return __uint_as_float(static_cast<unsigned>(exponent + 127) << 23);
}
// e^x in two operations (expf has eight): off by 2^-22 of it, and by 2^-24 |x|. 0 where it is below 2^-126.
KVC_DEVICE float QuickExp(float x) { return PowerOfTwo(x * 1.44269504f); }
// In a register, whatever is in it. And (a & b) ^ c in one operation: nvcc makes two of it where b and c are
// constants.
#if defined(__CUDACC__)
KVC_DEVICE uint32_t AnyBits() {
  uint32_t x;
  asm("" : "=r"(x));
  return x;
}
KVC_DEVICE uint32_t AndXor(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t x;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(x) : "r"(a), "r"(b), "r"(c));
  return x;
}
#else
KVC_DEVICE uint32_t AnyBits() { return 0xa5c35a3cu; }
KVC_DEVICE uint32_t AndXor(uint32_t a, uint32_t b, uint32_t c) { return (a & b) ^ c; }
#endif

// As lib/base/ordered_bits.h, in four operations: what is no number is not above -inf.
KVC_DEVICE uint32_t NumberBits(float number) {
  const uint32_t bits = __float_as_uint(number + 0.0f);
  return bits ^ ((0u - (bits >> 31)) | 0x80000000u);
}
KVC_DEVICE uint32_t ScoreBits(float score) { return NumberBits(score > -Infinity() ? score : -Infinity()); }
// As SelectionKey of lib/ops/cpu/line_ops.h: higher score first, then the lower index.
KVC_DEVICE uint64_t SelectionKeyOf(float score, uint32_t index) {
  return static_cast<uint64_t>(ScoreBits(score)) << 32 | (0xFFFFFFFFu - index);
}

// RestLogit of lib/ops/cache_ops.h.
KVC_DEVICE float LogitOfRest(int32_t position) {
  return position < 0 ? logf(static_cast<float>(-position)) : 0.0f;
}
// Logits z as cap * tanh(z / cap); cap 0: as they are.
KVC_DEVICE float Capped(float z, float cap) { return cap > 0 ? cap * tanhf(__fdiv_rn(z, cap)) : z; }

// Of two words, each two numbers of 16 bits: the lower numbers of both, and the higher.
#if defined(__CUDACC__)
KVC_DEVICE uint32_t LowHalves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
KVC_DEVICE uint32_t HighHalves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }
#else
KVC_DEVICE uint32_t LowHalves(uint32_t a, uint32_t b) { return (a & 0xffffu) | b << 16; }
KVC_DEVICE uint32_t HighHalves(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xffff0000u); }
#endif

// ---- products of small matrices by a warp (PTX: mma.m16n8k16, row.col, bf16 or f16 -> f32) ----
// c [16, 8] += a [16, 16] * b [16, 8]; of every pair of 16-bit numbers the lower half is the lower column (a)
// or row (b). Lane l, u = l / 4, v = l % 4: a = (u, 2v), (u + 8, 2v), (u, 2v + 8), (u + 8, 2v + 8); b = (2v,
// u), (2v + 8, u); c = (u, 2v), (u, 2v + 1), (u + 8, 2v), (u + 8, 2v + 1).
#if defined(__CUDACC__)
KVC_DEVICE void MmaBf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
KVC_DEVICE void MmaHalf(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
// What lies below f32's last bit is cut off, as tensor cores do.
KVC_DEVICE float CutToFloat(double x) {
  const float f = static_cast<float>(x);
  return std::isfinite(f) && std::fabs(static_cast<double>(f)) > std::fabs(x)
             ? BitsToFloat(FloatToBits(f) - 1)
             : f;
}
// number: of 16 bits. A device aligns products to the largest of some of them, and cuts there already: here
// the sum of all of them is exact, or as good as. Most of the time of an emulated prompt goes here: sums of a
// lane are made beside each other, of numbers that lie as they are read.
template <typename F>
KVC_DEVICE void MmaOf(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], F&& number) {
  struct Fragments {
    double a[2][4], b[4];  // of two rows, and of a column: 2v, 2v + 1, 2v + 8, 2v + 9
  };
  Fragments mine;
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 2; ++j)
      mine.a[i % 2][i / 2 * 2 + j] = static_cast<double>(number(static_cast<uint16_t>(a[i] >> (16 * j))));
    mine.b[i] = static_cast<double>(number(static_cast<uint16_t>(b[i / 2] >> (16 * (i % 2)))));
  }
  const Fragments *all = static_cast<const Fragments*>(emu::Exchange(kAllLanes, &mine, sizeof mine)),
                  *row = all + Lane() / 4 * 4, *column = all + Lane() % 4 * 8;
  double upper0 = static_cast<double>(c[0]), upper1 = static_cast<double>(c[1]),
         lower0 = static_cast<double>(c[2]), lower1 = static_cast<double>(c[3]);
  for (int v = 0; v < 4; ++v) {
    for (int k = 0; k < 4; ++k) {
      const double upper = row[v].a[0][k], lower = row[v].a[1][k], left = column[v].b[k],
                   right = column[v + 4].b[k];
      upper0 += upper * left, upper1 += upper * right, lower0 += lower * left, lower1 += lower * right;
    }
  }
  c[0] = CutToFloat(upper0), c[1] = CutToFloat(upper1), c[2] = CutToFloat(lower0), c[3] = CutToFloat(lower1);
}
KVC_DEVICE void MmaBf16(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MmaOf(c, a, b, [](uint16_t x) { return BfBits(x); });
}
KVC_DEVICE void MmaHalf(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  MmaOf(c, a, b, [](uint16_t x) { return HalfBits(x); });
}
#endif

// ---- products of codes by a warp (PTX: mma.m16n8k32, row.col, s32) ----
// d [16, 8] = c + a [16, 32] * b [32, 8] in whole numbers. b: signed bytes; a: signed ones, or unsigned with
// kUnsigned. Byte i of a word is the i-th of four columns (a) or rows (b). Lane l, u = l / 4, v = l % 4: a =
// (u, 4v), (u + 8, 4v), (u, 4v + 16), (u + 8, 4v + 16); b = (4v, u), (4v + 16, u); c and d as c above.
#if defined(__CUDACC__)
template <bool kUnsigned>
KVC_DEVICE void MmaCodes(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                         const int32_t (&c)[4]) {
  if constexpr (kUnsigned) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]),
          "r"(c[3]));
  } else {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c[0]), "r"(c[1]), "r"(c[2]),
          "r"(c[3]));
  }
}
#else
template <bool kUnsigned>
KVC_DEVICE void MmaCodes(int32_t (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                         const int32_t (&c)[4]) {
  struct Fragments {
    uint32_t a[4], b[2];
  };
  const Fragments mine = {{a[0], a[1], a[2], a[3]}, {b[0], b[1]}};
  const Fragments* all = static_cast<const Fragments*>(emu::Exchange(kAllLanes, &mine, sizeof mine));
  int32_t sums[4];
  for (int i = 0; i < 4; ++i) {
    const Fragments *row = all + Lane() / 4 * 4, *column = all + (Lane() % 4 * 2 + i % 2) * 4;
    sums[i] = c[i];
    for (int k = 0; k < 32; ++k) {
      const auto left = static_cast<uint8_t>(row[k % 16 / 4].a[k / 16 * 2 + i / 2] >> (k % 4 * 8)),
                 right = static_cast<uint8_t>(column[k % 16 / 4].b[k / 16] >> (k % 4 * 8));
      sums[i] +=
          (kUnsigned ? int32_t{left} : int32_t{static_cast<int8_t>(left)}) * static_cast<int8_t>(right);
    }
  }
  for (int i = 0; i < 4; ++i) d[i] = sums[i];
}
#endif

// Byte i of the result: that of number kBytes >> 4 i of the eight of a and b.
template <unsigned kBytes>
KVC_DEVICE uint32_t PickBytes(uint32_t a, uint32_t b) {
#if defined(__CUDACC__)
  return __byte_perm(a, b, kBytes);
#else
  uint32_t x = 0;
  for (int i = 0; i < 4; ++i)
    x |= static_cast<uint32_t>((uint64_t{b} << 32 | a) >> ((kBytes >> (4 * i) & 7) * 8) & 0xffu) << (8 * i);
  return x;
#endif
}

// c + the products of four signed bytes each (PTX: dp4a).
#if defined(__CUDACC__)
KVC_DEVICE int32_t DotBytes(uint32_t a, uint32_t b, int32_t c) {
  return __dp4a(static_cast<int32_t>(a), static_cast<int32_t>(b), c);
}
#else
KVC_DEVICE int32_t DotBytes(uint32_t a, uint32_t b, int32_t c) {
  for (int i = 0; i < 32; i += 8) c += static_cast<int8_t>(a >> i) * static_cast<int8_t>(b >> i);
  return c;
}
#endif
// To the nearest whole number, the even one of two.
#if defined(__CUDACC__)
KVC_DEVICE int32_t RoundToWhole(float x) { return __float2int_rn(x); }
#else
KVC_DEVICE int32_t RoundToWhole(float x) { return static_cast<int32_t>(std::nearbyint(x)); }
#endif

// a * b + c of two numbers of f16 each, each sum rounded once.
#if defined(__CUDACC__)
KVC_DEVICE uint32_t MultiplyAddHalves(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t x;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(x) : "r"(a), "r"(b), "r"(c));
  return x;
}
#else
KVC_DEVICE uint32_t MultiplyAddHalves(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t x = 0;
  for (int i = 0; i < 32; i += 16) {
    const auto half = [i](uint32_t pair) { return HalfBits(static_cast<uint16_t>(pair >> i)); };
    x |= static_cast<uint32_t>(ToHalfBits(std::fma(half(a), half(b), half(c)))) << i;
  }
  return x;
}
#endif

// Four numbers of 16 bits, and eight: as many bytes, aligned to them.
#if defined(__CUDACC__)
KVC_DEVICE void StoreFour(uint16_t* at, uint2 v) { *reinterpret_cast<uint2*>(at) = v; }
KVC_DEVICE void StoreEight(uint16_t* at, uint4 v) { *reinterpret_cast<uint4*>(at) = v; }
#else
KVC_DEVICE void StoreFour(uint16_t* at, uint2 v) { std::memcpy(at, &v, sizeof v); }
KVC_DEVICE void StoreEight(uint16_t* at, uint4 v) { std::memcpy(at, &v, sizeof v); }
#endif

// Four matrices of 8 x 8 numbers of 16 bits from shared memory (PTX: ldmatrix.x4): lane l gives the address
// of row l % 8 of matrix l / 8, 16-byte aligned, and gets of every matrix the pair (l / 4, 2 (l % 4)); of the
// transposed one with kTransposed.
#if defined(__CUDACC__)
template <bool kTransposed>
KVC_DEVICE void LoadMatrices(uint32_t (&m)[4], const uint16_t* row) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(at)
                 : "memory");
  }
}
#else
template <bool kTransposed>
KVC_DEVICE void LoadMatrices(uint32_t (&m)[4], const uint16_t* row) {
  uint16_t mine[8];
  for (int i = 0; i < 8; ++i) mine[i] = row[i];
  const uint16_t* all = static_cast<const uint16_t*>(emu::Exchange(kAllLanes, mine, sizeof mine));
  const int r = Lane() / 4, c = Lane() % 4 * 2;
  const int low = kTransposed ? c * 8 + r : r * 8 + c, high = kTransposed ? low + 8 : low + 1;
  for (int i = 0; i < 4; ++i) m[i] = all[i * 64 + low] | static_cast<uint32_t>(all[i * 64 + high]) << 16;
}
#endif

// ---- copies to shared memory, on their way while the thread does something else (PTX: cp.async) ----
// kBytes: 16, past the first-level cache, or 8 or 4; both places are aligned to as many. Zeros come where
// nothing is there to be copied. CloseCopies makes a group of those that have been asked for since the last
// one. WaitForCopies waits for the thread's own groups but the newest kGroups; others see what it has brought
// once they have met it.
#if defined(__CUDACC__)
template <int kBytes>
KVC_DEVICE void CopyLater(void* to, const void* from) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(kBytes) : "memory");
  }
}
template <int kBytes>
KVC_DEVICE void CopyLater(void* to, const void* from, bool there) {
  static_assert(kBytes == 16);
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(at), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
KVC_DEVICE void CloseCopies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kGroups>
KVC_DEVICE void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}
#else
// They happen as late as they may. Until then there are no numbers: who reads too early, or still, finds
// that.
template <int kBytes>
KVC_DEVICE void CopyLater(void* to, const void* from, bool there = true) {
  if ((reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % kBytes != 0) std::abort();
  for (int i = 0; i < kBytes / 4; ++i) static_cast<uint32_t*>(to)[i] = ~0u;
  // A device may read what is to be copied at once as well: for who looks for races.
  const auto* early = static_cast<const volatile uint32_t*>(from);
  for (int i = 0; there && i < kBytes / 4; ++i) static_cast<void>(early[i]);
  emu::QueueCopy({to, there ? from : nullptr, kBytes});
}
KVC_DEVICE void CloseCopies() { emu::CloseCopies(); }
template <int kGroups>
KVC_DEVICE void WaitForCopies() {
  for (emu::Copy copy; emu::TakeCopy(kGroups, &copy);) {
    for (int i = 0; i < copy.bytes / 4; ++i)
      static_cast<uint32_t*>(copy.to)[i] =
          copy.from == nullptr ? 0u : static_cast<const uint32_t*>(copy.from)[i];
  }
}
#endif

// ---- a warp ----
// Whether it is so on any lane; a bit for each lane on which it is; how many there are.
#if defined(__CUDACC__)
KVC_DEVICE bool OnAnyLane(bool so) { return __any_sync(kAllLanes, so) != 0; }
KVC_DEVICE uint32_t LanesWhere(bool so) { return __ballot_sync(kAllLanes, so); }
KVC_DEVICE int32_t CountBits(uint32_t x) { return __popc(x); }
#else
KVC_DEVICE int32_t CountBits(uint32_t x) { return __builtin_popcount(x); }
KVC_DEVICE uint32_t LanesWhere(bool so) {
  const bool* all = static_cast<const bool*>(emu::Exchange(kAllLanes, &so, sizeof so));
  uint32_t lanes = 0;
  for (int i = 0; i < kWarp; ++i) lanes |= (all[i] ? 1u : 0u) << i;
  return lanes;
}
KVC_DEVICE bool OnAnyLane(bool so) { return LanesWhere(so) != 0; }
#endif
// f over all lanes, in a tree: the same on every lane.
#if defined(__CUDACC__)
template <typename T, typename F>
KVC_DEVICE T WarpFold(T x, F f) {
  for (int i = kWarp / 2; i > 0; i /= 2) x = f(x, __shfl_xor_sync(kAllLanes, x, i));
  return x;
}
#else
// The tree in one meeting: lanes that have ended, or never were, would bring what nobody defined, there as on
// a device.
template <typename T, typename F>
KVC_DEVICE T WarpFold(T x, F f) {
  T all[kWarp];
  std::memcpy(all, emu::Exchange(kAllLanes, &x, sizeof x), sizeof all);
  for (int i = kWarp / 2; i > 0; i /= 2) {
    for (int j = 0; j < i; ++j) all[j] = f(all[j], all[j + i]);
  }
  return all[0];
}
#endif
template <typename T>
KVC_DEVICE T WarpSum(T x) {
  return WarpFold(x, [](T a, T b) { return a + b; });
}
KVC_DEVICE float WarpMax(float x) {
  return WarpFold(x, [](float a, float b) { return fmaxf(a, b); });
}

// f over the four lanes 4 i .. 4 i + 3, which have a row of a product (above): the same on each.
template <typename F>
KVC_DEVICE float QuadFold(float x, F f) {
  x = f(x, __shfl_xor_sync(kAllLanes, x, 1));
  return f(x, __shfl_xor_sync(kAllLanes, x, 2));
}
KVC_DEVICE float QuadSum(float x) {
  return QuadFold(x, [](float a, float b) { return a + b; });
}
KVC_DEVICE float QuadMax(float x) {
  return QuadFold(x, [](float a, float b) { return fmaxf(a, b); });
}

// One more in a counter of shared memory where it is so.
#if defined(__CUDACC__)
KVC_DEVICE void CountIf(bool so, int32_t* counter) {
  uint32_t x = so ? 1u : 0u, at = static_cast<uint32_t>(__cvta_generic_to_shared(counter));
  asm volatile("{.reg .pred p; setp.ne.u32 p, %0, 0; @p atom.shared.add.u32 %0, [%1], 1;}"
               : "+r"(x)
               : "r"(at)
               : "memory");
}
#else
KVC_DEVICE void CountIf(bool so, int32_t* counter) { so ? atomicAdd(counter, 1) : 0; }
#endif

// ---- a block; `shared` has room for one value a warp, and is free again when the call returns ----
template <typename T>
KVC_DEVICE T BlockSum(T x, T* shared) {
  x = WarpSum(x);
  if (Lane() == 0) shared[WarpOfBlock()] = x;
  __syncthreads();
  T sum = 0;
  for (int i = 0; i < BlockThreads() / kWarp; ++i) sum += shared[i];
  __syncthreads();
  return sum;
}
KVC_DEVICE float BlockMax(float x, float* shared) {
  x = WarpMax(x);
  if (Lane() == 0) shared[WarpOfBlock()] = x;
  __syncthreads();
  float most = shared[0];
  for (int i = 1; i < BlockThreads() / kWarp; ++i) most = fmaxf(most, shared[i]);
  __syncthreads();
  return most;
}
KVC_DEVICE uint64_t BlockMax(uint64_t x, uint64_t* shared) {
  x = WarpFold(x, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
  if (Lane() == 0) shared[WarpOfBlock()] = x;
  __syncthreads();
  uint64_t most = shared[0];
  for (int i = 1; i < BlockThreads() / kWarp; ++i) most = shared[i] > most ? shared[i] : most;
  __syncthreads();
  return most;
}
// Threads' numbers before mine, and of all.
KVC_DEVICE int32_t BlockPrefix(int32_t x, int32_t* shared, int32_t* total) {
  int32_t sum = x;
  for (int i = 1; i < kWarp; i *= 2) {
    const int32_t other = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(i));
    if (Lane() >= i) sum += other;
  }
  if (Lane() == kWarp - 1) shared[WarpOfBlock()] = sum;
  __syncthreads();
  int32_t before = 0, all = 0;
  for (int i = 0; i < BlockThreads() / kWarp; ++i) {
    if (i < WarpOfBlock()) before += shared[i];
    all += shared[i];
  }
  __syncthreads();
  *total = all;
  return before + sum - x;
}

}  // namespace kvc::cuda
