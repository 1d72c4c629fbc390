// A device for tests of the parts below the engine: plain vectors into its memory and out of it, whole
// layers, and one token through one layer. Everything goes through operations of the device: the processor,
// or the one that KVC_TEST_DEVICE names (tests/emu/device_under_test.cc).
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/archive.h"
#include "lib/base/byte_sink.h"
#include "lib/base/half.h"
#include "lib/cache/kv_cache.h"
#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/devices.h"
#include "tests/support/uniform_layout.h"

namespace kvc::test {

// What is left of a vector that was stored, as the reference makes it.
inline std::vector<float> RoundTrip(const VectorFormat& format, const std::vector<float>& x) {
  std::vector<uint8_t> codes(static_cast<size_t>(CodeBytes(format.type, format.d)));
  std::vector<uint16_t> scales(x.size());
  std::vector<float> out(x.size());
  ReferenceKernels().encode_vectors(format, x.data(), 1, codes.data(), scales.data());
  ReferenceKernels().decode_vectors(format, codes.data(), scales.data(), 1, out.data());
  return out;
}

// A layer on the host.
struct HostLayer {
  int32_t n_kv_heads = 0, head_dim = 0, n_aux = 0;
  int64_t capacity = 0;
  std::vector<float> keys, values;  // [G, capacity, D]
  std::vector<int32_t> positions;   // [G, capacity]
  std::vector<float> aux;           // [n_aux, G, capacity]
  std::vector<uint32_t> seen;       // [G, capacity]
  std::vector<int32_t> len;         // [G]

  HostLayer() = default;
  HostLayer(int32_t g, int32_t d, int64_t entries, int32_t side_values = 0)
      : n_kv_heads(g), head_dim(d), n_aux(side_values), capacity(entries) {
    const size_t n = static_cast<size_t>(g * entries);
    keys.resize(n * static_cast<size_t>(d)), values.resize(keys.size());
    positions.resize(n), seen.resize(n, ~0u);
    aux.resize(n * static_cast<size_t>(side_values));
    len.assign(static_cast<size_t>(g), static_cast<int32_t>(entries));
  }
  size_t Entry(int64_t g, int64_t i) const { return static_cast<size_t>(g * capacity + i); }
  float* Key(int64_t g, int64_t i) { return keys.data() + Entry(g, i) * static_cast<size_t>(head_dim); }
  float* Value(int64_t g, int64_t i) { return values.data() + Entry(g, i) * static_cast<size_t>(head_dim); }
  std::vector<float> KeyOf(int64_t g, int64_t i) { return {Key(g, i), Key(g, i) + head_dim}; }
  std::vector<float> ValueOf(int64_t g, int64_t i) { return {Value(g, i), Value(g, i) + head_dim}; }
  int32_t& Position(int64_t g, int64_t i) { return positions[Entry(g, i)]; }
  float& Aux(int64_t a, int64_t g, int64_t i) {
    return aux[static_cast<size_t>((a * n_kv_heads + g) * capacity + i)];
  }
};

// Whether "cpu" is another device than the processor.
inline bool OnAnotherDevice() {
  const char* wanted = std::getenv("KVC_TEST_DEVICE");
  return wanted != nullptr && *wanted != '\0' && std::string(wanted) != "cpu";
}

class TestDevice {
 public:
  KvType layer_type = KvType::kF32;  // in which layers lie on the device

  // Threads and kernels are the processor's.
  explicit TestDevice(int n_threads = 2, const KernelTable& kernels = BestKernels(), int64_t limit = 0)
      : meter_(std::make_shared<MemoryMeter>(limit)),
        device_(Open(n_threads, kernels)),
        stream_(std::move(device_->NewStream().value())),
        arenas_(device_.get(), meter_) {}
  // A test's own device, without a limit.
  explicit TestDevice(std::unique_ptr<Device> device)
      : meter_(std::make_shared<MemoryMeter>(0)),
        device_(std::move(device)),
        stream_(std::move(device_->NewStream().value())),
        arenas_(device_.get(), meter_) {}

