#include "bench/device_steps.h"

#include <atomic>

#include "bench/device_layer.h"
#include "lib/cache/kv_cache.h"
#include "tests/support/uniform_layout.h"

namespace kvc::bench {

namespace {

// One token of every session in layers that are there: its own entry is appended, every entry is read once.
// Bytes: those of the entries as they are stored.
void StepOf(DeviceBench* bench, const NetworkShape& s, Span<const std::unique_ptr<KvCache>> caches,
            const StepPlan& plan, const std::string& name) {
  Device* device = bench->device();
  const int32_t d = s.head_dim, n_rows = static_cast<int32_t>(caches.size());
  const CacheLayout& layout = caches[0]->layout();
  const Rope rope({}, d);
  constexpr int32_t kCoarse = 64;
  const DeviceBuffer<float> fine = bench->Room<float>(int64_t{kFineAngles} * d),
                            coarse = bench->Room<float>(int64_t{kCoarse} * d);
  Check(device->FillAngles(bench->stream(), {&rope, 0, 1, kFineAngles, false, fine.at()}));
  Check(device->FillAngles(bench->stream(), {&rope, 0, kFineAngles, kCoarse, true, coarse.at()}));
  const int64_t vectors = int64_t{n_rows} * s.n_heads, kv_vectors = int64_t{n_rows} * s.n_kv_heads;
  const DeviceBuffer<float> q = bench->Upload(bench->Floats(vectors * d)),
                            k = bench->Upload(bench->Floats(kv_vectors * d)),
                            v = bench->Upload(bench->Floats(kv_vectors * d)),
                            out = bench->Room<float>(vectors * d);
  std::atomic<bool> dropped{false};
  std::vector<StepRow> rows;
  double entries = 0, bytes = 0;
  int32_t slots = 0;
  for (const auto& cache : caches) {
    rows.push_back({&cache->view(), &plan, cache->MaxLen(), &dropped});
    slots = std::max(slots, cache->MaxSlots());
    bytes += static_cast<double>(cache->bytes());
    for (int32_t head = 0; head < layout.n_layers * s.n_kv_heads; ++head) entries += cache->view().len[head];
  }
  StepArgs a{};
  a.rows = rows.data(), a.n_rows = n_rows, a.n_heads = s.n_heads, a.scale = kScale, a.rope = &rope;
  a.pairing = RopePairing::kHalf, a.angles = {fine.at(), coarse.at()};
  a.q = q.at(), a.k = k.at(), a.v = v.at(), a.out = out.at();
  constexpr int32_t kMostSteps = 1 << 14;
  a.shape = {
      n_rows,        s.n_heads, s.n_kv_heads, d, 64, 0, int64_t{slots} + kMostSteps, 0, plan.needs_attention,
      plan.Updates()};
  a.shape.append_bytes = device->AppendScratchBytes(layout);
  const DeviceBuffer<uint8_t> scratch = bench->Room<uint8_t>(device->StepScratchBytes(a.shape));
  a.scratch = scratch.raw();
  const bool drops = plan.evicts || plan.held != nullptr;
  int32_t steps = 0;
  bench->Measure(name, 4.0 * entries * (s.n_heads / s.n_kv_heads) * d, bytes, [&] {
    for (const auto& cache : caches) Check(cache->EnsureSteps(bench->stream(), 1, drops));
    // As passes of a model: a device that has graphs gets one of all layers, and is waited for behind it.
    Gathering gathering(bench->stream());
    for (a.layer = 0; a.layer < layout.n_layers; ++a.layer) Check(device->Step(bench->stream(), a));
    Check(gathering.Issue());
    if (layout.n_layers > 1) bench->Wait();
    for (const auto& cache : caches) cache->Stepped(1, drops, false);
    for (StepRow& row : rows) ++row.position;
    if (++steps == kMostSteps) Fail("more steps than there is room for");
  });
}

// How entries are coded, for names and layouts.
struct Kind {
  KvType type;
  const char* name;
  int32_t group;
};

test::UniformLayout LayoutOf(const NetworkShape& s, const Kind& kind, int32_t n_layers) {
  test::UniformLayout layout;
  layout.n_layers = n_layers, layout.n_kv_heads = s.n_kv_heads;
  layout.group = s.n_heads / s.n_kv_heads, layout.head_dim = s.head_dim;
  layout.type = kind.type, layout.quant_group = kind.group;
  return layout;
}

// The beginning of `layer` in every layer of a cache: kept[h] entries of each head.
class Filling {
 public:
  Filling(DeviceBench* bench, const Layer& layer, int32_t n, const NetworkShape& s)
      : bench_(bench), layer_(layer), n_(n), rotated_(static_cast<size_t>(s.n_kv_heads), 1) {}
  void Store(KvCache* cache, int32_t at, std::vector<int32_t> kept) {
    LayerView from = layer_.view();
    from.len = kept.data();
    Check(cache->Store(bench_->stream(), {at, from, turning(), rotated_.data(), {}, {}, n_, kept.data()},
                       &codes_));
  }
  static KeyTurning turning() { return {nullptr, RopePairing::kHalf, false}; }

