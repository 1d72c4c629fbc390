// What of cuBLASLt is called, declared here: the library is loaded at run time (blas.cc), and toolkits put
// together from parts need not have its header. Names and values have stood since CUDA 11;
// tests/emu/cublas_abi.cc holds them to the header where there is one.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

namespace kvc::cuda::lt {

using Result = int;  // cublasStatus_t
constexpr Result kSuccess = 0;

constexpr int kFloat = 0, kHalf = 2;        // CUDA_R_32F, CUDA_R_16F
constexpr int kComputeFloat = 68;           // CUBLAS_COMPUTE_32F
constexpr int32_t kTransposed = 1;          // CUBLAS_OP_T
constexpr uint32_t kReduceInWorkspace = 2;  // CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE

// cublasLtMatmulDescAttributes_t
constexpr int kTransA = 3;
// cublasLtMatmulPreferenceAttributes_t
constexpr int kMostWorkspace = 1, kReductionSchemes = 3, kAlignmentA = 5, kAlignmentB = 6, kAlignmentC = 7,
              kAlignmentD = 8;

struct Context;
struct Operation;   // cublasLtMatmulDesc_t is a pointer to it
struct Layout;      // cublasLtMatrixLayout_t
struct Preference;  // cublasLtMatmulPreference_t

struct Algorithm {
  uint64_t data[8];
};
struct Heuristic {  // cublasLtMatmulHeuristicResult_t
  Algorithm algorithm;
  size_t workspace_bytes;
  Result result;
  float waves;
  int reserved[4];
};

struct Functions {
  size_t (*version)();
  Result (*create)(Context**);
  Result (*destroy)(Context*);
  Result (*create_operation)(Operation**, int compute_type, int scale_type);
  Result (*destroy_operation)(Operation*);
  Result (*set_operation)(Operation*, int attribute, const void* value, size_t bytes);
  Result (*create_layout)(Layout**, int type, uint64_t rows, uint64_t cols, int64_t stride);
  Result (*destroy_layout)(Layout*);
  Result (*create_preference)(Preference**);
  Result (*destroy_preference)(Preference*);
  Result (*set_preference)(Preference*, int attribute, const void* value, size_t bytes);
  Result (*find)(Context*, Operation*, Layout* a, Layout* b, Layout* c, Layout* d, Preference*, int wanted,
                 Heuristic* results, int* n_results);
  Result (*multiply)(Context*, Operation*, const void* alpha, const void* a, Layout* of_a, const void* b,
                     Layout* of_b, const void* beta, const void* c, Layout* of_c, void* d, Layout* of_d,
                     const Algorithm*, void* workspace, size_t workspace_bytes, cudaStream_t);
};

}  // namespace kvc::cuda::lt
