// The part of the CUDA runtime, and of its language, that cuda/ uses, for a processor: the same sources are
// compiled as C++ against this header and run by tests/emu/emulator.cc. Names and meanings are CUDA's
// (programming guide, runtime API); what is not here is not used.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

#include "lib/base/half.h"

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
#define __grid_constant__
// Blocks run one after the other on a thread, the threads of a block as fibers of it.
#define __shared__ static thread_local

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace kvc::emu {

struct Thread {
  dim3 index;
  unsigned lane = 0, warp = 0;
};
struct Block {
  dim3 index, dim, grid;
  uint8_t* shared = nullptr;  // dynamic, of exactly the size that was asked for
};
extern thread_local Thread* self;
extern thread_local Block* block;

// All lanes of `mask` meet; every one hands in `bytes` and gets those of all 32 (undefined for the others).
const void* Exchange(unsigned mask, const void* mine, size_t bytes);
void BlockBarrier();
int BlockVote(int predicate);  // how many threads of the block said yes

}  // namespace kvc::emu

#define threadIdx (::kvc::emu::self->index)
#define blockIdx (::kvc::emu::block->index)
#define blockDim (::kvc::emu::block->dim)
#define gridDim (::kvc::emu::block->grid)
constexpr int warpSize = 32;

// ---- the language ----
inline void __syncthreads() { kvc::emu::BlockBarrier(); }
inline int __syncthreads_count(int p) { return kvc::emu::BlockVote(p); }
inline int __syncthreads_or(int p) { return kvc::emu::BlockVote(p) != 0; }
inline void __syncwarp(unsigned mask = ~0u) {
  char none = 0;
  kvc::emu::Exchange(mask, &none, 1);
}
inline void __threadfence() {}
inline void __threadfence_block() {}

template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  const T* all = static_cast<const T*>(kvc::emu::Exchange(mask, &value, sizeof(T)));
  const int me = static_cast<int>(kvc::emu::self->lane), base = me / width * width;
  return all[base + (lane & (width - 1))];
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int other, int width = 32) {
  const T* all = static_cast<const T*>(kvc::emu::Exchange(mask, &value, sizeof(T)));
  const int me = static_cast<int>(kvc::emu::self->lane), to = me ^ other;
  return to / width == me / width ? all[to] : value;
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const T* all = static_cast<const T*>(kvc::emu::Exchange(mask, &value, sizeof(T)));
  const int me = static_cast<int>(kvc::emu::self->lane);
  return me % width >= static_cast<int>(delta) ? all[me - static_cast<int>(delta)] : value;
}
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  const T* all = static_cast<const T*>(kvc::emu::Exchange(mask, &value, sizeof(T)));
  const int me = static_cast<int>(kvc::emu::self->lane);
  return me % width + static_cast<int>(delta) < width ? all[me + static_cast<int>(delta)] : value;
}
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const int* all = static_cast<const int*>(kvc::emu::Exchange(mask, &predicate, sizeof predicate));
  unsigned bits = 0;
  for (int i = 0; i < 32; ++i) bits |= (mask >> i & 1) != 0 && all[i] != 0 ? 1u << i : 0u;
  return bits;
}
inline int __any_sync(unsigned mask, int p) { return __ballot_sync(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return __ballot_sync(mask, p) == mask; }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __clz(int x) { return x == 0 ? 32 : __builtin_clz(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return __builtin_ffs(x); }

template <typename T>
T __ldg(const T* p) {
  return *p;
}
template <typename T>
T __ldcs(const T* p) {
  return *p;
}

// Fibers of one thread never run at once: plain operations are atomic ones.
template <typename T>
T atomicAdd(T* at, T x) {
  const T old = *at;
  *at = old + x;
  return old;
}
template <typename T>
T atomicMax(T* at, T x) {
  const T old = *at;
  if (x > old) *at = x;
  return old;
}
template <typename T>
T atomicMin(T* at, T x) {
  const T old = *at;
  if (x < old) *at = x;
  return old;
}
template <typename T>
T atomicOr(T* at, T x) {
  const T old = *at;
  *at = old | x;
  return old;
}
template <typename T>
T atomicExch(T* at, T x) {
  const T old = *at;
  *at = x;
  return old;
}

inline unsigned __float_as_uint(float x) { return kvc::FloatToBits(x); }
inline float __uint_as_float(unsigned x) { return kvc::BitsToFloat(x); }
inline int __float_as_int(float x) { return static_cast<int>(kvc::FloatToBits(x)); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
using std::exp;
using std::fmax;
using std::fmin;
using std::isnan;
using std::log;
using std::max;
using std::min;
using std::sqrt;

// ---- the runtime ----
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorNotReady = 600,
  cudaErrorLaunchFailure = 719,
};
enum cudaMemcpyKind {
  cudaMemcpyHostToHost = 0,
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost = 2,
  cudaMemcpyDeviceToDevice = 3,
  cudaMemcpyDefault = 4
};
struct CUstream_st;
struct CUevent_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2, cudaHostAllocDefault = 0 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin = 97, cudaDevAttrMultiProcessorCount = 16 };
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem, sharedMemPerBlockOptin;
  int major, minor, multiProcessorCount, integrated, l2CacheSize;
};
extern "C" {
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaGetDeviceCount(int*);
cudaError_t cudaSetDevice(int);
cudaError_t cudaDriverGetVersion(int*);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp*, int);
cudaError_t cudaGetLastError();
cudaError_t cudaMalloc(void**, size_t);
cudaError_t cudaFree(void*);
cudaError_t cudaHostAlloc(void**, size_t, unsigned);
cudaError_t cudaFreeHost(void*);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaMemcpyAsync(void*, const void*, size_t, cudaMemcpyKind, cudaStream_t);
cudaError_t cudaMemsetAsync(void*, int, size_t, cudaStream_t);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t*, unsigned);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
}

namespace kvc::emu {

// Queues the kernel on its stream; it runs when somebody waits for what the stream has done.
cudaError_t Launch(const char* name, dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
                   std::function<void()> kernel);

}  // namespace kvc::emu