  Device* device() { return device_.get(); }
  Stream* stream() { return stream_.get(); }
  MemoryMeter* meter() { return meter_.get(); }
  PageArenas* arenas() { return &arenas_; }
  DeviceMemory metered() { return {device_.get(), meter_.get()}; }
  // What belongs to the test counts nowhere.
  DeviceMemory own() { return {device_.get(), nullptr}; }

  template <typename T>
  void Write(DevicePtr<T> to, const std::vector<T>& x) {
    const int64_t bytes = static_cast<int64_t>(x.size() * sizeof(T));
    EXPECT_TRUE(device_->Write(stream(), to.template As<uint8_t>(), x.data(), bytes).ok());
  }
  template <typename T>
  DeviceBuffer<T> Upload(const std::vector<T>& x) {
    DeviceBuffer<T> buffer;
    EXPECT_TRUE(buffer.Allocate(own(), static_cast<int64_t>(x.size()), "test").ok());
    Write(buffer.at(), x);
    return buffer;
  }
  template <typename T>
  std::vector<T> Read(DevicePtr<T> from, int64_t n) {
    std::vector<T> x(static_cast<size_t>(n));
    const int64_t bytes = n * static_cast<int64_t>(sizeof(T));
    EXPECT_TRUE(device_->Read(stream(), from.template As<const uint8_t>(), x.data(), bytes).ok());
    return x;
  }

  void Upload(const HostLayer& from, LayerBuffers* to) {
    ASSERT_TRUE(to->Reserve(own(), from.n_kv_heads, from.head_dim, from.capacity, from.capacity, from.n_aux,
                            true, layer_type)
                    .ok());
    const LayerView& v = to->view();
    WriteNumbers(v.keys, from.keys), WriteNumbers(v.values, from.values);
    Write(v.positions, from.positions);
    Write(v.aux, from.aux), Write(v.seen, from.seen);
    std::copy(from.len.begin(), from.len.end(), v.len);
  }
  HostLayer Download(const LayerBuffers& from) {
    const LayerView& v = from.view();
    HostLayer to(v.n_kv_heads, v.head_dim, v.capacity, v.n_aux);
    const int64_t n = v.n_kv_heads * v.capacity;
    to.keys = ReadNumbers(v, v.keys), to.values = ReadNumbers(v, v.values);
    to.positions = Read(v.positions, n), to.aux = Read(v.aux, n * v.n_aux);
    if (v.has_seen) to.seen = Read(v.seen, n);
    to.len = from.len();
    return to;
  }

