// Where models run. Everything a layer does to a batch of rows is one operation of a device; the layers above
// hold records and issue operations, and never look into a device's memory.
//
// Rules for every operation: arguments are plain; sizes were computed beforehand, so nothing is allocated;
// what it reads and writes is what its arguments name; it works in the order of its stream, and what it hands
// back on the host (marked so) is there when it returns. It fails for the device's own reasons only
// (kDevice). Operations on different streams may run at once. Every device does every operation, as methods
// ask for any of them; what it lacks for a network it says when the model is opened (Supports).
#pragma once
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/span.h"
#include "lib/base/status.h"
#include "lib/ops/cache_ops.h"
#include "lib/ops/network_ops.h"
#include "lib/ops/prompt_ops.h"
#include "lib/ops/score_ops.h"
#include "lib/ops/step_ops.h"

namespace kvc {

class Stream {
 public:
  virtual ~Stream() = default;
  // From Gather to Issue operations may be kept back, to go to the device together; those that hand something
  // back on the host do not wait for Issue, but for steps, whose caches may have their lengths behind it
  // only. Until then nobody else may get what they work on: memory that they read or write is given to others
  // behind Issue only.
  virtual void Gather() {}
  virtual Status Issue() { return {}; }
  // What comes on this stream from here on happens behind all that `other`, of the same device, was given so
  // far.
  virtual Status Follow(Stream* /*other*/) { return {}; }
};

// Gathers for the time of its life.
class Gathering {
 public:
  explicit Gathering(Stream* stream) : stream_(stream) { stream_->Gather(); }
  ~Gathering() { static_cast<void>(Issue()); }
  Gathering(const Gathering&) = delete;
  Gathering& operator=(const Gathering&) = delete;
  Status Issue() {
    Stream* const stream = stream_;
    stream_ = nullptr;
    return stream == nullptr ? Status() : stream->Issue();
  }

 private:
  Stream* stream_;
};

struct DeviceInfo {
  std::string name;         // "cpu"
  std::string description;  // processor, instruction set, threads
  std::string tuning;       // what its speed was set to, in lines "name = value"; empty: nothing
  std::vector<std::string>
      instruction_sets;         // that operations could use here, best first; empty: they have no names
  int n_threads = 0;            // of this process that compute; 0: none do
  bool deterministic = true;    // the same input gives the same bits
  bool batch_invariant = true;  // a row gives the same bits alone and in a batch
  WeightType activations = WeightType::kF32;
  bool half_layers = false;  // a layer at full length may have keys and values of f16 (LayerView)
  // Where it has, prompts with more rows than these have f16 between layers too.
  int32_t most_float_rows = std::numeric_limits<int32_t>::max();
  int32_t sample_rows = 1;  // of logits from which tokens are chosen at once, in the time of one
  int32_t prompt_rows =
      256;                 // of a prompt, worked on at once: activations of a processor's stay in its caches
  int64_t granule = 4096;  // of the memory of arenas
  bool recommits = false;  // what Decommit gave back is there again after another Commit only
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual Result<std::unique_ptr<Stream>> NewStream() = 0;
  // One whose operations happen beside those of the others and give way to them. Pages are none of its
  // business: they go from one session to another in the order of the other streams. Null: there is no gain
  // in it, operations happen one after the other.
  virtual Result<std::unique_ptr<Stream>> NewSideStream() { return std::unique_ptr<Stream>(); }

  // ---- memory: 64-byte aligned, contents undefined ----
  virtual Status Allocate(int64_t bytes, const char* what, DeviceBytes* out) = 0;
  virtual void Free(DeviceBytes at, int64_t bytes) = 0;
  // A device may keep some of what was freed for the next who asks, and gives it back before it refuses
  // anything; now, and from now on always.
  virtual void GiveBackFreed() {}
  virtual void KeepNothing() {}
  // Addresses without memory: at most `bytes`, less where the system has not so many; *out null: none.
  virtual int64_t Reserve(int64_t bytes, DeviceBytes* out) = 0;
  virtual void Unreserve(DeviceBytes at, int64_t bytes) = 0;
  // Memory behind a part of a reservation, in whole granules; giving it back, where a device recommits one
  // granule a call. False: some of it stayed.
  virtual Status Commit(DeviceBytes at, int64_t bytes) = 0;
  virtual bool Decommit(DeviceBytes at, int64_t bytes) = 0;

  // Bytes per second that operations read from this memory. The processor reads `weights`, up to 2 GiB of
  // them again and again, and says the median: what lies elsewhere may be faster or slower, as the system has
  // its pages. Without them 256 MiB are taken for it, on other devices up to 2 GiB, or what there is. Takes
  // up to a second.
  virtual Result<double> MeasureBandwidth(Span<const Matrix* const> weights = {}) = 0;

  // ---- copies ----
  virtual Status Write(Stream* s, DeviceBytes to, const void* from, int64_t bytes) = 0;
  virtual Status Read(Stream* s, DevicePtr<const uint8_t> from, void* to,
                      int64_t bytes) = 0;  // to: on the host
  // In any order: none writes where another one reads or writes.
  virtual Status Copy(Stream* s, Span<const PageCopy> copies) = 0;
  virtual Status Zero(Stream* s, DeviceBytes at, int64_t bytes) = 0;

