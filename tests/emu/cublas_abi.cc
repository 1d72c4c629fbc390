// What cuda/cublas_abi.h declares, held to NVIDIA's header; compiled where a toolkit has it.
#include "cuda/cublas_abi.h"

#include <cublasLt.h>

#include <type_traits>

namespace kvc::cuda::lt {

static_assert(kSuccess == CUBLAS_STATUS_SUCCESS && sizeof(Result) == sizeof(cublasStatus_t));
static_assert(kFloat == CUDA_R_32F && kHalf == CUDA_R_16F && sizeof(int) == sizeof(cudaDataType_t));
static_assert(kComputeFloat == CUBLAS_COMPUTE_32F && sizeof(int) == sizeof(cublasComputeType_t));
static_assert(kTransposed == CUBLAS_OP_T && kTransA == CUBLASLT_MATMUL_DESC_TRANSA);
static_assert(kReduceInWorkspace == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);

static_assert(kMostWorkspace == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
static_assert(kReductionSchemes == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
static_assert(kAlignmentA == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
static_assert(kAlignmentB == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
static_assert(kAlignmentC == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
static_assert(kAlignmentD == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);

static_assert(sizeof(Algorithm) == sizeof(cublasLtMatmulAlgo_t));
using Theirs = cublasLtMatmulHeuristicResult_t;
static_assert(sizeof(Heuristic) == sizeof(Theirs) && alignof(Heuristic) == alignof(Theirs));
static_assert(offsetof(Heuristic, workspace_bytes) == offsetof(Theirs, workspaceSize));
static_assert(offsetof(Heuristic, result) == offsetof(Theirs, state));

// Functions, parameter by parameter: a pointer for a pointer, and numbers of one size.
template <typename Ours, typename Theirs>
constexpr bool kAlike =
    sizeof(Ours) == sizeof(Theirs) && std::is_pointer_v<Ours> == std::is_pointer_v<Theirs>;
template <typename Ours, typename Theirs>
struct SameCall : std::false_type {};
template <typename R, typename... P, typename S, typename... Q>
struct SameCall<R (*)(P...), S (*)(Q...)> {
  static constexpr bool Alike() {
    if constexpr (sizeof...(P) == sizeof...(Q)) return kAlike<R, S> && (kAlike<P, Q> && ...);
    return false;
  }
  static constexpr bool value = Alike();
};
#define KVC_SAME(function, theirs) \
  static_assert(SameCall<decltype(Functions::function), decltype(&theirs)>::value)
KVC_SAME(version, cublasLtGetVersion);
KVC_SAME(create, cublasLtCreate);
KVC_SAME(destroy, cublasLtDestroy);
KVC_SAME(create_operation, cublasLtMatmulDescCreate);
KVC_SAME(destroy_operation, cublasLtMatmulDescDestroy);
KVC_SAME(set_operation, cublasLtMatmulDescSetAttribute);
KVC_SAME(create_layout, cublasLtMatrixLayoutCreate);
KVC_SAME(destroy_layout, cublasLtMatrixLayoutDestroy);
KVC_SAME(create_preference, cublasLtMatmulPreferenceCreate);
KVC_SAME(destroy_preference, cublasLtMatmulPreferenceDestroy);
KVC_SAME(set_preference, cublasLtMatmulPreferenceSetAttribute);
KVC_SAME(find, cublasLtMatmulAlgoGetHeuristic);
KVC_SAME(multiply, cublasLtMatmul);

}  // namespace kvc::cuda::lt