 private:
  DeviceBench* const bench_;
  const Layer& layer_;
  const int32_t n_;
  const std::vector<uint8_t> rotated_;
  DeviceBuffer<uint8_t> codes_;
};

// Of the mean, what the heads of a layer have: the longest half of all entries, the next half of the rest.
constexpr double kRagged[] = {4, 2, 1, 0.5, 0.25, 0.125, 0.0625, 0.0625};

}  // namespace

void PagesTakenAndGivenBack(DeviceBench* bench) {
  constexpr int64_t kPage = 8 << 10;
  const int64_t bytes = bench->small() ? 256 << 10 : 32 << 20;
  const std::string name = "pages of " + std::to_string(bytes >> 10) + " KiB taken and given back";
  if (!bench->Wants(name)) return;
  PageArenas arenas(bench->device(), std::make_shared<MemoryMeter>(0));
  const std::shared_ptr<PageArena> arena = Taken(arenas.Of(kPage));
  std::vector<int32_t> ids;
  bench->Measure(name, 0, static_cast<double>(bytes), [&] {
    Check(arena->Take(static_cast<int32_t>(bytes / kPage), &ids));
    arena->Release(ids.data(), ids.size());
    ids.clear();
  });
}

void CacheOperations(DeviceBench* bench) {
  const NetworkShape s = ShapeOf(*bench);
  PageArenas arenas(bench->device(), std::make_shared<MemoryMeter>(0));
  const int32_t n = bench->small() ? 128 : 8192;
  const std::string what = std::to_string(n) + " entries";
  const Layer layer(bench, n);
  const std::vector<int32_t> kept(static_cast<size_t>(s.n_kv_heads), n);
  for (const Kind& kind :
       {Kind{KvType::kF16, "f16", 0}, {KvType::kInt8, "int8", 32}, {KvType::kInt4, "int4", 32}}) {
    const double about = 2.0 * n * s.n_kv_heads * static_cast<double>(CodeBytes(kind.type, s.head_dim));
    const int32_t n_layers = Copies(*bench, about);
    const std::string name = std::string(kind.name) + ", " + what;
    if (!bench->Wants("store " + name) && !bench->Wants("load " + name) && !bench->Wants("step " + name))
      continue;
    std::vector<std::unique_ptr<KvCache>> caches;
    caches.push_back(Taken(KvCache::Create(LayoutOf(s, kind, n_layers).Make(), &arenas)));
    KvCache* cache = caches[0].get();
    Filling filling(bench, layer, n, s);
    int32_t at = 0;
    const auto store = [&] {
      filling.Store(cache, at, kept);
      at = (at + 1) % n_layers;
    };
    for (int32_t i = 0; i < n_layers; ++i) store();
    const double bytes = static_cast<double>(cache->bytes()) / n_layers;
    bench->Measure("store " + name, 0, layer.bytes(n) + bytes, store);
    LayerBuffers to;
    Check(to.Reserve(bench->memory(), s.n_kv_heads, s.head_dim, n, n, 0, false));
    LoadArgs load{};
    load.cache = &cache->view(), load.to = to.view(), load.turning = Filling::turning();
    load.scratch = to.order(), load.scratch_entries = to.max_cached();
    bench->Measure("load " + name, 0, layer.bytes(n) + bytes, [&] {
      Check(bench->device()->LoadLayer(bench->stream(), load));
      load.layer = (load.layer + 1) % n_layers;
    });
    StepOf(bench, s, {caches.data(), caches.size()}, {},
           "step " + name + ", " + std::to_string(n_layers) + " layers");
  }
}

void StepAttention(DeviceBench* bench) {
  const NetworkShape s = HeadsOf8B();
  PageArenas arenas(bench->device(), std::make_shared<MemoryMeter>(0));
  const Kind bf16{KvType::kBf16, "bf16", 0}, int8{KvType::kInt8, "int8", 32}, int4{KvType::kInt4, "int4", 32};
  constexpr int32_t kOne = 1, kBeyondCaches = 0, kOfAModel = 32;
  struct Case {
    int32_t sessions, mean;  // entries of a head
    Kind kind;
    bool ragged;
    int32_t layers;  // kBeyondCaches: as many as no cache of the device holds
    // As H2O does: attention adds up, and what has least of it leaves for the new entry.
    bool dropping = false;
    bool sliding = false;  // the oldest entry leaves
  };
  // The last two have hardly anything to attend to: what is left is the new entry, and the old one that goes.
  for (const Case& c : {Case{16, 4096, bf16, false, kOne},
                        {16, 4096, bf16, true, kOne},
                        {16, 4096, int8, false, kOne},
                        {16, 4096, int4, false, kOne},
                        {2, 4096, bf16, true, kOne},
                        {1, 8192, bf16, true, kBeyondCaches},
                        {1, 1024, bf16, false, kBeyondCaches},
                        {1, 1024, bf16, false, kBeyondCaches, true},
                        {1, 8, bf16, false, kOfAModel},
                        {1, 8, bf16, false, kOfAModel, false, true}}) {
    const int32_t mean = bench->small() ? std::max(c.mean / 64, 4) : c.mean;
    const double about = 2.0 * mean * s.n_kv_heads * static_cast<double>(CodeBytes(c.kind.type, s.head_dim));
    const int32_t n_layers = c.layers == kBeyondCaches ? Copies(*bench, about)
                             : bench->small()          ? std::min(c.layers, 2)
                                                       : c.layers;
    const std::string name = "attend " + std::to_string(c.sessions) + " of " + std::to_string(mean) +
                             " entries " + c.kind.name + (c.ragged ? ", ragged" : ", uniform") +
                             (c.dropping ? ", dropping" : "") + (c.sliding ? ", sliding" : "") +
                             (c.layers == kOne ? "" : ", " + std::to_string(n_layers) + " layers");
    if (!bench->Wants(name)) continue;
    const int32_t longest = c.ragged ? mean * static_cast<int32_t>(kRagged[0]) : mean;
    const int32_t n_aux = c.dropping ? 1 : 0;
    const Layer layer(bench, s, longest, n_aux);
    Filling filling(bench, layer, longest, s);
    std::vector<std::unique_ptr<KvCache>> caches;
    for (int32_t i = 0; i < c.sessions; ++i) {
      test::UniformLayout layout = LayoutOf(s, c.kind, n_layers);
      layout.n_aux = n_aux;
      caches.push_back(Taken(KvCache::Create(layout.Make(), &arenas)));
      std::vector<int32_t> kept(static_cast<size_t>(s.n_kv_heads), mean);
      for (size_t h = 0; c.ragged && h < kept.size(); ++h)  // another head is the longest in every session
        kept[(h + static_cast<size_t>(i)) % kept.size()] = static_cast<int32_t>(mean * kRagged[h]);
      for (int32_t at = 0; at < n_layers; ++at) filling.Store(caches.back().get(), at, kept);
    }
    const std::vector<int32_t> most(static_cast<size_t>(n_layers * s.n_kv_heads), mean);
    StepPlan plan;
    if (c.dropping) {
      plan.n_instrs = 1, plan.instrs[0].op = StepOp::kAddAttention;
      plan.needs_attention = plan.evicts = true, plan.caps = most.data(), plan.select.protect = {0, 1};
    }
    if (c.sliding) plan.held = most.data();
    StepOf(bench, s, {caches.data(), caches.size()}, plan, name);
  }
}

}  // namespace kvc::bench