  // ---- weights ----
  // kUnsupported, by name: what a network of this shape needs and the device has not.
  virtual Status Supports(const NetworkShape&) const { return {}; }
  // Makes the device's own form of tensors [rows, cols] of a file. Tensors whose PreparedBytes are 0 are used
  // as they lie and stay valid for the life of the matrix; the others are not read again. biases[i], prepared
  // before, null: none.
  virtual Status Prepare(Span<const Weight> tensors, Span<const DevicePtr<const float>> biases, MatrixUse use,
                         Matrix* out) = 0;
  // What Prepare allocates for the tensors of one matrix (Matrix::memory, to be freed by the caller).
  virtual int64_t PreparedBytes(Span<const Weight> tensors, MatrixUse use) const = 0;
  // The type that Prepare gives a tensor. Rows, columns and groups stay.
  virtual WeightType PreparedType(const Weight& tensor) const { return tensor.type; }
  // As Prepare and PreparedBytes, for n values of a norm or a bias.
  virtual Status PrepareVector(const float* values, int32_t n, Vector* out) = 0;
  virtual int64_t PreparedVectorBytes(int32_t n) const = 0;

  // ---- the network ----
  virtual int64_t NetworkScratchBytes(const NetworkShape& shape, int32_t n_rows) const = 0;
  virtual Status Embed(Stream* s, const EmbedArgs& args) = 0;
  virtual Status Project(Stream* s, const ProjectArgs& args) = 0;
  virtual Status Finish(Stream* s, const FinishArgs& args) = 0;
  virtual Status Logits(Stream* s, const LogitsArgs& args) = 0;
  virtual Status StoreHalves(Stream* s, const HalfRowsArgs& args) = 0;  // of x, rounded to nearest
  virtual Status LoadHalves(Stream* s, const HalfRowsArgs& args) = 0;   // into x
  virtual Status Sample(Stream* s, const SampleArgs& args) = 0;

  // ---- prompts ----
  virtual int64_t PlaceScratchBytes(int32_t n_rows, int32_t head_dim) const = 0;
  virtual Status Place(Stream* s, const PlaceArgs& args) = 0;
  virtual Status AttendPrompt(Stream* s, const PromptAttentionArgs& args) = 0;
  virtual Status FoldColumns(Stream* s, const ColumnArgs& args) = 0;
  // For n_rows rows of which at most n_entries entries of a head are folded; 0: it needs none.
  virtual int64_t AttendAndFoldScratchBytes(int32_t /*n_rows*/, int32_t /*n_heads*/,
                                            int64_t /*n_entries*/) const {
    return 0;
  }
  virtual Status AttendAndFold(Stream* s, const AttendAndFoldArgs& args) {
    KVC_RETURN_IF_ERROR(AttendPrompt(s, args.attend));
    return FoldColumns(s, args.fold);
  }

  // ---- methods, over one layer ----
  virtual int64_t ScoreScratchBytes(const ScoreShape& shape) const = 0;
  virtual Status Score(Stream* s, const ScoreArgs& args) = 0;
  virtual Status Select(Stream* s, const SelectArgs& args) = 0;
  virtual Status SelectByQueryHead(Stream* s, const SelectByQueryHeadArgs& args) = 0;
  virtual Status Unmark(Stream* s, const UnmarkArgs& args) = 0;
  virtual Status CountBest(Stream* s, const CountBestArgs& args) = 0;
  // Of Select, SelectByQueryHead, CountBest, Merge.
  virtual int64_t SelectScratchBytes(int32_t n_kv_heads, int64_t stride) const = 0;
  virtual Status Merge(Stream* s, const MergeArgs& args) = 0;

  // ---- the cache ----
  // What CodeLayer leaves, and scratch of StoreLayer, for heads of at most so many entries in LayerView.
  virtual int64_t StoreScratchBytes(const CacheLayout& layout, int64_t entries, int64_t n_codes) const = 0;
  virtual int64_t LoadScratchBytes(int32_t n_kv_heads, int64_t entries) const = 0;
  virtual int64_t AppendScratchBytes(const CacheLayout& layout) const = 0;
  virtual Status LoadLayer(Stream* s, const LoadArgs& args) = 0;
  virtual Status CodeLayer(Stream* s, const CodeArgs& args) = 0;
  virtual Status StoreLayer(Stream* s, const StoreArgs& args) = 0;
  virtual Status AppendLayer(Stream* s, const AppendArgs& args) = 0;
  // 0: it needs none.
  virtual int64_t RewindScratchBytes(int32_t n_kv_heads, int64_t stride) const = 0;
  virtual Status Rewind(Stream* s, const RewindArgs& args) = 0;
  virtual Status KeepNewest(Stream* s, const KeepNewestArgs& args) = 0;
  // Only devices that code entries need it.
  virtual Status StorePlain(Stream*, const StorePlainArgs&) {
    return Error(Code::kUnsupported, "%s does not code entries", info().name.c_str());
  }
  virtual Status Positions(Stream* s, const PositionsArgs& args) = 0;

  // ---- steps ----
  virtual Status FillAngles(Stream* s, const AngleArgs& args) = 0;
  virtual int64_t StepScratchBytes(const StepShape& shape) const = 0;
  // Before steps of these rows, of which nothing has happened: what their stream has to hold on the way to
  // the device.
  virtual Status ReserveStep(Stream*, Span<const StepRow>, const StepShape&) { return {}; }
  virtual Status Step(Stream* s, const StepArgs& args) = 0;
  // What plans with ends_later left to do in the layer.
  virtual Status EndStep(Stream* s, const StepArgs& args) = 0;
  virtual Status QueryRing(Stream* s, const QueryRingArgs& args) = 0;
  virtual int64_t EvictScratchBytes(int32_t n_kv_heads, int64_t stride) const = 0;
  virtual Status Evict(Stream* s, const EvictArgs& args) = 0;
};

}  // namespace kvc
