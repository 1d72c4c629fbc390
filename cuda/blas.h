// cuBLASLt where the machine has it: products of f16 matrices with many rows, for gemm_blas.cu. It is looked
// for when the first of them asks for its scratch, not when a device is opened: the library has half a
// gigabyte, and a program whose prompts are short has no use for it.
#pragma once
#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <tuple>

#include "cuda/cublas_abi.h"
#include "cuda/driver.h"
#include "cuda/tuning.h"
#include "lib/ops/network_ops.h"

namespace kvc::cuda {

// y [n, rows] = scale * x * the transposed w, or y += that.
struct BlasProduct {
  const uint16_t *w, *x;  // f16 [rows, cols], [n, cols]
  int32_t rows, cols, n;
  float scale;
  bool adds;
  float* y;
};

// Bytes of scratch.
struct BlasBytes {
  int64_t workspace, decoded;
};

class KeptBlocks;
// Of a device; any thread in its context.
class Blas {
 public:
  // KVC_CUDA_BLAS, KVC_CUDA_DECODE and KVC_CUBLASLT in the environment are read now.
  // kept: what goes where the device has no room for the library's kernels; null: nothing.
  Blas(const Context& context, const Tuning& tuning, KeptBlocks* kept);
  ~Blas();
  Blas(const Blas&) = delete;
  Blas& operator=(const Blas&) = delete;

  // What products of n rows need of scratch for the library; workspace 0: it is not for them, or not there.
  // Looks for it; what was found stays, so that plans and sessions count the same.
  BlasBytes ScratchOf(const NetworkShape& shape, int64_t n);
  // The largest matrix of a layer as f16, of those that every row meets. The output head, which may be
  // larger, has one row of a prompt.
  static int64_t DecodedBytes(const NetworkShape& shape);

  // Whether products of n rows go there; of codes, which it has to be given as f16.
  bool Takes(int64_t n) const { return n >= fewest_rows_; }
  bool TakesDecoded(int64_t n) const { return decodes_ && n >= fewest_decoded_; }
  // False: the library has nothing for such a product. Does not launch.
  bool Has(int32_t rows, int32_t cols, int32_t n);
  // False: it was not launched. When that happened often, no other one is.
  bool Multiply(const BlasProduct& p, uint8_t* workspace, cudaStream_t stream);

 private:
  // Rows, columns, rows of x.
  using Key = std::tuple<int32_t, int32_t, int32_t>;
  struct Choice {
    bool any = false;
    lt::Algorithm algorithm;
  };
  static constexpr int kMostFailed = 4;
  bool works() const { return n_failed_ < kMostFailed; }
  void Find();
  bool Open(const char* path);
  // As PATH is a list.
  bool OpenFirstOf(const std::string& paths);
  Choice ChoiceOf(const Key& key);
  Choice Ask(const Key& key);

  const Context context_;
  KeptBlocks* const kept_;
  const int64_t workspace_bytes_;
  const bool wanted_;
  const bool decodes_;  // codes become f16 for it
  const int32_t fewest_rows_, fewest_decoded_;
  std::string paths_;  // KVC_CUBLASLT
  std::once_flag once_;
  lt::Functions functions_ = {};
  lt::Context* library_ = nullptr;  // null: there is none
  std::atomic<int> n_failed_{0};
  std::mutex mutex_;
  std::map<Key, Choice> choices_;
};

}  // namespace kvc::cuda
