#include "bench/device_steps.h"

#include <atomic>

#include "bench/device_layer.h"
#include "lib/cache/kv_cache.h"
#include "tests/support/uniform_layout.h"

namespace kvc::bench {

namespace {

// Layers between two waits of a device that is apart from the host.
constexpr int32_t kMostLayers = 256;

// How many entries the heads of caches have, to have them so again: what leaves are the newest ones, which
// lie behind the others.
class Lengths {
 public:
  explicit Lengths(Span<const std::unique_ptr<KvCache>> caches) {
    for (const auto& cache : caches) {
      const int32_t* len = cache->view().len;
      of_.emplace_back(len, len + cache->layout().n_heads_total());
    }
  }
  void Restore(Span<const std::unique_ptr<KvCache>> caches) const {
    for (size_t i = 0; i < of_.size(); ++i) std::copy(of_[i].begin(), of_[i].end(), caches[i]->view().len);
  }
  // Else every step was of other entries than the one before it.
  void Expect(Span<const std::unique_ptr<KvCache>> caches) const {
    for (size_t i = 0; i < of_.size(); ++i) {
      if (!std::equal(of_[i].begin(), of_[i].end(), caches[i]->view().len))
        throw Failure{"steps left heads with more entries or fewer"};
    }
  }

 private:
  std::vector<std::vector<int32_t>> of_;
};

// What a row is of: all layers, or one of them.
enum class Of { kPass, kLayer };

// So many times all layers are come by between two waits, so that what a wait takes is spread over many
// layers. Where entries are written to that the next time reads, once: those of a pass lie there before it
// begins.
int32_t TimesBetweenWaits(const DeviceBench& bench, const StepPlan& plan, int32_t n_layers, Of of) {
  if (bench.computes() || plan.Updates()) return 1;
  if (bench.small()) return of == Of::kLayer ? 1 : 2;
  return std::max(kMostLayers / n_layers, 1);
}

// By the attention of a row, all layers: entries, and the bytes of their pages and of the bounds of the
// others.
struct ReadOf {
  double entries, bytes;
};
ReadOf ReadBy(const StepRow& row, int32_t n_kv_heads) {
  ReadOf read{};
  const CacheLayout& layout = *row.cache->layout;
  for (int32_t head = 0; head < layout.n_layers * n_kv_heads; ++head) {
    const int32_t len = row.cache->len[head], chosen = PagesRead(row, head / n_kv_heads, head, len);
    const PageFormat& f = layout.formats[static_cast<size_t>(MainFormat(*row.cache, head))];
    const int32_t all = (len + f.slots - 1) / f.slots;
    read.entries += EntriesRead(chosen, f.slots, len);
    read.bytes += static_cast<double>((chosen > 0 ? chosen : all) * f.bytes);
    if (chosen > 0)
      read.bytes += 2.0 * static_cast<double>((all - 1) * CodeBytes(f.bound_format().type, f.d));
  }
  return read;
}

// One token of every session in layers that are there: its own entry is appended, every entry is read once.
// What is appended is forgotten again, so that every call finds the same entries. Bytes: those of the entries
// as they are stored.
void StepOf(DeviceBench* bench, const NetworkShape& s, Span<const std::unique_ptr<KvCache>> caches,
            const StepPlan& plan, const std::string& name, Of of = Of::kPass) {
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
  const Lengths lengths(caches);
  std::atomic<bool> dropped{false};
  std::vector<StepRow> rows;
  double entries = 0, bytes = 0;
  int32_t slots = 0;
  for (const auto& cache : caches) {
    rows.push_back({&cache->view(), &plan, cache->MaxLen(), &dropped});
    slots = std::max(slots, cache->MaxSlots());
    const ReadOf read = ReadBy(rows.back(), s.n_kv_heads);
    entries += read.entries;
    bytes += plan.reads > 0 ? read.bytes : static_cast<double>(cache->bytes());
  }
  StepArgs a{};
  a.rows = rows.data(), a.n_rows = n_rows, a.n_heads = s.n_heads, a.scale = kScale, a.rope = &rope;
  a.pairing = RopePairing::kHalf, a.angles = {fine.at(), coarse.at()};
  a.q = q.at(), a.k = k.at(), a.v = v.at(), a.out = out.at();
  a.shape = {
      n_rows,         s.n_heads,     s.n_kv_heads, d, 64, 0, int64_t{slots} + 1, 0, plan.needs_attention,
      plan.Updates(), plan.reads > 0};
  a.shape.append_bytes = device->AppendScratchBytes(layout);
  const DeviceBuffer<uint8_t> scratch = bench->Room<uint8_t>(device->StepScratchBytes(a.shape));
  a.scratch = scratch.raw();
  const bool drops = plan.Updates();
  const int32_t times = TimesBetweenWaits(*bench, plan, layout.n_layers, of),
                parts = of == Of::kLayer ? layout.n_layers : 1;
  bench->Measure(name, 4.0 * entries * (s.n_heads / s.n_kv_heads) * d / parts, bytes / parts,
                 [&] {
                   for (const auto& cache : caches) Check(cache->EnsureSteps(bench->stream(), 1, drops));
                   // As passes of a model: a device that has graphs gets one of all layers.
                   Gathering gathering(bench->stream());
                   for (int32_t i = 0; i < times; ++i) {
                     for (a.layer = 0; a.layer < layout.n_layers; ++a.layer)
                       Check(device->Step(bench->stream(), a));
                     if (!drops) lengths.Restore(caches);
                   }
                   Check(gathering.Issue());
                   if (!drops) return;
                   for (const auto& cache : caches) cache->Stepped(1, true, false);
                   for (StepRow& row : rows) ++row.position;
                 },
                 {times * parts, true});
  lengths.Expect(caches);
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

std::string NameOf(const Kind& kind, int32_t n) {
  return std::string(kind.name) + ", " + std::to_string(n) + " entries";
}
std::string InLayers(int32_t n_layers) { return ", " + std::to_string(n_layers) + " layers"; }

// Of so many entries a head.
int32_t LayersBeyondCaches(const DeviceBench& bench, const NetworkShape& s, const Kind& kind, int64_t n) {
  return Copies(bench, 2.0 * static_cast<double>(n * s.n_kv_heads * CodeBytes(kind.type, s.head_dim)));
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

// Of the mean, what the eight heads of a layer have.
struct HeadLengths {
  const char* name;
  double of_mean[8];  // the longest one first
};
constexpr HeadLengths kUniform{"uniform", {1, 1, 1, 1, 1, 1, 1, 1}};
// The longest half of all entries, the next half of the rest.
constexpr HeadLengths kRagged{"ragged", {4, 2, 1, 0.5, 0.25, 0.125, 0.0625, 0.0625}};
// One has nearly all, which many blocks have to share.
constexpr HeadLengths kGiant{"one giant", {7.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125}};

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

namespace {

void CacheOperationsOf(DeviceBench* bench, PageArenas* arenas, const Layer& layer, int32_t n,
                       const Kind& kind) {
  const NetworkShape s = ShapeOf(*bench);
  const std::vector<int32_t> kept(static_cast<size_t>(s.n_kv_heads), n);
  const int32_t n_layers = LayersBeyondCaches(*bench, s, kind, n);
  const std::string name = NameOf(kind, n);
  std::vector<std::unique_ptr<KvCache>> caches;
  caches.push_back(Taken(KvCache::Create(LayoutOf(s, kind, n_layers).Make(), arenas)));
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
  StepOf(bench, s, {caches.data(), caches.size()}, {}, "step " + name + InLayers(n_layers));
}

}  // namespace

void CacheOperations(DeviceBench* bench) {
  PageArenas arenas(bench->device(), std::make_shared<MemoryMeter>(0));
  const int32_t n = bench->small() ? 128 : 8192;
  std::unique_ptr<Layer> layer;
  for (const Kind& kind :
       {Kind{KvType::kF16, "f16", 0}, {KvType::kInt8, "int8", 32}, {KvType::kInt4, "int4", 32}}) {
    const std::string name = NameOf(kind, n),
                      layers = InLayers(LayersBeyondCaches(*bench, ShapeOf(*bench), kind, n));
    if (!bench->Wants("store " + name) && !bench->Wants("load " + name) &&
        !bench->Wants("step " + name + layers))
      continue;
    bench->Attempt("store, load, step " + name, [&] {
      if (layer == nullptr) layer = std::make_unique<Layer>(bench, n);
      CacheOperationsOf(bench, &arenas, *layer, n, kind);
    });
  }
}

namespace {

enum Layers { kInTurns, kPass, kLong };

struct StepCase {
  int32_t sessions, mean;  // entries of a head
  Kind kind;
  const HeadLengths& heads;
  // kInTurns: a row is of one layer, and there are as many as no cache of the device holds; kPass: a row is
  // of all of those; kLong: of as many as make the wait behind them nothing.
  Layers layers;
  // As H2O does: attention adds up, and what has least of it leaves for the new entry.
  bool dropping = false;
  bool sliding = false;  // the oldest entry leaves
  int32_t reads = 0;     // as Quest does: so many entries, by pages that are chosen; 0: all

  int32_t Reads(const DeviceBench& bench) const { return bench.small() ? reads / 64 : reads; }
  int32_t Mean(const DeviceBench& bench) const { return bench.small() ? std::max(mean / 64, 4) : mean; }
  int32_t NumberOfLayers(const DeviceBench& bench, const NetworkShape& s) const {
    const int32_t n = LayersBeyondCaches(bench, s, kind, int64_t{sessions} * Mean(bench));
    if (layers != kLong || bench.small()) return n;
    return bench.computes() ? std::min(n, 64) : kMostLayers;
  }
  std::string Name(const DeviceBench& bench, int32_t n_layers) const {
    return "attend " + std::to_string(sessions) + " of " + std::to_string(Mean(bench)) + " entries " +
           kind.name + ", " + heads.name + (dropping ? ", dropping" : "") + (sliding ? ", sliding" : "") +
           (reads > 0 ? ", choosing " + std::to_string(Reads(bench)) : "") +
           (layers == kInTurns ? "" : InLayers(n_layers));
  }
};

void StepAttentionOf(DeviceBench* bench, PageArenas* arenas, const NetworkShape& s, const StepCase& c,
                     int32_t n_layers) {
  const int32_t mean = c.Mean(*bench);
  const auto of_mean = [&](size_t h) { return static_cast<int32_t>(mean * c.heads.of_mean[h]); };
  const int32_t longest = of_mean(0);
  const int32_t n_aux = c.dropping ? 1 : 0;
  const Layer layer(bench, s, longest, n_aux);
  Filling filling(bench, layer, longest, s);
  std::vector<std::unique_ptr<KvCache>> caches;
  for (int32_t i = 0; i < c.sessions; ++i) {
    test::UniformLayout layout = LayoutOf(s, c.kind, n_layers);
    layout.n_aux = n_aux;
    if (c.reads > 0) layout.key_bounds = true, layout.page_slots = kLeastReadPage;
    caches.push_back(Taken(KvCache::Create(layout.Make(), arenas)));
    std::vector<int32_t> kept(static_cast<size_t>(s.n_kv_heads));
    for (size_t h = 0; h < kept.size(); ++h)  // another head is the longest in every session
      kept[(h + static_cast<size_t>(i)) % kept.size()] = of_mean(h);
    for (int32_t at = 0; at < n_layers; ++at) filling.Store(caches.back().get(), at, kept);
  }
  const std::vector<int32_t> most(static_cast<size_t>(n_layers * s.n_kv_heads), mean);
  StepPlan plan;
  if (c.dropping) {
    plan.n_instrs = 1, plan.instrs[0].op = StepOp::kAddAttention;
    plan.needs_attention = plan.evicts = true, plan.caps = most.data(), plan.select.protect = {0, 1};
  }
  if (c.sliding) plan.held = most.data();
  plan.reads = c.Reads(*bench);
  StepOf(bench, s, {caches.data(), caches.size()}, plan, c.Name(*bench, n_layers),
         c.layers == kInTurns ? Of::kLayer : Of::kPass);
}

}  // namespace

void StepAttention(DeviceBench* bench) {
  const NetworkShape s = HeadsOf8B();
  PageArenas arenas(bench->device(), std::make_shared<MemoryMeter>(0));
  const Kind bf16{KvType::kBf16, "bf16", 0}, int8{KvType::kInt8, "int8", 32}, int4{KvType::kInt4, "int4", 32};
  // The last two have hardly anything to attend to: what is left is the new entry, and the old one that goes.
  for (const StepCase& c : {StepCase{16, 4096, bf16, kUniform, kInTurns},
                            {16, 4096, bf16, kRagged, kInTurns},
                            {16, 4096, bf16, kGiant, kInTurns},
                            {16, 4096, int8, kUniform, kInTurns},
                            {16, 4096, int4, kUniform, kInTurns},
                            {2, 4096, bf16, kRagged, kInTurns},
                            {1, 8192, bf16, kRagged, kPass},
                            {1, 32768, bf16, kUniform, kPass},
                            {1, 8192, bf16, kUniform, kPass, false, false, 1024},
                            {1, 1024, bf16, kUniform, kLong},
                            {1, 1024, bf16, kUniform, kLong, true},
                            {1, 8, bf16, kUniform, kLong},
                            {1, 8, bf16, kUniform, kLong, false, true}}) {
    const int32_t n_layers = c.NumberOfLayers(*bench, s);
    bench->AttemptOne(c.Name(*bench, n_layers), [&] { StepAttentionOf(bench, &arenas, s, c, n_layers); });
  }
}

}  // namespace kvc::bench
