#include "tests/fence/fenced_device.h"

#include <cstdlib>
#include <cstring>

#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/raw.h"
#include "lib/ops/weight_panels.h"
#include "tests/fence/fence.h"

namespace kvc {
namespace {

using test::Fence;

// Of one arena. Opening and closing takes time with the addresses it is over, used or not.
constexpr int64_t kMostReservation = 256 << 20;

int64_t Aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Every operation of the processor between Enter and Leave. Weights and vectors are copied behind the fence,
// as a device with memory of its own would.
class FencedDevice final : public cpu::CpuDevice {
 public:
  explicit FencedDevice(std::unique_ptr<ThreadPool> pool) : CpuDevice(std::move(pool), BestKernels()) {}

  Status Allocate(int64_t bytes, const char* what, DeviceBytes* out) override {
    *out = AddressOf(static_cast<uint8_t*>(Fence::OfProcess().Allocate(bytes)));
    if (*out) return {};
    return Error(Code::kMemory, "no memory for %s: %lld bytes", what, static_cast<long long>(bytes));
  }
  void Free(DeviceBytes at, int64_t) override {
    if (at) Fence::OfProcess().Release(Raw(at));
  }
  int64_t Reserve(int64_t bytes, DeviceBytes* out) override {
    bytes = std::min(bytes, kMostReservation) / info().granule * info().granule;
    *out = AddressOf(static_cast<uint8_t*>(Fence::OfProcess().Reserve(bytes)));
    return *out ? bytes : 0;
  }
  void Unreserve(DeviceBytes at, int64_t) override { Fence::OfProcess().Release(Raw(at)); }
  Status Commit(DeviceBytes, int64_t) override { return {}; }
  bool Decommit(DeviceBytes at, int64_t bytes) override {
    Fence::OfProcess().Forget(Raw(at), bytes);
    return true;
  }
  Result<double> MeasureBandwidth(Span<const Matrix* const> weights) override {
    const Fence::Inside inside;
    return CpuDevice::MeasureBandwidth(weights);
  }
  Status Write(Stream* s, DeviceBytes to, const void* from, int64_t bytes) override {
    const Fence::Inside inside;
    return CpuDevice::Write(s, to, from, bytes);
  }
  Status Read(Stream* s, DevicePtr<const uint8_t> from, void* to, int64_t bytes) override {
    const Fence::Inside inside;
    return CpuDevice::Read(s, from, to, bytes);
  }
  Status Copy(Stream* s, Span<const PageCopy> copies) override {
    const Fence::Inside inside;
    return CpuDevice::Copy(s, copies);
  }
  Status Zero(Stream* s, DeviceBytes at, int64_t bytes) override {
    const Fence::Inside inside;
    return CpuDevice::Zero(s, at, bytes);
  }

