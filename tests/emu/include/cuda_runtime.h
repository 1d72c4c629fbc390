// The part of the CUDA runtime, and of its language, that cuda/ uses, for a processor: the same sources are
// compiled as C++ against this header and run by tests/emu/emulator.cc. Names and meanings are CUDA's
// (programming guide, runtime API); what is not here is not used.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>

#include "lib/base/half.h"

#define __global__
#define __launch_bounds__(...)
// Blocks run one after the other on a thread, the threads of a block as fibers of it.
#define __shared__ static thread_local

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

namespace kvc::emu {

// To shared memory, of a thread that goes on meanwhile. from null: zeros.
struct Copy {
  void* to;
  const void* from;
  int bytes;
};
struct Thread {
  dim3 index;
  unsigned lane = 0, warp = 0;
  unsigned meetings = 0;  // of its warp, that order what its lanes do to memory
  bool waited = false;    // for what lies before the kernel
};
struct Block {
  dim3 index, dim, grid;
  uint8_t* shared = nullptr;          // dynamic, of exactly the size that was asked for
  unsigned number = 0, barriers = 0;  // in the grid; that its threads have passed
  unsigned waits = 0;                 // of its threads, for what lies before the kernel
  size_t copies = 0;                  // that threads had not waited for when they ended
};
extern thread_local Thread* self;
extern thread_local Block* block;

// All lanes of `mask` meet; every one hands in `bytes` and gets those of all 32 (undefined for the others).
// What they did to memory before is not there for the others yet: for that they meet in WarpBarrier.
const void* Exchange(unsigned mask, const void* mine, size_t bytes);
void WarpBarrier(unsigned mask);
void BlockBarrier();
void WaitForEarlier();
// What the block did so far is before what blocks do that come behind here and take it.
void ReleaseCount(const void* count);
void AcquireCount(const void* count);
void Prefetch(const void* at, int64_t bytes);  // into a cache
void QueueCopy(const Copy& copy);
void CloseCopies();
// The oldest of the thread's copies that is in none of its newest `groups` closed groups. False: there is
// none.
bool TakeCopy(unsigned groups, Copy* copy);

}  // namespace kvc::emu

#define threadIdx (::kvc::emu::self->index)
#define blockIdx (::kvc::emu::block->index)
#define blockDim (::kvc::emu::block->dim)
#define gridDim (::kvc::emu::block->grid)

// ---- the language ----
inline void __syncthreads() { kvc::emu::BlockBarrier(); }
inline void __syncwarp(unsigned mask = ~0u) { kvc::emu::WarpBarrier(mask); }

template <typename T>
T __shfl_sync(unsigned mask, T value, int from) {
  return static_cast<const T*>(kvc::emu::Exchange(mask, &value, sizeof(T)))[from % 32];
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int other, int width = 32) {
  const T* all = static_cast<const T*>(kvc::emu::Exchange(mask, &value, sizeof(T)));
  const int me = static_cast<int>(kvc::emu::self->lane), to = me ^ other;
  return to / width == me / width ? all[to] : value;
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta) {
  const T* all = static_cast<const T*>(kvc::emu::Exchange(mask, &value, sizeof(T)));
  const unsigned me = kvc::emu::self->lane;
  return me >= delta ? all[me - delta] : value;
}

template <typename T>
T __ldcs(const T* p) {
  return *p;
}

// Whole numbers only: what floats add up to would depend on the order.
template <typename T>
T atomicAdd(T* at, T x) {
  return __atomic_fetch_add(at, x, __ATOMIC_RELAXED);
}