  // A layer of a cache by ascending position, keys as they are stored.
  HostLayer Load(const KvCache& cache, int32_t layer) {
    const CacheLayout& layout = cache.layout();
    const Rope none = Rope::None(layout.head_dim);
    LayerBuffers kv;
    const int64_t entries = std::max(cache.MaxLen(), 1);
    EXPECT_TRUE(kv.Reserve(own(), layout.n_kv_heads, layout.head_dim, entries, entries, layout.n_aux,
                           layout.seen_masks, layer_type)
                    .ok());
    LoadArgs args{};
    args.cache = &cache.view(), args.layer = layer, args.to = kv.view(), args.turning.rope = &none;
    args.scratch = kv.order(), args.scratch_entries = kv.max_cached();
    EXPECT_TRUE(device_->LoadLayer(stream(), args).ok());
    return Download(kv);
  }
  // The marked entries of a layer, keys as they will be stored. marks, seen [G, capacity]: null all.
  Status Store(KvCache* cache, int32_t layer, const HostLayer& from,
               const std::vector<uint8_t>* marks = nullptr, const std::vector<uint32_t>* seen = nullptr) {
    const Rope none = Rope::None(from.head_dim);
    const int32_t g = from.n_kv_heads;
    LayerBuffers kv;
    Upload(from, &kv);
    std::vector<uint8_t> rotated(static_cast<size_t>(g));
    for (int32_t i = 0; i < g; ++i)
      rotated[static_cast<size_t>(i)] = cache->layout().main(layer * g + i).coding != EntryCoding::kCodebook;
    std::vector<int32_t> kept(from.len);
    DeviceBuffer<uint8_t> mark_buffer, codes;
    DeviceBuffer<uint32_t> seen_buffer;
    if (seen != nullptr) seen_buffer = Upload(*seen);
    if (marks != nullptr) {
      mark_buffer = Upload(*marks);
      for (int32_t i = 0; i < g; ++i) {
        const auto line = marks->begin() + i * from.capacity;
        kept[static_cast<size_t>(i)] =
            static_cast<int32_t>(std::count(line, line + from.len[static_cast<size_t>(i)], uint8_t{1}));
      }
    }
    const KeyTurning turning{&none, RopePairing::kHalf, false};
    return cache->Store(stream(),
                        {layer, kv.view(), turning, rotated.data(), mark_buffer.at(), seen_buffer.at(),
                         from.capacity, kept.data()},
                        &codes);
  }
  Status AppendFrom(KvCache* cache, int32_t layer, const HostLayer& from, const std::vector<int32_t>& first) {
    const Rope none = Rope::None(from.head_dim);
    LayerBuffers kv;
    Upload(from, &kv);
    DeviceBuffer<uint8_t> scratch;
    return cache->AppendFrom(stream(), layer, kv.view(), {&none, RopePairing::kHalf, false}, first.data(),
                             &scratch);
  }
  // Removes the entries of heads [0, G) of one layer whose mark [G, stride] is 0, by ascending position.
  void Evict(KvCache* cache, int32_t layer, const std::vector<uint8_t>& marks, int64_t stride,
             const std::vector<uint8_t>& heads, const KeyTurning& turning) {
    const int32_t g = cache->layout().n_kv_heads;
    DeviceBuffer<uint8_t> mark_buffer = Upload(marks), scratch;
    ASSERT_TRUE(scratch.Allocate(own(), device_->EvictScratchBytes(g, stride), "test").ok());
    bool which[64] = {};
    std::copy(heads.begin(), heads.end(), which);
    ASSERT_TRUE(cache->EnsureSteps(stream(), 1, true).ok());
    ASSERT_TRUE(device_
                    ->Evict(stream(),
                            {&cache->view(), layer, mark_buffer.at(), stride, which, turning, scratch.raw()})
                    .ok());
    cache->Stepped(0, true, false);
  }

 private:
  void WriteNumbers(DeviceBytes to, const std::vector<float>& x) {
    if (layer_type == KvType::kF32) return Write(to.As<float>(), x);
    std::vector<uint16_t> halves(x.size());
    std::transform(x.begin(), x.end(), halves.begin(), FloatToF16);
    Write(to.As<uint16_t>(), halves);
  }
  std::vector<float> ReadNumbers(const LayerView& v, DeviceBytes from) {
    const int64_t n = v.n_kv_heads * v.capacity * v.head_dim;
    if (v.type == KvType::kF32) return Read(from.As<float>(), n);
    const std::vector<uint16_t> halves = Read(from.As<uint16_t>(), n);
    std::vector<float> x(halves.size());
    std::transform(halves.begin(), halves.end(), x.begin(), F16ToFloat);
    return x;
  }
  static std::unique_ptr<Device> Open(int n_threads, const KernelTable& kernels) {
    if (OnAnotherDevice()) return std::move(OpenDevice("cpu", n_threads).value());
    return std::make_unique<cpu::CpuDevice>(std::move(ThreadPool::Create(n_threads).value()), kernels);
  }

  const std::shared_ptr<MemoryMeter> meter_;
  const std::unique_ptr<Device> device_;
  const std::unique_ptr<Stream> stream_;
  PageArenas arenas_;
};

// The bytes of a cache in a file.
inline std::vector<uint8_t> Saved(KvCache* cache, Stream* stream) {
  std::vector<uint8_t> bytes;
  for (int round = 0; round < 2; ++round) {  // counted, then written
    MemorySink sink(bytes.data(), static_cast<int64_t>(bytes.size()));
    ArchiveWriter out(&sink);
    EXPECT_TRUE(cache->SaveTo(out, stream).ok());
    bytes.resize(static_cast<size_t>(sink.size()));
  }
  return bytes;
}

// One token through one layer: q [H, D], k, v [G, D] without rotation.
struct TokenInput {
  int32_t layer, position;
  std::vector<float> q, k, v;
  const Rope* rope;
  RopePairing pairing = RopePairing::kHalf;
  float scale = 1;
  int32_t window = 0;
  std::vector<float> sinks = {};  // [H], or empty: none
};

class TokenStep {
 public:
  explicit TokenStep(TestDevice* memory) : memory_(memory) {}

