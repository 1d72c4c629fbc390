// A cuBLASLt for the emulated device: the functions that cuda/blas.cc calls, with sums in double, strictly by
// what NVIDIA's manual says of them. Products happen with their stream and not before, and use the workspace:
// nothing may lie there.
#include "tests/emu/fake_cublaslt.h"

#include <cstring>
#include <vector>

#include "cuda/cublas_abi.h"
#include "lib/base/half.h"

namespace kvc::cuda::lt {

struct Context {
  bool alive = true;
};
struct Operation {
  int compute_type, scale_type;
  int32_t trans[2] = {0, 0};
};
struct Layout {
  int type;
  uint64_t rows, cols;
  int64_t stride;
};
struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = 7, alignment[4] = {256, 256, 256, 256};
};

namespace {

constexpr Result kInvalid = 7, kNotSupported = 15, kInternal = 14;
constexpr uint64_t kWorkspace = 4096;  // what every algorithm here wants

emu::FakeBlas& The() {
  static emu::FakeBlas fake;
  return fake;
}

Result Broken(const char* rule) {
  The().broken_rule = rule;
  return kInvalid;
}

template <typename T, typename... Values>
Result Make(T** out, Values... values) {
  *out = new T{values...};
  ++The().objects;
  return kSuccess;
}
template <typename T>
Result Destroy(T* object) {
  if (object == nullptr) return kInvalid;
  delete object;
  --The().objects;
  return kSuccess;
}

// What an algorithm is for.
struct Purpose {
  uint64_t rows, sum, alignment;
};

struct Product {
  Operation operation;
  Layout a, b, c, d;
  float alpha, beta;
  const void *at_a, *at_b;
  const float* at_c;
  float* at_d;
  uint8_t* workspace;
  uint64_t n_sum;
};

// Element (i, j) of a matrix as it takes part.
double Number(const Layout& l, const void* at, bool transposed, uint64_t i, uint64_t j) {
  const uint64_t r = transposed ? j : i, c = transposed ? i : j;
  return static_cast<double>(
      F16ToFloat(static_cast<const uint16_t*>(at)[r + c * static_cast<uint64_t>(l.stride)]));
}

void Run(void* data) {
  const Product* p = static_cast<const Product*>(data);
  std::memset(p->workspace, 0xee, kWorkspace);
  // Rows of the one and columns of the other, each number read once.
  const uint64_t n = p->n_sum;
  std::vector<double> rows(p->d.rows * n), columns(p->d.cols * n);
  for (uint64_t k = 0; k < n; ++k) {
    for (uint64_t i = 0; i < p->d.rows; ++i)
      rows[i * n + k] = Number(p->a, p->at_a, p->operation.trans[0] == kTransposed, i, k);
    for (uint64_t j = 0; j < p->d.cols; ++j)
      columns[j * n + k] = Number(p->b, p->at_b, p->operation.trans[1] == kTransposed, k, j);
  }
  for (uint64_t j = 0; j < p->d.cols; ++j) {
    for (uint64_t i = 0; i < p->d.rows; ++i) {
      const double *left = rows.data() + i * n, *right = columns.data() + j * n;
      double sum = 0;
      for (uint64_t k = 0; k < n; ++k) sum += left[k] * right[k];
      float value = p->alpha * static_cast<float>(sum);
      if (p->beta != 0) value += p->beta * p->at_c[i + j * static_cast<uint64_t>(p->c.stride)];
      p->at_d[i + j * static_cast<uint64_t>(p->d.stride)] = value;
    }
  }
  delete p;
}

// How many products a sum has; 0: the matrices do not fit each other.
uint64_t SumOf(const Operation& o, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  const bool ta = o.trans[0] == kTransposed, tb = o.trans[1] == kTransposed;
  const bool fits = (ta ? a.cols : a.rows) == d.rows && (tb ? b.rows : b.cols) == d.cols &&
                    (ta ? a.rows : a.cols) == (tb ? b.cols : b.rows) && c.rows == d.rows && c.cols == d.cols;
  const bool types = a.type == kHalf && b.type == kHalf && c.type == kFloat && d.type == kFloat &&
                     o.compute_type == kComputeFloat && o.scale_type == kFloat;
  for (const Layout* l : {&a, &b, &c, &d}) {
    if (l->stride < static_cast<int64_t>(l->rows)) return 0;
  }
  return fits && types ? (ta ? a.rows : a.cols) : 0;
}

bool IsAligned(const void* at, uint64_t alignment) {
  return reinterpret_cast<uintptr_t>(at) % alignment == 0;
}

}  // namespace
}  // namespace kvc::cuda::lt

using kvc::cuda::lt::Algorithm;
using kvc::cuda::lt::Broken;
using kvc::cuda::lt::Context;
using kvc::cuda::lt::Destroy;
using kvc::cuda::lt::Heuristic;
using kvc::cuda::lt::Layout;
using kvc::cuda::lt::Make;
using kvc::cuda::lt::Operation;
using kvc::cuda::lt::Preference;
using kvc::cuda::lt::Result;
using kvc::cuda::lt::The;
namespace lt = kvc::cuda::lt;

#define KVC_FAKE __attribute__((visibility("default")))

