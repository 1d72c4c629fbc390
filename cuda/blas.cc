#include "cuda/blas.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "cuda/kept_blocks.h"
#include "cuda/loaded_library.h"
#include "lib/base/log.h"

namespace kvc::cuda {
namespace {

#if defined(_WIN32)
constexpr char kBetweenPaths = ';';
#else
constexpr char kBetweenPaths = ':';
#endif

// Newest first; one that the driver is too old for does not start. The emulated device has no such library
// of its own: a real one would take its memory for a GPU's.
constexpr const char* kNames[] = {
#if !defined(__CUDACC__)
    nullptr
#elif defined(_WIN32)
    "cublasLt64_13.dll", "cublasLt64_12.dll"
#else
    "libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"
#endif
};

// Whatever addresses and strides a product has, they are multiples of this (gemm_blas.cu).
constexpr uint32_t kAlignment = 16;

// What the library has to be told of a product. Its matrices are stored by columns, which makes ours their
// transposes: D [rows, n] = W [cols, rows] transposed * X [cols, n], both with the columns of a sum side by
// side, the form that all its kernels are made for.
class Call {
 public:
  Call(const lt::Functions& f, int32_t rows, int32_t cols, int32_t n) : f_(f) {
    const auto r = static_cast<uint64_t>(rows), c = static_cast<uint64_t>(cols);
    const auto of_x = static_cast<uint64_t>(n);
    Do(f.create_operation(&operation, lt::kComputeFloat, lt::kFloat));
    if (ok()) Do(f.set_operation(operation, lt::kTransA, &lt::kTransposed, sizeof lt::kTransposed));
    if (ok()) Do(f.create_layout(&w, lt::kHalf, c, r, cols));
    if (ok()) Do(f.create_layout(&x, lt::kHalf, c, of_x, cols));
    if (ok()) Do(f.create_layout(&y, lt::kFloat, r, of_x, rows));
  }
  ~Call() {
    if (y != nullptr) f_.destroy_layout(y);
    if (x != nullptr) f_.destroy_layout(x);
    if (w != nullptr) f_.destroy_layout(w);
    if (operation != nullptr) f_.destroy_operation(operation);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  bool ok() const { return result_ == lt::kSuccess; }
  lt::Result result() const { return result_; }
  void Do(lt::Result result) { result_ = result; }

  lt::Operation* operation = nullptr;
  lt::Layout *w = nullptr, *x = nullptr, *y = nullptr;

 private:
  const lt::Functions& f_;
  lt::Result result_ = lt::kSuccess;
};

}  // namespace

Blas::Blas(const Context& context, const Tuning& tuning, KeptBlocks* kept)
    : context_(context),
      kept_(kept),
      workspace_bytes_(int64_t{tuning.blas_workspace} << 20),
      wanted_(IsOn("KVC_CUDA_BLAS")),
      decodes_(IsOn("KVC_CUDA_DECODE")),
      fewest_rows_(tuning.blas_rows),
      fewest_decoded_(tuning.decoded_rows) {
  const char* paths = std::getenv("KVC_CUBLASLT");
  if (paths != nullptr) paths_ = paths;
}

Blas::~Blas() {
  const Current current(context_);
  if (library_ != nullptr && current.ok()) functions_.destroy(library_);
}

// It stays loaded: what it has put into the context goes with the process.
bool Blas::Open(const char* path) {
  void* const library = path == nullptr || *path == '\0' ? nullptr : LoadSystemLibrary(path);
  if (library == nullptr) return false;
  bool all = true;
  const auto find = [&](const char* name, auto* function) {
    void* const found = SymbolOf(library, name);
    std::memcpy(function, &found, sizeof found);
    all = all && found != nullptr;
  };
  lt::Functions& f = functions_;
  find("cublasLtGetVersion", &f.version);
  find("cublasLtCreate", &f.create), find("cublasLtDestroy", &f.destroy);
  find("cublasLtMatmulDescCreate", &f.create_operation);
  find("cublasLtMatmulDescDestroy", &f.destroy_operation);
  find("cublasLtMatmulDescSetAttribute", &f.set_operation);
  find("cublasLtMatrixLayoutCreate", &f.create_layout);
  find("cublasLtMatrixLayoutDestroy", &f.destroy_layout);
  find("cublasLtMatmulPreferenceCreate", &f.create_preference);
  find("cublasLtMatmulPreferenceDestroy", &f.destroy_preference);
  find("cublasLtMatmulPreferenceSetAttribute", &f.set_preference);
  find("cublasLtMatmulAlgoGetHeuristic", &f.find);
  find("cublasLtMatmul", &f.multiply);
  if (all && f.create(&library_) == lt::kSuccess) {
    const int version = static_cast<int>(f.version());
    Log(kLogInfo, "prompts: products of cuBLASLt %d.%d, %.800s", version / 10000, version / 100 % 100, path);
    return true;
  }
  library_ = nullptr;
  cudaGetLastError();
  return false;
}

bool Blas::OpenFirstOf(const std::string& paths) {
  for (size_t begin = 0; begin < paths.size();) {
    const size_t end = std::min(paths.find(kBetweenPaths, begin), paths.size());
    if (Open(paths.substr(begin, end - begin).c_str())) return true;
    begin = end + 1;
  }
  return false;
}

void Blas::Find() {
  const Current current(context_);
  if (!current.ok()) return;
  bool found = false;
  if (!paths_.empty()) {
    found = OpenFirstOf(paths_);
    if (!found) Log(kLogWarning, "KVC_CUBLASLT=%.800s names no cuBLASLt that starts here", paths_.c_str());
  } else {
    for (const char* name : kNames) found = found || Open(name);
  }
  if (!found) Log(kLogInfo, "prompts: own products, no cuBLASLt starts here");
}

BlasBytes Blas::ScratchOf(const NetworkShape& shape, int64_t n) {
  const bool decodes = shape.coded_weights && TakesDecoded(n);
  if (!wanted_ || !Takes(n) || !(shape.half_weights || decodes)) return {0, 0};
  std::call_once(once_, [this] { Find(); });
  if (library_ == nullptr) return {0, 0};
  return {workspace_bytes_, decodes ? DecodedBytes(shape) : 0};
}

int64_t Blas::DecodedBytes(const NetworkShape& shape) {
  const int64_t width = std::max(shape.n_heads * shape.head_dim, shape.n_experts > 0 ? 0 : shape.ffn);
  return 2 * width * shape.hidden;
}

bool Blas::Has(int32_t rows, int32_t cols, int32_t n) { return works() && ChoiceOf({rows, cols, n}).any; }

Blas::Choice Blas::ChoiceOf(const Key& key) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto known = choices_.find(key);
  if (known != choices_.end()) return known->second;
  return choices_[key] = Ask(key);
}

// For the very product: one found for another number of rows may be none for these. Of a prompt only the last
// chunk has rows of a number of its own.
Blas::Choice Blas::Ask(const Key& key) {
  const auto [rows, cols, n] = key;
  const Call call(functions_, rows, cols, n);
  lt::Preference* preference = nullptr;
  if (!call.ok() || functions_.create_preference(&preference) != lt::kSuccess) return {};
  bool ok = true;
  const auto set = [&](int attribute, auto value) {
    ok = ok && functions_.set_preference(preference, attribute, &value, sizeof value) == lt::kSuccess;
  };
  set(lt::kMostWorkspace, static_cast<uint64_t>(workspace_bytes_));
  // Sums are made by one block, or parts of them are left in the workspace in f32 and added in their order.
  // The ways that go through the output (in place, or in its type) are left out: they take turns there, or
  // round between.
  set(lt::kReductionSchemes, lt::kReduceInWorkspace);
  for (const int matrix : {lt::kAlignmentA, lt::kAlignmentB, lt::kAlignmentC, lt::kAlignmentD})
    set(matrix, kAlignment);
  lt::Heuristic best = {};
  int n_found = 0;
  if (ok) {
    ok = functions_.find(library_, call.operation, call.w, call.x, call.y, call.y, preference, 1, &best,
                         &n_found) == lt::kSuccess;
  }
  functions_.destroy_preference(preference);
  if (ok && n_found > 0 && best.result == lt::kSuccess) return {true, best.algorithm};
  Log(kLogDebug, "cuBLASLt has nothing for %d rows of %d columns", rows, cols);
  return {};
}

// What fails was not launched. The library's kernels go to the device when they are first wanted: where it is
// full, what is kept of its memory goes for them.
bool Blas::Multiply(const BlasProduct& p, uint8_t* workspace, cudaStream_t stream) {
  const Choice choice = ChoiceOf({p.rows, p.cols, p.n});
  if (!works() || !choice.any) return false;
  Call call(functions_, p.rows, p.cols, p.n);
  const float beta = p.adds ? 1.0f : 0.0f;
  const auto launch = [&] {
    call.Do(functions_.multiply(library_, call.operation, &p.scale, p.w, call.w, p.x, call.x, &beta, p.y,
                                call.y, p.y, call.y, &choice.algorithm, workspace,
                                static_cast<size_t>(workspace_bytes_), stream));
  };
  if (call.ok()) {
    launch();
    if (!call.ok() && kept_ != nullptr && kept_->FreeAll()) launch();
  }
  if (call.ok()) return true;
  cudaGetLastError();
  const bool last = ++n_failed_ == kMostFailed;
  Log(kLogWarning, "cuBLASLt fails (%d): %s", call.result(),
      last ? "own products from here on" : "this product is our own");
  return false;
}

}  // namespace kvc::cuda