inline unsigned __float_as_uint(float x) { return kvc::FloatToBits(x); }
inline float __uint_as_float(unsigned x) { return kvc::BitsToFloat(x); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
using std::isnan;
using std::max;
using std::min;

// ---- the runtime ----
#define CUDART_VERSION 13000
enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInitializationError = 3,
  cudaErrorInsufficientDriver = 35,
  cudaErrorCallRequiresNewerDriver = 36,
  cudaErrorInvalidDeviceFunction = 98,
  cudaErrorNoDevice = 100,
  cudaErrorInvalidDevice = 101,
  cudaErrorInvalidKernelImage = 200,
  cudaErrorNoKernelImageForDevice = 209,
  cudaErrorInvalidPtx = 218,
  cudaErrorJitCompilerNotFound = 221,
  cudaErrorUnsupportedPtxVersion = 222,
  cudaErrorJitCompilationDisabled = 223,
  cudaErrorInvalidResourceHandle = 400,
  cudaErrorLaunchOutOfResources = 701,
  cudaErrorLaunchFailure = 719,
  cudaErrorNotSupported = 801,
  cudaErrorSystemNotReady = 802,
  cudaErrorStreamCaptureUnsupported = 900,
  cudaErrorUnknown = 999,
};
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
struct CUstream_st;
struct CUevent_st;
struct CUgraph_st;
struct CUgraphNode_st;
struct CUgraphExec_st;
using cudaStream_t = CUstream_st*;
using cudaEvent_t = CUevent_st*;
using cudaGraph_t = CUgraph_st*;
using cudaGraphNode_t = CUgraphNode_st*;
using cudaGraphExec_t = CUgraphExec_st*;
// In the order of CUDA's, whose names gridDim and blockDim are words of the language here.
struct cudaKernelNodeParams {
  void* func;
  dim3 grid, block;
  unsigned sharedMemBytes;
  void** kernelParams;
  void** extra;
};
// A kernel that may begin before the one in front of it has ended: an edge of a graph, or a launch.
enum { cudaGraphKernelNodePortProgrammatic = 1, cudaGraphDependencyTypeProgrammatic = 1 };
struct cudaGraphEdgeData {
  unsigned char from_port, to_port, type, reserved[5];
};
enum { cudaLaunchAttributeProgrammaticStreamSerialization = 6 };
struct cudaLaunchAttribute {
  int id;
  struct {
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 grid, block;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  unsigned numAttrs;
};
enum { cudaEventDisableTiming = 2, cudaStreamNonBlocking = 1, cudaHostAllocDefault = 0 };
struct cudaDeviceProp {
  char name[256];
  size_t totalGlobalMem;
  int major, minor, multiProcessorCount;
};
struct cudaFuncAttributes {
  size_t sharedSizeBytes;  // not dynamic
  int ptxVersion;          // the compute capability that it was compiled for, in tenths
};
enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9
};
enum { cudaSharedmemCarveoutMaxShared = 100 };
extern "C" {
const char* cudaGetErrorString(cudaError_t);
cudaError_t cudaGetDeviceCount(int*);
cudaError_t cudaSetDevice(int);
cudaError_t cudaGetDevice(int*);
cudaError_t cudaDriverGetVersion(int*);
cudaError_t cudaRuntimeGetVersion(int*);
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
cudaError_t cudaStreamCreateWithPriority(cudaStream_t*, unsigned, int);
cudaError_t cudaDeviceGetStreamPriorityRange(int*, int*);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaDeviceSynchronize();
cudaError_t cudaEventCreateWithFlags(cudaEvent_t*, unsigned);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t, cudaEvent_t);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*);
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int);
cudaError_t cudaLaunchHostFunc(cudaStream_t, void (*)(void*), void*);
cudaError_t cudaLaunchKernel(const void*, dim3 grid, dim3 block, void** params, size_t shared, cudaStream_t);
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void** params);
cudaError_t cudaGraphCreate(cudaGraph_t*, unsigned flags);
cudaError_t cudaGraphDestroy(cudaGraph_t);
cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t* before, size_t n,
                                   const cudaKernelNodeParams*);
cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t*, cudaGraph_t, const cudaGraphNode_t* before, size_t n,
                                     void*, const void*, size_t, cudaMemcpyKind);
cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t* from, const cudaGraphNode_t* to,
                                     const cudaGraphEdgeData*, size_t n);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t*, cudaGraph_t, unsigned long long flags);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t);
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t, cudaGraphNode_t, const cudaKernelNodeParams*);
cudaError_t cudaGraphExecMemcpyNodeSetParams1D(cudaGraphExec_t, cudaGraphNode_t, void*, const void*, size_t,
                                               cudaMemcpyKind);
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t);
}

namespace kvc::emu {

// Memory that the backend keeps is nobody's once both streams are where they are now, until it is taken: who
// reads it then meets ones, and AddressSanitizer sees every access.
void NoteFreed(void* at, size_t bytes, cudaStream_t first, cudaStream_t second);
void NoteTaken(void* at, size_t bytes);

// What the runtime knows of a kernel: nvcc would tell it when the program starts.
struct KernelForm {
  const char* name;
  size_t n_params;
  const size_t* sizes;
  void (*call)(const void* function, void* const* params);
};
void Describe(const void* function, const KernelForm& form);

template <typename... Params, size_t... I>
void CallWith(const void* function, void* const* params, std::index_sequence<I...>) {
  reinterpret_cast<void (*)(Params...)>(const_cast<void*>(function))(*static_cast<Params*>(params[I])...);
}
template <typename... Params>
void Describe(void (*kernel)(Params...), const char* name) {
  static constexpr size_t sizes[] = {sizeof(Params)...};
  Describe(reinterpret_cast<const void*>(kernel),
           {name, sizeof...(Params), sizes, [](const void* function, void* const* params) {
              CallWith<std::remove_cv_t<Params>...>(function, params, std::index_sequence_for<Params...>());
            }});
}

}  // namespace kvc::emu