extern "C" {

KVC_FAKE kvc::emu::FakeBlas* kvc_fake_blas() { return &The(); }

KVC_FAKE size_t cublasLtGetVersion() { return 130000; }
KVC_FAKE Result cublasLtCreate(Context** out) { return The().starts ? Make(out) : 1; }
KVC_FAKE Result cublasLtDestroy(Context* context) { return Destroy(context); }
KVC_FAKE Result cublasLtMatmulDescCreate(Operation** out, int compute_type, int scale_type) {
  return Make(out, compute_type, scale_type);
}
KVC_FAKE Result cublasLtMatmulDescDestroy(Operation* o) { return Destroy(o); }
KVC_FAKE Result cublasLtMatmulDescSetAttribute(Operation* o, int attribute, const void* value, size_t bytes) {
  const auto take = [&](auto* to) {
    if (bytes != sizeof *to) return Broken("the size of an attribute");
    std::memcpy(to, value, bytes);
    return lt::kSuccess;
  };
  switch (attribute) {
    case lt::kTransA:
      return take(&o->trans[0]);
    case lt::kTransA + 1:
      return take(&o->trans[1]);
    default:
      return Broken("an unknown attribute");
  }
}
KVC_FAKE Result cublasLtMatrixLayoutCreate(Layout** out, int type, uint64_t rows, uint64_t cols,
                                           int64_t stride) {
  return Make(out, type, rows, cols, stride);
}
KVC_FAKE Result cublasLtMatrixLayoutDestroy(Layout* l) { return Destroy(l); }
KVC_FAKE Result cublasLtMatmulPreferenceCreate(Preference** out) { return Make(out); }
KVC_FAKE Result cublasLtMatmulPreferenceDestroy(Preference* p) { return Destroy(p); }
KVC_FAKE Result cublasLtMatmulPreferenceSetAttribute(Preference* p, int attribute, const void* value,
                                                     size_t bytes) {
  const bool workspace = attribute == lt::kMostWorkspace;
  if (bytes != (workspace ? sizeof p->workspace : sizeof p->reductions))
    return Broken("the size of a preference");
  if (workspace) {
    std::memcpy(&p->workspace, value, bytes);
  } else if (attribute == lt::kReductionSchemes) {
    std::memcpy(&p->reductions, value, bytes);
  } else if (attribute >= lt::kAlignmentA && attribute <= lt::kAlignmentD) {
    std::memcpy(&p->alignment[attribute - lt::kAlignmentA], value, bytes);
  } else {
    return Broken("an unknown preference");
  }
  return lt::kSuccess;
}

KVC_FAKE Result cublasLtMatmulAlgoGetHeuristic(Context* context, Operation* o, Layout* a, Layout* b,
                                               Layout* c, Layout* d, Preference* preference, int wanted,
                                               Heuristic* results, int* n_results) {
  if (context == nullptr || !context->alive) return Broken("a context that is none");
  const int64_t number = The().finds++;
  if (The().failing_find >= 0 && number >= The().failing_find) return lt::kNotSupported;
  const uint64_t sum = lt::SumOf(*o, *a, *b, *c, *d);
  if (sum == 0 || wanted < 1) return Broken("matrices that do not fit each other");
  if ((preference->reductions & ~2u) != 0) return Broken("sums in an order of chance");
  *n_results = 0;
  if (preference->workspace < lt::kWorkspace) return lt::kSuccess;
  const lt::Purpose purpose{d->rows, sum, preference->alignment[0]};
  results[0] = {};
  std::memcpy(&results[0].algorithm, &purpose, sizeof purpose);
  results[0].workspace_bytes = lt::kWorkspace;
  *n_results = 1;
  return lt::kSuccess;
}

#if defined(KVC_FAKE_WITHOUT_PRODUCTS)
#define cublasLtMatmul kvc_not_cublasLtMatmul
#endif
KVC_FAKE Result cublasLtMatmul(Context* context, Operation* o, const void* alpha, const void* a, Layout* of_a,
                               const void* b, Layout* of_b, const void* beta, const void* c, Layout* of_c,
                               void* d, Layout* of_d, const Algorithm* algorithm, void* workspace,
                               size_t workspace_bytes, cudaStream_t stream) {
  if (context == nullptr || !context->alive) return Broken("a context that is none");
  const int64_t number = The().multiplies++;
  if (The().failing_multiply >= 0 && number >= The().failing_multiply &&
      number - The().failing_multiply < The().failing_multiplies)
    return lt::kInternal;
  const uint64_t sum = lt::SumOf(*o, *of_a, *of_b, *of_c, *of_d);
  lt::Purpose purpose;
  std::memcpy(&purpose, algorithm, sizeof purpose);
  if (sum == 0) return Broken("matrices that do not fit each other");
  if (purpose.rows != of_d->rows || purpose.sum != sum) return Broken("an algorithm of another product");
  for (const void* at : {a, b, c, static_cast<const void*>(d)}) {
    if (!lt::IsAligned(at, purpose.alignment)) return Broken("an address between the vectors");
  }
  if (workspace_bytes < lt::kWorkspace || !lt::IsAligned(workspace, 256))
    return Broken("too small a workspace");
  auto* const product = new lt::Product{*o,
                                        *of_a,
                                        *of_b,
                                        *of_c,
                                        *of_d,
                                        *static_cast<const float*>(alpha),
                                        *static_cast<const float*>(beta),
                                        a,
                                        b,
                                        static_cast<const float*>(c),
                                        static_cast<float*>(d),
                                        static_cast<uint8_t*>(workspace),
                                        sum};
  return The().enqueue(stream, lt::Run, product) == cudaSuccess ? lt::kSuccess : lt::kInternal;
}

}  // extern "C"
