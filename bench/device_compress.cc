#include "bench/device_compress.h"

#include "bench/device_layer.h"
#include "lib/cache/kv_cache.h"
#include "tests/support/uniform_layout.h"

namespace kvc::bench {

namespace {

constexpr int32_t kWindow = 32;  // rows that are looked at; their own entries stay

// SnapKV's scores of a layer of `n` entries: pooled over 7 and over the query heads of a group.
class WindowScores {
 public:
  WindowScores(DeviceBench* bench, const NetworkShape& s, int32_t n)
      : bench_(bench),
        queries_(bench->Upload(bench->Floats(int64_t{kWindow} * s.n_heads * s.head_dim))),
        scores_(bench->Room<float>(int64_t{n} * s.n_kv_heads)),
        per_head_(bench->Room<float>(int64_t{n} * s.n_heads)) {
    program_.rows.n_rows = kWindow;
    program_.Add(ScoreOp::kRows);
    ScoreInstr& pool = program_.Add(ScoreOp::kPoolQ);
    pool.pool.kernel = 7, pool.tail = kWindow;
    program_.Add(ScoreOp::kGroup).tail = kWindow;
    args_.program = &program_, args_.n_heads = s.n_heads;
    args_.scale = kScale, args_.stride = n;
    args_.observed.n_rows = args_.observed.n_new = kWindow, args_.observed.queries = queries_.at();
    args_.scores = scores_.at(), args_.per_head = per_head_.at();
    scratch_ = bench->Room<uint8_t>(
        bench->device()->ScoreScratchBytes({&program_, s.n_heads, s.n_kv_heads, s.head_dim, kWindow, n}));
    args_.scratch = scratch_.raw();
  }
  WindowScores(const WindowScores&) = delete;

  void Make(const Layer& layer) {
    args_.layer = layer.view();
    Check(bench_->device()->Score(bench_->stream(), args_));
  }
  DevicePtr<const float> at() const { return scores_.at(); }

 private:
  DeviceBench* const bench_;
  ScoreProgram program_;
  const DeviceBuffer<float> queries_, scores_, per_head_;
  DeviceBuffer<uint8_t> scratch_;
  ScoreArgs args_{};
};

double Flops(const NetworkShape& s, int32_t n) { return 2.0 * kWindow * n * s.n_heads * s.head_dim; }

}  // namespace

void Scoring(DeviceBench* bench) {
  const NetworkShape s = ShapeOf(*bench);
  const int32_t n = bench->small() ? 128 : 4096;
  const std::string name = "score 32 rows of " + std::to_string(n) + " entries";
  bench->AttemptOne(name, [&] {
    const Layer layer(bench, n);
    WindowScores scores(bench, s, n);
    bench->Measure(name, Flops(s, n), layer.bytes(n) / 2, [&] { scores.Make(layer); });
  });
}

namespace {

// Of layers in turns, as many as no cache of the device holds. Bytes: keys and what is kept of both are read,
// what is kept is written.
void CompressionOf(DeviceBench* bench, const std::string& name, int32_t n, int32_t keep) {
  const NetworkShape s = HeadsOf8B();
  Device* device = bench->device();
  std::vector<std::unique_ptr<Layer>> layers;
  layers.push_back(std::make_unique<Layer>(bench, s, n));
  const int32_t n_layers = Copies(*bench, layers[0]->bytes(n));
  for (int32_t i = 1; i < n_layers; ++i) layers.push_back(std::make_unique<Layer>(bench, s, n));
  WindowScores scores(bench, s, n);
  const size_t heads = static_cast<size_t>(s.n_kv_heads);
  const std::vector<int32_t> counts(heads, keep - kWindow), kept(heads, keep);
  const std::vector<uint8_t> rotated(heads, 1);
  const DeviceBuffer<uint8_t> marks = bench->Room<uint8_t>(int64_t{n} * s.n_kv_heads),
                              scratch = bench->Room<uint8_t>(device->SelectScratchBytes(s.n_kv_heads, n));
  SelectRule rule;
  rule.protect = {0, kWindow};
  test::UniformLayout layout;
  layout.n_layers = n_layers, layout.n_kv_heads = s.n_kv_heads;
  layout.group = s.n_heads / s.n_kv_heads, layout.head_dim = s.head_dim, layout.type = KvType::kBf16;
  PageArenas arenas(device, std::make_shared<MemoryMeter>(0));
  const std::unique_ptr<KvCache> cache = Taken(KvCache::Create(layout.Make(), &arenas));
  DeviceBuffer<uint8_t> codes;
  const KeyTurning turning{nullptr, RopePairing::kHalf, false};
  const double kept_bytes = 12.0 * keep * s.n_kv_heads * s.head_dim;  // f32 in, bf16 out, keys and values
  int32_t at = 0;
  bench->Measure(name, Flops(s, n), layers[0]->bytes(n) / 2 + kept_bytes, [&] {
    const Layer& layer = *layers[static_cast<size_t>(at)];
    scores.Make(layer);
    Check(device->Select(bench->stream(),
                         {rule, layer.view(), 0, counts.data(), scores.at(), marks.at(), n, scratch.raw()}));
    Check(cache->Store(bench->stream(),
                       {at, layer.view(), turning, rotated.data(), marks.at(), {}, n, kept.data()}, &codes));
    at = (at + 1) % n_layers;
  });
}

}  // namespace

void Compression(DeviceBench* bench) {
  const int32_t keep = bench->small() ? 48 : 1024;
  for (const int32_t n : {bench->small() ? 128 : 8192, bench->small() ? 64 : 4096}) {
    const std::string name = "compress to " + std::to_string(keep) + " of " + std::to_string(n) + " entries";
    bench->AttemptOne(name, [&] { CompressionOf(bench, name, n, keep); });
  }
}

}  // namespace kvc::bench
