// An NVIDIA GPU as a device (lib/ops/device.h). Operations issue kernels on the stream of the caller and
// return; what an operation hands back on the host is waited for, nothing else is.
#pragma once
#include <cuda_runtime.h>

#include <atomic>

#include "cuda/blas.h"
#include "cuda/kept_blocks.h"
#include "cuda/staging.h"
#include "lib/ops/device.h"

namespace kvc::cuda {

// For kernels' pointers.
template <typename T>
T* At(DevicePtr<T> p) {
  return reinterpret_cast<T*>(p.number());
}
template <typename T>
DevicePtr<T> AddressOf(T* p) {
  return DevicePtr<T>::FromNumber(reinterpret_cast<uintptr_t>(p));
}
inline CudaStream& StreamOf(Stream* s) { return *static_cast<CudaStream*>(s); }

constexpr int32_t kMostHeadSize = 256;  // what tiles of entries in shared memory allow
// Of a merge into one entry a head (merge.cu).
int64_t RestScratchBytes(int32_t n_kv_heads, int64_t stride);

// Every operation works in the context of its device.
#define KVC_ENTER()                                 \
  const ::kvc::cuda::Current kvc_current(context_); \
  KVC_RETURN_IF_ERROR(kvc_current.status())

class CudaDevice final : public Device {
 public:
  // spec: "cuda" or "cuda:N". kUnsupported: no driver, one too old, no such device.
  static Result<std::unique_ptr<Device>> Create(const std::string& spec);
  ~CudaDevice() override;

  const DeviceInfo& info() const override { return info_; }
  Result<std::unique_ptr<Stream>> NewStream() override;
  Result<std::unique_ptr<Stream>> NewSideStream() override;

  Status Allocate(int64_t bytes, const char* what, DeviceBytes* out) override;
  void Free(DeviceBytes at, int64_t bytes) override;
  void GiveBackFreed() override;
  void KeepNothing() override;
  Result<double> MeasureBandwidth(Span<const Matrix* const>) override;
  int64_t Reserve(int64_t bytes, DeviceBytes* out) override;
  void Unreserve(DeviceBytes at, int64_t bytes) override;
  Status Commit(DeviceBytes at, int64_t bytes) override;
  bool Decommit(DeviceBytes at, int64_t bytes) override;
  Status Write(Stream* s, DeviceBytes to, const void* from, int64_t bytes) override;
  Status Read(Stream* s, DevicePtr<const uint8_t> from, void* to, int64_t bytes) override;
  Status Copy(Stream* s, Span<const PageCopy> copies) override;
  Status Zero(Stream* s, DeviceBytes at, int64_t bytes) override;
  Status Prepare(Span<const Weight> tensors, Span<const DevicePtr<const float>> biases, MatrixUse use,
                 Matrix* out) override;
  int64_t PreparedBytes(Span<const Weight> tensors, MatrixUse use) const override;
  WeightType PreparedType(const Weight& tensor) const override;
  Status PrepareVector(const float* values, int32_t n, Vector* out) override;
  int64_t PreparedVectorBytes(int32_t n) const override;

  Status Supports(const NetworkShape& shape) const override;
  int64_t NetworkScratchBytes(const NetworkShape& shape, int32_t n_rows) const override;
  Status Embed(Stream* s, const EmbedArgs& args) override;
  Status StoreHalves(Stream* s, const HalfRowsArgs& args) override;
  Status LoadHalves(Stream* s, const HalfRowsArgs& args) override;
  Status Project(Stream* s, const ProjectArgs& args) override;
  Status Finish(Stream* s, const FinishArgs& args) override;
  Status Logits(Stream* s, const LogitsArgs& args) override;
  Status Sample(Stream* s, const SampleArgs& args) override;

  int64_t PlaceScratchBytes(int32_t n_rows, int32_t head_dim) const override;
  Status Place(Stream* s, const PlaceArgs& args) override;
  Status AttendPrompt(Stream* s, const PromptAttentionArgs& args) override;
  Status FoldColumns(Stream* s, const ColumnArgs& args) override;

  int64_t ScoreScratchBytes(const ScoreShape& shape) const override;
  Status Score(Stream* s, const ScoreArgs& args) override;
  Status Select(Stream* s, const SelectArgs& args) override;
  Status SelectByQueryHead(Stream* s, const SelectByQueryHeadArgs& args) override;
  Status Unmark(Stream* s, const UnmarkArgs& args) override;
  Status CountBest(Stream* s, const CountBestArgs& args) override;
  int64_t SelectScratchBytes(int32_t n_kv_heads, int64_t stride) const override;
  Status Merge(Stream* s, const MergeArgs& args) override;

  int64_t StoreScratchBytes(const CacheLayout& layout, int64_t entries, int64_t n_codes) const override;
  int64_t LoadScratchBytes(int32_t n_kv_heads, int64_t entries) const override;
  int64_t AppendScratchBytes(const CacheLayout& layout) const override;
  Status LoadLayer(Stream* s, const LoadArgs& args) override;
  Status CodeLayer(Stream* s, const CodeArgs& args) override;
  Status StoreLayer(Stream* s, const StoreArgs& args) override;
  Status AppendLayer(Stream* s, const AppendArgs& args) override;
  int64_t RewindScratchBytes(int32_t n_kv_heads, int64_t stride) const override;
  Status Rewind(Stream* s, const RewindArgs& args) override;
  Status KeepNewest(Stream* s, const KeepNewestArgs& args) override;
  Status StorePlain(Stream* s, const StorePlainArgs& args) override;
  Status Positions(Stream* s, const PositionsArgs& args) override;

  Status FillAngles(Stream* s, const AngleArgs& args) override;
  int64_t StepScratchBytes(const StepShape& shape) const override;
  Status ReserveStep(Stream* s, Span<const StepRow> rows, const StepShape& shape) override;
  Status Step(Stream* s, const StepArgs& args) override;
  Status EndStep(Stream* s, const StepArgs& args) override;
  Status QueryRing(Stream* s, const QueryRingArgs& args) override;
  int64_t EvictScratchBytes(int32_t n_kv_heads, int64_t stride) const override;
  Status Evict(Stream* s, const EvictArgs& args) override;

 private:
  CudaDevice(int number, const Context& context, const LaunchTraits& traits, int64_t most_kept)
      : number_(number),
        context_(context),
        driver_(*context.driver),
        traits_(traits),
        kept_(most_kept),
        blas_(new Blas(context, traits.tuning, &kept_)) {}
  Status CheckHeadSize(int32_t d) const {
    if (d <= kMostHeadSize) return {};
    return Error(Code::kUnsupported, "device \"%s\": heads of %d dimensions; at most %d, use \"cpu\"",
                 info_.name.c_str(), d, kMostHeadSize);
  }

  const int number_;
  const Context context_;
  const Driver& driver_;
  const LaunchTraits traits_;
  KeptBlocks kept_;
  std::unique_ptr<Blas> blas_;
  DeviceInfo info_;
  std::atomic<bool> measured_{false};  // MeasureBandwidth came before
  Status CommitAll(DeviceBytes at, int64_t bytes);
  Status CreateStreams();
  Result<std::unique_ptr<Stream>> NewStreamOn(cudaStream_t stream);
  // Of all streams, and of those beside them: null where KVC_CUDA_BESIDE=0.
  cudaStream_t stream_ = nullptr, side_ = nullptr;
};

}  // namespace kvc::cuda