  // Room for the token in every layer; once a token.
  Status Ensure(KvCache* cache, bool writes_all) {
    return cache->EnsureSteps(memory_->stream(), 1, writes_all);
  }
  // What attention gives, [H, D]. between: what happens to the layer before plans that end later end.
  std::vector<float> Run(const KvCache& cache, const StepPlan& plan, const TokenInput& in,
                         const std::function<void()>& between = {}) {
    const CacheLayout& layout = cache.layout();
    Device* device = memory_->device();
    FillAngles(*in.rope, in.position);
    DeviceBuffer<float> q = memory_->Upload(in.q), k = memory_->Upload(in.k), v = memory_->Upload(in.v), out;
    DeviceBuffer<float> sinks;
    if (!in.sinks.empty()) sinks = memory_->Upload(in.sinks);
    EXPECT_TRUE(out.Allocate(memory_->own(), q.size(), "test").ok());
    const StepRow row{&cache.view(), &plan, in.position, &dropped};
    StepArgs args{};
    args.layer = in.layer, args.rows = &row, args.n_rows = 1, args.n_heads = layout.n_kv_heads * layout.group;
    args.scale = in.scale, args.window = in.window, args.rope = in.rope, args.pairing = in.pairing;
    args.angles = {fine_.at(), coarse_.at()};
    args.q = q.at(), args.k = k.at(), args.v = v.at(), args.out = out.at();
    if (!in.sinks.empty()) args.sinks = sinks.at();
    args.shape = {1,
                  args.n_heads,
                  layout.n_kv_heads,
                  layout.head_dim,
                  layout.page_slots,
                  cache.ring_slots(),
                  int64_t{cache.MaxSlots()} + 1,
                  device->AppendScratchBytes(layout),
                  true,
                  true,
                  plan.reads > 0};
    DeviceBuffer<uint8_t> scratch;
    EXPECT_TRUE(scratch.Allocate(memory_->own(), device->StepScratchBytes(args.shape), "test").ok());
    args.scratch = scratch.raw();
    EXPECT_TRUE(device->Step(memory_->stream(), args).ok());
    if (between) between();
    EXPECT_TRUE(device->EndStep(memory_->stream(), args).ok());
    return memory_->Read(out.at(), out.size());
  }
  // The token is in every layer.
  void Done(KvCache* cache) {
    cache->Stepped(1, dropped, false);
    dropped = false;
  }

  std::atomic<bool> dropped{false};

 private:
  void FillAngles(const Rope& rope, int32_t position) {
    if (rope_ == &rope && position / kFineAngles < n_coarse_) return;
    rope_ = &rope, n_coarse_ = position / kFineAngles + 8;
    ASSERT_TRUE(fine_.Allocate(memory_->own(), int64_t{kFineAngles} * rope.head_dim(), "test").ok());
    ASSERT_TRUE(coarse_.Allocate(memory_->own(), int64_t{n_coarse_} * rope.head_dim(), "test").ok());
    Device* device = memory_->device();
    ASSERT_TRUE(device->FillAngles(memory_->stream(), {&rope, 0, 1, kFineAngles, false, fine_.at()}).ok());
    ASSERT_TRUE(
        device->FillAngles(memory_->stream(), {&rope, 0, kFineAngles, n_coarse_, true, coarse_.at()}).ok());
  }

  TestDevice* memory_;
  DeviceBuffer<float> fine_, coarse_;
  const Rope* rope_ = nullptr;
  int32_t n_coarse_ = 0;  // the tables reach position n_coarse_ * kFineAngles - 1
};

}  // namespace kvc::test
