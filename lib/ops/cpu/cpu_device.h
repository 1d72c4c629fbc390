// The processor as a device: its memory is the host's, its stream the caller's thread with the workers of a
// pool.
#pragma once
#include "lib/base/host_threads.h"
#include "lib/ops/cpu/kernel_table.h"
#include "lib/ops/cpu/weight_arena.h"
#include "lib/ops/device.h"

namespace kvc::cpu {

class CpuDevice : public Device {
 public:
  // n_threads: 0 = one per online processor.
  static Result<std::unique_ptr<Device>> Create(const ThreadOptions& threads);
  CpuDevice(std::unique_ptr<ThreadPool> pool, const KernelTable& kernels);

  const DeviceInfo& info() const override { return info_; }
  Result<std::unique_ptr<Stream>> NewStream() override;

  Status Allocate(int64_t bytes, const char* what, DeviceBytes* out) override;
  void Free(DeviceBytes at, int64_t bytes) override;
  Result<double> MeasureBandwidth(Span<const Matrix* const> weights) override;
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
  Status PrepareVector(const float* values, int32_t n, Vector* out) override;
  int64_t PreparedVectorBytes(int32_t n) const override;

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
  int64_t AttendAndFoldScratchBytes(int32_t n_rows, int32_t n_heads, int64_t n_entries) const override;
  Status AttendAndFold(Stream* s, const AttendAndFoldArgs& args) override;

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
  int64_t RewindScratchBytes(int32_t, int64_t) const override { return 0; }
  Status Rewind(Stream* s, const RewindArgs& args) override;
  Status KeepNewest(Stream* s, const KeepNewestArgs& args) override;
  Status StorePlain(Stream* s, const StorePlainArgs& args) override;
  Status Positions(Stream* s, const PositionsArgs& args) override;

  Status FillAngles(Stream* s, const AngleArgs& args) override;
  int64_t StepScratchBytes(const StepShape& shape) const override;
  Status Step(Stream* s, const StepArgs& args) override;
  Status EndStep(Stream* s, const StepArgs& args) override;
  Status QueryRing(Stream* s, const QueryRingArgs& args) override;
  int64_t EvictScratchBytes(int32_t n_kv_heads, int64_t stride) const override;
  Status Evict(Stream* s, const EvictArgs& args) override;

  const KernelTable& kernels() const { return kernels_; }
  ThreadPool& pool() const { return *pool_; }

 protected:
  // For weights in panels. Given back by Free.
  virtual Status AllocateWeights(int64_t bytes, DeviceBytes* out);

 private:
  std::unique_ptr<ThreadPool> pool_;
  const KernelTable& kernels_;
  DeviceInfo info_;
  WeightArena weights_;
};

}  // namespace kvc::cpu