  // Memory apart from what this one watches would not be seen.
  Status AllocateWeights(int64_t bytes, DeviceBytes* out) override { return Allocate(bytes, "weights", out); }
  int64_t PreparedBytes(Span<const Weight> tensors, MatrixUse use) const override {
    int64_t bytes = 0;
    for (const Weight& w : tensors) {
      const bool packs = CpuDevice::PreparedBytes({&w, 1}, use) > 0;
      bytes += Aligned(PlaceOf(packs ? ShapeInPanels(w) : w).n_bytes);
    }
    return bytes;
  }
  Status Prepare(Span<const Weight> tensors, Span<const DevicePtr<const float>> biases, MatrixUse use,
                 Matrix* out) override {
    const Fence::Inside inside;
    Matrix m;
    *out = {};
    KVC_RETURN_IF_ERROR(CpuDevice::Prepare(tensors, biases, use, &m));
    DeviceBytes memory;
    const int64_t bytes = PreparedBytes(tensors, use);
    const Status status = Allocate(bytes, "weights behind the fence", &memory);
    if (status.ok()) {
      *out = m;
      out->memory = memory, out->bytes = bytes;
      uint8_t* to = Raw(memory);
      for (int32_t i = 0; i < m.n_parts; ++i) Move(m.cols, &out->parts[i], &to);
    }
    Free(m.memory, m.bytes);
    return status;
  }
  int64_t PreparedVectorBytes(int32_t n) const override { return Aligned(int64_t{4} * n); }
  Status PrepareVector(const float* values, int32_t n, Vector* out) override {
    *out = {};
    DeviceBytes memory;
    KVC_RETURN_IF_ERROR(Allocate(PreparedVectorBytes(n), "a vector behind the fence", &memory));
    *out = {memory.As<const float>(), memory, PreparedVectorBytes(n)};
    return Write(nullptr, memory, values, int64_t{4} * n);
  }

#define KVC_FENCED(Name, Args)                        \
  Status Name(Stream* s, const Args& args) override { \
    const Fence::Inside inside;                       \
    return CpuDevice::Name(s, args);                  \
  }
  KVC_FENCED(Embed, EmbedArgs)
  KVC_FENCED(StoreHalves, HalfRowsArgs)
  KVC_FENCED(LoadHalves, HalfRowsArgs)
  KVC_FENCED(Project, ProjectArgs)
  KVC_FENCED(Finish, FinishArgs)
  KVC_FENCED(Logits, LogitsArgs)
  KVC_FENCED(Sample, SampleArgs)
  KVC_FENCED(Place, PlaceArgs)
  KVC_FENCED(AttendPrompt, PromptAttentionArgs)
  KVC_FENCED(FoldColumns, ColumnArgs)
  KVC_FENCED(AttendAndFold, AttendAndFoldArgs)
  KVC_FENCED(Score, ScoreArgs)
  KVC_FENCED(Select, SelectArgs)
  KVC_FENCED(SelectByQueryHead, SelectByQueryHeadArgs)
  KVC_FENCED(Unmark, UnmarkArgs)
  KVC_FENCED(CountBest, CountBestArgs)
  KVC_FENCED(Merge, MergeArgs)
  KVC_FENCED(LoadLayer, LoadArgs)
  KVC_FENCED(CodeLayer, CodeArgs)
  KVC_FENCED(StoreLayer, StoreArgs)
  KVC_FENCED(AppendLayer, AppendArgs)
  KVC_FENCED(Rewind, RewindArgs)
  KVC_FENCED(KeepNewest, KeepNewestArgs)
  KVC_FENCED(StorePlain, StorePlainArgs)
  KVC_FENCED(Positions, PositionsArgs)
  KVC_FENCED(FillAngles, AngleArgs)
  KVC_FENCED(Step, StepArgs)
  KVC_FENCED(EndStep, StepArgs)
  KVC_FENCED(QueryRing, QueryRingArgs)
  KVC_FENCED(Evict, EvictArgs)
#undef KVC_FENCED

 private:
  static void Move(int32_t cols, Matrix::Part* part, uint8_t** to) {
    const WeightPlace place =
        PlaceOf({part->type, part->layout, part->rows, cols, part->group, nullptr, nullptr});
    std::memcpy(*to, Raw(part->data), static_cast<size_t>(place.data_bytes));
    part->data = AddressOf(static_cast<const uint8_t*>(*to));
    if (place.scales_bytes > 0) {
      uint8_t* scales = *to + place.scales_offset;
      std::memcpy(scales, Raw(part->scales), static_cast<size_t>(place.scales_bytes));
      part->scales = AddressOf(reinterpret_cast<const uint16_t*>(scales));
    }
    *to += Aligned(place.n_bytes);
  }
};

}  // namespace

CpuMaker FencedCpu() {
  const char* wanted = std::getenv("KVC_TEST_FENCED");
  return wanted != nullptr && std::strcmp(wanted, "1") == 0 ? test::NewFencedDevice : nullptr;
}

namespace test {

Result<std::unique_ptr<Device>> NewFencedDevice(const ThreadOptions& threads) {
  Result<std::unique_ptr<ThreadPool>> pool = CreatePool(threads);
  if (!pool.ok()) return pool.status();
  return std::unique_ptr<Device>(new FencedDevice(std::move(pool.value())));
}

}  // namespace test
}  // namespace kvc
