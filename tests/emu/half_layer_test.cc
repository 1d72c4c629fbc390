// Layers of f16 (LayerView::type) beside layers of f32 with the same numbers, on the device that has both:
// what is read of them gives the same bits, what is written is the same rounded once.
#include <cmath>
#include <random>

#include "tests/emu/device_pair.h"
#include "tests/support/environment.h"
#include "tests/support/test_device.h"

namespace kvc {
namespace {

using test::HostLayer;

float Rounded(float x) { return F16ToFloat(FloatToF16(x)); }

class HalfLayer : public testing::Test {
 protected:
  void SetUp() override {
    const test::KeptVariable kept("KVC_TEST_DEVICE");
    test::SetVariable("KVC_TEST_DEVICE", kOther);
    for (auto& device : devices_) device = std::make_unique<test::TestDevice>();
    half().layer_type = KvType::kF16;
    ASSERT_TRUE(half().device()->info().half_layers);
  }
  test::TestDevice& full() { return *devices_[0]; }
  test::TestDevice& half() { return *devices_[1]; }
  std::vector<float> Random(size_t n, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    std::vector<float> x(n);
    for (float& v : x) v = Rounded(normal(random_));
    return x;
  }
  // Heads of different lengths, some entries of which only some query heads see.
  HostLayer Draw(int32_t g, int32_t d, int32_t n, int32_t n_aux = 0) {
    HostLayer layer(g, d, n + 5, n_aux);
    layer.keys = Random(layer.keys.size()), layer.values = Random(layer.values.size());
    for (float& x : layer.aux) x = std::fabs(Random(1)[0]) + 0.1f;
    for (int32_t h = 0; h < g; ++h) {
      layer.len[static_cast<size_t>(h)] = n - 3 * h;
      for (int32_t i = 0; i < n + 5; ++i) {
        layer.Position(h, i) = i;
        if (i % 3 == 1) layer.seen[layer.Entry(h, i)] = static_cast<uint32_t>(random_()) | 1u;
      }
    }
    return layer;
  }
  // f(device, its layer) of both; what it returns has to be the same.
  template <typename F>
  void ExpectSame(const HostLayer& layer, const F& f, const std::string& what) {
    std::vector<float> got[2];
    for (size_t i = 0; i < 2; ++i) {
      LayerBuffers kv;
      devices_[i]->Upload(layer, &kv);
      got[i] = f(*devices_[i], kv);
    }
    ASSERT_FALSE(got[0].empty()) << what;
    EXPECT_EQ(got[0], got[1]) << what;
  }
  std::unique_ptr<test::TestDevice> devices_[2];
  std::mt19937 random_{2027};
};

constexpr int32_t kHeads = 2, kGroup = 2;

// Rows of a chunk behind what is cached: rounded once, and no further from zero than f16 goes.
TEST_F(HalfLayer, PlaceRoundsOnce) {
  constexpr int32_t kD = 16, kBase = 3, kRows = 9;
  const std::vector<int32_t> base(kHeads, kBase);
  const std::vector<float> q = Random(kRows * kHeads * kGroup * kD);
  std::vector<float> k = Random(kRows * kHeads * kD), v = Random(kRows * kHeads * kD);
  k[5] = 1e6f, v[7] = -1e6f, v[8] = 1e-9f;
  const Rope rope({}, kD);
  HostLayer got[2];
  std::vector<float> turned[2];
  for (size_t i = 0; i < 2; ++i) {
    test::TestDevice& d = *devices_[i];
    LayerBuffers kv;
    d.Upload(HostLayer(kHeads, kD, 20), &kv);
    const DeviceBuffer<float> queries = d.Upload(q), keys = d.Upload(k), values = d.Upload(v);
    PlaceArgs a{};
    a.layer = kv.view(), a.rows = {base.data(), 2, kRows}, a.n_heads = kHeads * kGroup, a.first_position = 40;
    a.turning = {&rope, RopePairing::kHalf, false};
    a.q = queries.at(), a.k = keys.at(), a.v = values.at();
    ASSERT_TRUE(d.device()->Place(d.stream(), a).ok());
    got[i] = d.Download(kv), turned[i] = d.Read(queries.at(), queries.size());
  }
  EXPECT_EQ(turned[0], turned[1]);
  EXPECT_EQ(got[0].positions, got[1].positions);
  for (int32_t g = 0; g < kHeads; ++g) {
    for (int32_t i = kBase + 2; i < kBase + 2 + kRows; ++i) {
      for (int32_t j = 0; j < kD; ++j) {
        const float key = got[0].Key(g, i)[j], value = got[0].Value(g, i)[j];
        EXPECT_EQ(Rounded(std::min(std::max(key, -65504.0f), 65504.0f)), got[1].Key(g, i)[j]);
        EXPECT_EQ(Rounded(std::min(std::max(value, -65504.0f), 65504.0f)), got[1].Value(g, i)[j]);
      }
    }
  }
  EXPECT_EQ(got[1].Value(0, kBase + 2)[7], -65504.0f);
}

// By the kernels for every head size; heads of 64 and 128 have one of their own for attention over f16
// (attend_prompt_test). Queries are f16 here, so that logits are the same and sums of exponentials too;
// exponentials themselves are rounded for the products with values, by half of f16's last bit.
TEST_F(HalfLayer, AttentionOfPrompts) {
  for (const int32_t d : {6, 16, 80, 256}) {
    const HostLayer layer = Draw(kHeads, d, 90);
    const int32_t base = 20, rows = layer.len[1] - base;
    const std::vector<int32_t> bases(kHeads, base);
    const std::vector<float> q = Random(static_cast<size_t>(rows * kHeads * kGroup * d)),
                             sinks = Random(kHeads * kGroup);
    for (const int32_t window : {0, 16}) {
      SCOPED_TRACE("head size " + std::to_string(d) + ", window " + std::to_string(window));
      std::vector<float> out[2], lse[2];
      for (size_t i = 0; i < 2; ++i) {
        test::TestDevice& on = *devices_[i];
        LayerBuffers kv;
        on.Upload(layer, &kv);
        const DeviceBuffer<float> queries = on.Upload(q), to = on.Upload(q), sink = on.Upload(sinks),
                                  sums = on.Upload(
                                      std::vector<float>(static_cast<size_t>(rows * kHeads * kGroup)));
        PromptAttentionArgs a{kv.view(),
                              {bases.data(), 0, rows},
                              kHeads * kGroup,
                              window,
                              0.3f,
                              queries.at(),
                              to.at(),
                              sums.at(),
                              rows};
        if (window > 0) a.sinks = sink.at();
        ASSERT_TRUE(on.device()->AttendPrompt(on.stream(), a).ok());
        out[i] = on.Read(to.at(), to.size()), lse[i] = on.Read(sums.at(), sums.size());
      }
      EXPECT_EQ(lse[0], lse[1]);
      float most = 0, apart = 0;
      for (const float v : layer.values) most = std::max(most, std::fabs(v));
      for (size_t i = 0; i < out[0].size(); ++i) apart = std::max(apart, std::fabs(out[0][i] - out[1][i]));
      EXPECT_GT(apart, 0.0f) << "nothing was rounded";
      EXPECT_LE(apart, std::ldexp(most, -12));
    }
  }
}

// Queries beyond f16 are its largest, for every kernel; where they are two of f16, both are.
TEST_F(HalfLayer, QueriesEndWhereHalvesDo) {
  for (const int32_t d : {16, 64, 80, 256}) {
    const HostLayer layer = Draw(kHeads, d, 90);
    const int32_t rows = layer.len[1];
    const std::vector<int32_t> bases(kHeads, 0);
    const size_t n = static_cast<size_t>(rows * kHeads * kGroup * d);
    std::vector<float> far = Random(n);
    for (const auto& on : devices_) {
      std::vector<float> ends = far;
      const float most = on == devices_[0] ? 2 * 65504.0f : 65504.0f;
      for (size_t i = 0; i < n; i += 37) {
        far[i] = i % 2 == 0 ? 1e9f : -INFINITY;
        ends[i] = i % 2 == 0 ? most : -most;
      }
      const auto attend = [&](const std::vector<float>& q) {
        LayerBuffers kv;
        on->Upload(layer, &kv);
        const DeviceBuffer<float> queries = on->Upload(q), out = on->Upload(q);
        const PromptAttentionArgs a{
            kv.view(), {bases.data(), 0, rows}, kHeads * kGroup, 0, 0.3f, queries.at(), out.at(), {}, 0};
        EXPECT_TRUE(on->device()->AttendPrompt(on->stream(), a).ok());
        return on->Read(out.at(), out.size());
      };
      const std::vector<float> got = attend(far);
      EXPECT_TRUE(std::all_of(got.begin(), got.end(), [](float x) { return std::isfinite(x); })) << d;
      EXPECT_EQ(got, attend(ends)) << d;
    }
  }
}

TEST_F(HalfLayer, Columns) {
  for (const int32_t d : {6, 64, 128, 256}) {
    const HostLayer layer = Draw(kHeads, d, 90);
    const int32_t base = 20, rows = layer.len[1] - base;
    const std::vector<int32_t> bases(kHeads, base);
    const std::vector<float> q = Random(static_cast<size_t>(rows * kHeads * kGroup * d)),
                             lse = Random(static_cast<size_t>(rows * kHeads * kGroup));
    for (const ColumnFold fold : {ColumnFold::kSums, ColumnFold::kMaxima}) {
      const auto columns = [&](test::TestDevice& on, const LayerBuffers& kv) {
        const DeviceBuffer<float> queries = on.Upload(q), sums = on.Upload(lse),
                                  into = on.Upload(
                                      std::vector<float>(static_cast<size_t>(kHeads * layer.capacity)));
        EXPECT_TRUE(on.device()
                        ->FoldColumns(on.stream(), {kv.view(),
                                                    {bases.data(), 0, rows},
                                                    kHeads * kGroup,
                                                    rows,
                                                    0.3f,
                                                    queries.at(),
                                                    sums.at(),
                                                    rows,
                                                    into.at(),
                                                    fold})
                        .ok());
        return on.Read(into.at(), into.size());
      };
      ExpectSame(layer, columns, "columns, " + std::to_string(d));
    }
  }
}

TEST_F(HalfLayer, Scores) {
  constexpr int32_t kRows = 9, kStride = 112;
  for (const int32_t d : {16, 64, 128, 256}) {
    const HostLayer layer = Draw(kHeads, d, 100);
    const std::vector<float> q = Random(static_cast<size_t>(kRows * kHeads * kGroup * d));
    const Rope rope({}, d);
    for (const ScoreOp op : {ScoreOp::kRows, ScoreOp::kKeyNorms, ScoreOp::kValueNorms, ScoreOp::kKeyCosine,
                             ScoreOp::kLag, ScoreOp::kExpected}) {
      for (const bool pooled : {false, true}) {
        if (pooled && op != ScoreOp::kRows) continue;
        ScoreProgram program;
        program.rows.n_rows = kRows;
        if (pooled) program.rows.pool.kind = PoolKind::kMax, program.rows.pool.kernel = 5;
        ScoreInstr& instr = program.Add(op, op == ScoreOp::kLag ? 2 : 0);
        instr.head = 3, instr.size = 16;
        if (op == ScoreOp::kLag) program.Add(ScoreOp::kCopy, 0, 2);
        if (op == ScoreOp::kRows || op == ScoreOp::kExpected) program.Add(ScoreOp::kGroup);
        const auto score = [&](test::TestDevice& on, const LayerBuffers& kv) {
          const DeviceBuffer<float> queries = on.Upload(q),
                                    scores = on.Upload(std::vector<float>(kHeads * kStride)),
                                    per_head = on.Upload(std::vector<float>(kHeads * kGroup * kStride));
          DeviceBuffer<uint8_t> scratch;
          EXPECT_TRUE(scratch
                          .Allocate(on.own(),
                                    on.device()->ScoreScratchBytes(
                                        {&program, kHeads * kGroup, kHeads, d, kRows, kStride}),
                                    "test")
                          .ok());
          ScoreArgs a{};
          a.program = &program, a.layer = kv.view(), a.n_heads = kHeads * kGroup, a.scale = 0.25f;
          a.stride = kStride, a.observed.n_rows = a.observed.n_new = kRows, a.observed.queries = queries.at();
          a.scores = scores.at(), a.per_head = per_head.at(), a.scratch = scratch.raw();
          a.turning = {&rope, RopePairing::kHalf, false};
          EXPECT_TRUE(on.device()->Score(on.stream(), a).ok());
          return on.Read(scores.at(), scores.size());
        };
        ExpectSame(layer, score, "score " + std::to_string(static_cast<int>(op)) + ", " + std::to_string(d));
      }
    }
  }
}

// Values of what is dropped, given to what stays: added in f32, rounded once (methods.md 1.10). Of a longer
// run that goes from one into the next also those are rounded that wait for entries behind them, so often
// that all of a run is hardly further off than the last of them.
TEST_F(HalfLayer, MergesRoundOnce) {
  constexpr int32_t kD = 24, kEntries = 60;
  const struct {
    MergeKind kind;
    size_t one_of;  // entries stays
  } cases[] = {{MergeKind::kSpread, 3},   {MergeKind::kSpread, 9},   {MergeKind::kIntoNext, 3},
               {MergeKind::kIntoNext, 9}, {MergeKind::kIntoRest, 3}, {MergeKind::kIntoRest, 9}};
  for (const auto& [kind, one_of] : cases) {
    const bool exact = kind != MergeKind::kIntoNext || one_of == 3;
    const HostLayer layer = Draw(kHeads, kD, kEntries, 2);
    std::vector<uint8_t> marks(static_cast<size_t>(kHeads * layer.capacity), 1);
    for (size_t i = 4; i < marks.size(); ++i) marks[i] = i % one_of == 0 ? 1 : 0;
    MergeRule rule;
    rule.kind = kind, rule.sums = 0, rule.counts = 1, rule.n_targets = 3, rule.expected = true;
    HostLayer got[2];
    for (size_t i = 0; i < 2; ++i) {
      test::TestDevice& on = *devices_[i];
      LayerBuffers kv;
      on.Upload(layer, &kv);
      DeviceBuffer<uint8_t> mark = on.Upload(marks), scratch;
      const int64_t bytes = on.device()->SelectScratchBytes(kHeads, layer.capacity);
      ASSERT_TRUE(scratch.Allocate(on.own(), bytes, "test").ok());
      ASSERT_TRUE(on.device()
                      ->Merge(on.stream(), {rule, kv.view(), 0, mark.at(), layer.capacity, scratch.raw()})
                      .ok());
      got[i] = on.Download(kv);
    }
    float most = 0, apart = 0;
    int changed = 0;
    for (size_t i = 0; i < got[0].values.size(); ++i) {
      most = std::max(most, std::fabs(got[0].values[i]));
      apart = std::max(apart, std::fabs(got[0].values[i] - got[1].values[i]));
      changed += got[0].values[i] != layer.values[i] ? 1 : 0;
      if (kind == MergeKind::kIntoRest) {
        EXPECT_EQ(Rounded(got[0].values[i]), got[1].values[i]);
        EXPECT_EQ(Rounded(got[0].keys[i]), got[1].keys[i]);
      } else if (exact && marks[i / kD] != 0) {
        ASSERT_EQ(Rounded(got[0].values[i]), got[1].values[i]) << static_cast<int>(kind);
      }
    }
    EXPECT_GT(changed, 0);
    EXPECT_LE(apart, 3 * std::ldexp(most, -12)) << static_cast<int>(kind);
  }
}

// Into pages of every kind, at once and behind what is there, and out of them.
TEST_F(HalfLayer, Pages) {
  constexpr int32_t kD = 32, kEntries = 70;
  struct Form {
    KvType type;
    EntryCoding coding;
  };
  for (const Form& form :
       {Form{KvType::kF16, EntryCoding::kVectors}, Form{KvType::kBf16, EntryCoding::kVectors},
        Form{KvType::kInt8, EntryCoding::kVectors}, Form{KvType::kInt4, EntryCoding::kVectors},
        Form{KvType::kInt8, EntryCoding::kKeyChannels}, Form{KvType::kF16, EntryCoding::kCodebook}}) {
    test::UniformLayout layout;
    layout.n_kv_heads = kHeads, layout.group = kGroup, layout.head_dim = kD, layout.page_slots = 16;
    layout.coding = form.coding, layout.type = form.type, layout.quant_group = 32;
    if (form.coding == EntryCoding::kKeyChannels) layout.ring_slots = 48, layout.settle = 16;
    if (form.coding == EntryCoding::kCodebook)
      layout.ring_slots = 8, layout.settle = 4, layout.theta_key = layout.theta_value = 0.5f;
    const HostLayer layer = Draw(kHeads, kD, kEntries);
    HostLayer first = layer;
    first.len = {40, 33};
    const auto through = [&](test::TestDevice& on, const LayerBuffers&) {
      auto cache = std::move(KvCache::Create(layout.Make(), on.arenas()).value());
      const bool codes = form.coding == EntryCoding::kCodebook;
      EXPECT_TRUE(on.Store(cache.get(), 0, codes ? layer : first).ok());
      EXPECT_TRUE(codes || on.AppendFrom(cache.get(), 0, layer, first.len).ok());
      const HostLayer out = on.Load(*cache, 0);
      std::vector<float> all;
      for (int32_t g = 0; g < kHeads; ++g) {
        EXPECT_EQ(out.len[static_cast<size_t>(g)], layer.len[static_cast<size_t>(g)]);
        for (int32_t i = 0; i < out.len[static_cast<size_t>(g)]; ++i) {
          for (const float* x : {out.keys.data(), out.values.data()}) {
            x += out.Entry(g, i) * kD;
            // What a layer of f16 gives is rounded by it; f32 is not.
            for (int32_t j = 0; j < kD; ++j) all.push_back(Rounded(x[j]));
          }
        }
      }
      return all;
    };
    ExpectSame(layer, through, "pages " + std::to_string(static_cast<int>(form.type)));
  }
}

// Whoever writes them: a layer, what comes behind it, a ring.
TEST_F(HalfLayer, PagesEndWhereHalvesDo) {
  constexpr int32_t kD = 32, kEntries = 24;
  HostLayer layer = Draw(kHeads, kD, kEntries), first = layer;
  for (size_t i = 0; i < layer.keys.size(); i += 7) layer.keys[i] = 1e9f, layer.values[i] = -INFINITY;
  first = layer, first.len = {10, 10};
  for (const int32_t ring : {0, 6}) {
    test::UniformLayout layout;
    layout.n_kv_heads = kHeads, layout.group = kGroup, layout.head_dim = kD, layout.page_slots = 16;
    layout.type = ring > 0 ? KvType::kInt8 : KvType::kF16, layout.quant_group = 32, layout.ring_slots = ring;
    for (const auto& on : devices_) {
      auto cache = std::move(KvCache::Create(layout.Make(), on->arenas()).value());
      ASSERT_TRUE(on->Store(cache.get(), 0, first).ok());
      ASSERT_TRUE(on->AppendFrom(cache.get(), 0, layer, first.len).ok());
      const HostLayer out = on->Load(*cache, 0);
      for (int32_t g = 0; g < kHeads; ++g) {
        const int32_t len = out.len[static_cast<size_t>(g)];
        ASSERT_EQ(len, layer.len[static_cast<size_t>(g)]);
        for (int32_t i = ring > 0 ? len - ring + 1 : 0; i < len; ++i) {
          for (int32_t j = 0; j < kD; ++j) {
            const size_t at = layer.Entry(g, i) * kD + static_cast<size_t>(j),
                         stored = out.Entry(g, i) * kD + static_cast<size_t>(j);
            ASSERT_EQ(out.keys[stored], std::min(layer.keys[at], 65504.0f));
            ASSERT_EQ(out.values[stored], std::max(layer.values[at], -65504.0f));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvc
