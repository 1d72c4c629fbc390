// A device that stands in front of another one and hands everything on. Tests derive from it to look at what
// passes, or to spoil it: where TestMaker is set, it makes whatever is opened as "cpu". Who includes this
// derives from a class of the library, and is compiled without type information as that is.
#pragma once
#include <memory>
#include <utility>

#include "lib/ops/devices.h"

namespace kvc::test {

// In builds with a GPU, or an emulated one, alone (tests/emu/device_under_test.cc).
CpuMaker& TestMaker();

class WatchedDevice : public Device {
 public:
  explicit WatchedDevice(std::unique_ptr<Device> to) : to_(std::move(to)) {}

  Result<std::unique_ptr<Stream>> NewStream() override { return to_->NewStream(); }
  Result<std::unique_ptr<Stream>> NewSideStream() override { return to_->NewSideStream(); }
  Status Allocate(int64_t bytes, const char* what, DeviceBytes* out) override {
    return to_->Allocate(bytes, what, out);
  }
  void Free(DeviceBytes at, int64_t bytes) override { return to_->Free(at, bytes); }
  void GiveBackFreed() override { to_->GiveBackFreed(); }
  void KeepNothing() override { to_->KeepNothing(); }
  int64_t Reserve(int64_t bytes, DeviceBytes* out) override { return to_->Reserve(bytes, out); }
  void Unreserve(DeviceBytes at, int64_t bytes) override { return to_->Unreserve(at, bytes); }
  Status Commit(DeviceBytes at, int64_t bytes) override { return to_->Commit(at, bytes); }
  bool Decommit(DeviceBytes at, int64_t bytes) override { return to_->Decommit(at, bytes); }
  Status Write(Stream* s, DeviceBytes to, const void* from, int64_t bytes) override {
    return to_->Write(s, to, from, bytes);
  }
  Status Read(Stream* s, DevicePtr<const uint8_t> from, void* to, int64_t bytes) override {
    return to_->Read(s, from, to, bytes);
  }
  Status Copy(Stream* s, Span<const PageCopy> copies) override { return to_->Copy(s, copies); }
  Status Zero(Stream* s, DeviceBytes at, int64_t bytes) override { return to_->Zero(s, at, bytes); }
  Status Supports(const NetworkShape& shape) const override { return to_->Supports(shape); }
  Status Prepare(Span<const Weight> tensors, Span<const DevicePtr<const float>> biases, MatrixUse use,
                 Matrix* out) override {
    return to_->Prepare(tensors, biases, use, out);
  }
  int64_t PreparedBytes(Span<const Weight> tensors, MatrixUse use) const override {
    return to_->PreparedBytes(tensors, use);
  }
  WeightType PreparedType(const Weight& tensor) const override { return to_->PreparedType(tensor); }
  Status PrepareVector(const float* values, int32_t n, Vector* out) override {
    return to_->PrepareVector(values, n, out);
  }
  int64_t PreparedVectorBytes(int32_t n) const override { return to_->PreparedVectorBytes(n); }
  int64_t NetworkScratchBytes(const NetworkShape& shape, int32_t n_rows) const override {
    return to_->NetworkScratchBytes(shape, n_rows);
  }
  Status Embed(Stream* s, const EmbedArgs& args) override { return to_->Embed(s, args); }
  Status Project(Stream* s, const ProjectArgs& args) override { return to_->Project(s, args); }
  Status Finish(Stream* s, const FinishArgs& args) override { return to_->Finish(s, args); }
  Status Logits(Stream* s, const LogitsArgs& args) override { return to_->Logits(s, args); }
  Status StoreHalves(Stream* s, const HalfRowsArgs& args) override { return to_->StoreHalves(s, args); }
  Status LoadHalves(Stream* s, const HalfRowsArgs& args) override { return to_->LoadHalves(s, args); }
  Status Sample(Stream* s, const SampleArgs& args) override { return to_->Sample(s, args); }
  int64_t PlaceScratchBytes(int32_t n_rows, int32_t head_dim) const override {
    return to_->PlaceScratchBytes(n_rows, head_dim);
  }
  Status Place(Stream* s, const PlaceArgs& args) override { return to_->Place(s, args); }
  Status AttendPrompt(Stream* s, const PromptAttentionArgs& args) override {
    return to_->AttendPrompt(s, args);
  }
  Status FoldColumns(Stream* s, const ColumnArgs& args) override { return to_->FoldColumns(s, args); }
  int64_t AttendAndFoldScratchBytes(int32_t n_rows, int32_t n_heads, int64_t n_entries) const override {
    return to_->AttendAndFoldScratchBytes(n_rows, n_heads, n_entries);
  }
  Status AttendAndFold(Stream* s, const AttendAndFoldArgs& args) override {
    return to_->AttendAndFold(s, args);
  }
  int64_t ScoreScratchBytes(const ScoreShape& shape) const override { return to_->ScoreScratchBytes(shape); }
  Status Score(Stream* s, const ScoreArgs& args) override { return to_->Score(s, args); }
  Status Select(Stream* s, const SelectArgs& args) override { return to_->Select(s, args); }
  Status SelectByQueryHead(Stream* s, const SelectByQueryHeadArgs& args) override {
    return to_->SelectByQueryHead(s, args);
  }
  Status Unmark(Stream* s, const UnmarkArgs& args) override { return to_->Unmark(s, args); }
  Status CountBest(Stream* s, const CountBestArgs& args) override { return to_->CountBest(s, args); }
  int64_t SelectScratchBytes(int32_t n_kv_heads, int64_t stride) const override {
    return to_->SelectScratchBytes(n_kv_heads, stride);
  }
  Status Merge(Stream* s, const MergeArgs& args) override { return to_->Merge(s, args); }
  int64_t StoreScratchBytes(const CacheLayout& layout, int64_t entries, int64_t n_codes) const override {
    return to_->StoreScratchBytes(layout, entries, n_codes);
  }
  int64_t LoadScratchBytes(int32_t n_kv_heads, int64_t entries) const override {
    return to_->LoadScratchBytes(n_kv_heads, entries);
  }
  int64_t AppendScratchBytes(const CacheLayout& layout) const override {
    return to_->AppendScratchBytes(layout);
  }
  Status LoadLayer(Stream* s, const LoadArgs& args) override { return to_->LoadLayer(s, args); }
  Status CodeLayer(Stream* s, const CodeArgs& args) override { return to_->CodeLayer(s, args); }
  Status StoreLayer(Stream* s, const StoreArgs& args) override { return to_->StoreLayer(s, args); }
  Status AppendLayer(Stream* s, const AppendArgs& args) override { return to_->AppendLayer(s, args); }
  int64_t RewindScratchBytes(int32_t n_kv_heads, int64_t stride) const override {
    return to_->RewindScratchBytes(n_kv_heads, stride);
  }
  Status Rewind(Stream* s, const RewindArgs& args) override { return to_->Rewind(s, args); }
  Status KeepNewest(Stream* s, const KeepNewestArgs& args) override { return to_->KeepNewest(s, args); }
  Status StorePlain(Stream* s, const StorePlainArgs& args) override { return to_->StorePlain(s, args); }
  Status Positions(Stream* s, const PositionsArgs& args) override { return to_->Positions(s, args); }
  Status FillAngles(Stream* s, const AngleArgs& args) override { return to_->FillAngles(s, args); }
  int64_t StepScratchBytes(const StepShape& shape) const override { return to_->StepScratchBytes(shape); }
  Status ReserveStep(Stream* s, Span<const StepRow> rows, const StepShape& shape) override {
    return to_->ReserveStep(s, rows, shape);
  }
  Status Step(Stream* s, const StepArgs& args) override { return to_->Step(s, args); }
  Status EndStep(Stream* s, const StepArgs& args) override { return to_->EndStep(s, args); }
  Status QueryRing(Stream* s, const QueryRingArgs& args) override { return to_->QueryRing(s, args); }
  int64_t EvictScratchBytes(int32_t n_kv_heads, int64_t stride) const override {
    return to_->EvictScratchBytes(n_kv_heads, stride);
  }
  Status Evict(Stream* s, const EvictArgs& args) override { return to_->Evict(s, args); }
  Result<double> MeasureBandwidth(Span<const Matrix* const> weights) override {
    return to_->MeasureBandwidth(weights);
  }
  const DeviceInfo& info() const override { return to_->info(); }

 private:
  const std::unique_ptr<Device> to_;
};

}  // namespace kvc::test
