// Every method on small random tensors against reference values (tests/data/goldens/micro): scores, kept
// sets, attention of 12 decode steps, and the state afterwards. Tolerances are those the reference states for
// f32: scores 1e-5 relative, attention 1e-5 (int8 and int4 5e-3: a code may round the other way), sets exact.
#include <gtest/gtest.h>

#include "lib/cache/attend.h"
#include "lib/compress/compressor.h"
#include "lib/compress/scorers.h"
#include "tests/golden/golden_files.h"

namespace kvc {
namespace {

struct Inputs {
  Json json = ReadGolden("micro/inputs.json");
  int layers = json["shape"]["layers"], n_q = json["shape"]["n_q"], n_kv = json["shape"]["n_kv"],
      d = json["shape"]["d"], n = json["shape"]["n"], steps = json["shape"]["steps"];
  double theta = std::stod(GoldenNumber(json["shape"]["rope_theta"]));
  float At(const char* what, int layer, int head, int t, int x) const {
    return json[what][layer][head][t][x].get<float>();
  }
};

class Micro {
 public:
  Micro(const std::string& method, const Json& c)
      : case_(c), pool_(std::move(ThreadPool::Create(2).value())) {
    RopeConfig rope;
    rope.theta = in_.theta;
    rope_ = Rope(rope, in_.d);
    ops_ = {&BestKernels(), pool_.get()};
    Result<Policy> policy = ParsePolicy(GoldenSpec(method, c["C"], c["options"]).c_str());
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    CompressorShape shape;
    shape.n_layers = in_.layers, shape.n_heads = in_.n_q, shape.n_kv_heads = in_.n_kv, shape.head_dim = in_.d;
    shape.scale = static_cast<float>(1 / std::sqrt(static_cast<double>(in_.d)));
    shape.rope = &rope_;
    HeadScores scores;
    scores.values = GoldenScores(c["options"]);
    auto compressor = Compressor::Create(policy.value(), shape, scores, ops_, nullptr);
    EXPECT_TRUE(compressor.ok()) << compressor.status().message();
    compressor_ = std::move(compressor.value());
    CacheConfig config = compressor_->MakeCacheConfig(100);
    config.raw.type = KvType::kF32;  // the reference does not round entries that are not quantised yet
    cache_ = std::move(KvCache::Create(config, ops_.kernels, std::make_shared<MemoryMeter>(0)).value());
    scale_ = shape.scale;
  }

  void Prompt() {
    PromptNeeds needs;
    ASSERT_TRUE(compressor_->BeginPrompt(in_.n, &needs).ok());
    for (int layer = 0; layer < in_.layers; ++layer) {
      LayerKv kv;
      Observation observed;
      FillLayer(layer, needs, &kv, &observed);
      const Status status = compressor_->CompressLayer(layer, &kv, &observed, true, cache_.get());
      ASSERT_TRUE(status.ok()) << status.message();
      CheckScores(layer);
      CheckKept(layer, case_["kept"]);
    }
  }

  void Decode() {
    for (int s = 0; s < in_.steps; ++s) {
      for (int layer = 0; layer < in_.layers; ++layer) Step(s, layer);
    }
    for (int layer = 0; layer < in_.layers; ++layer) {
      CheckKept(layer, case_["final"]["kept"]);
      CheckState(layer);
    }
  }

 private:
  void FillLayer(int layer, const PromptNeeds& needs, LayerKv* kv, Observation* observed) {
    kv->n_kv_heads = in_.n_kv, kv->head_dim = in_.d, kv->capacity = in_.n, kv->n_aux = compressor_->n_aux();
    kv->len.assign(static_cast<size_t>(in_.n_kv), in_.n);
    ASSERT_TRUE(kv->keys.Allocate(nullptr, in_.n_kv * in_.n * in_.d, "keys").ok());
    ASSERT_TRUE(kv->values.Allocate(nullptr, in_.n_kv * in_.n * in_.d, "values").ok());
    ASSERT_TRUE(kv->positions.Allocate(nullptr, in_.n_kv * in_.n, "positions").ok());
    ASSERT_TRUE(kv->aux.Allocate(nullptr, kv->n_aux * in_.n_kv * in_.n + 1, "aux").ok());
    std::fill(kv->aux.data(), kv->aux.data() + kv->aux.size(), 0.0f);
    for (int g = 0; g < in_.n_kv; ++g) {
      for (int t = 0; t < in_.n; ++t) {
        for (int x = 0; x < in_.d; ++x) {
          kv->Keys(g)[t * in_.d + x] = in_.At("K", layer, g, t, x);
          kv->Values(g)[t * in_.d + x] = in_.At("V", layer, g, t, x);
        }
        kv->Positions(g)[t] = t;
      }
    }
    observed->n_new = in_.n;
    observed->n_rows = std::min(needs.window_rows, in_.n);
    ASSERT_TRUE(observed->queries.Allocate(nullptr, in_.n * in_.n_q * in_.d, "queries").ok());
    for (int i = 0; i < observed->n_rows; ++i)
      CopyQueries(layer, in_.n - observed->n_rows + i, observed->queries.data() + i * in_.n_q * in_.d);
    if (!needs.column_sums) return;
    std::vector<float> q(static_cast<size_t>(in_.n * in_.n_q * in_.d)), out(q.size()),
        lse(static_cast<size_t>(in_.n));
    for (int i = 0; i < in_.n; ++i) CopyQueries(layer, i, q.data() + i * in_.n_q * in_.d);
    ASSERT_TRUE(observed->sums.Allocate(nullptr, in_.n_kv * in_.n, "sums").ok());
    std::fill(observed->sums.data(), observed->sums.data() + in_.n_kv * in_.n, 0.0f);
    for (int h = 0; h < in_.n_q; ++h) {
      const int g = h / (in_.n_q / in_.n_kv);
      PrefillAttentionArgs a{q.data() + h * in_.d,
                             kv->Keys(g),
                             kv->Values(g),
                             out.data(),
                             lse.data(),
                             in_.n_q * in_.d,
                             in_.d,
                             in_.n,
                             0,
                             in_.d,
                             0,
                             scale_};
      ops_.kernels->prefill_attention(a);
      ColumnSumsArgs c{};
      c.q = a.q, c.k = a.k, c.lse = lse.data(), c.sums = observed->sums.data() + g * in_.n,
      c.q_stride = a.q_stride, c.n_q = in_.n, c.key_end = in_.n;
      c.d = in_.d, c.scale = scale_, c.weight = static_cast<float>(in_.n_kv) / static_cast<float>(in_.n_q);
      ops_.kernels->column_sums(c);
    }
  }

  void CopyQueries(int layer, int t, float* out) {
    for (int h = 0; h < in_.n_q; ++h) {
      for (int x = 0; x < in_.d; ++x) out[h * in_.d + x] = in_.At("Q", layer, h, t, x);
    }
  }

  void CheckScores(int layer) {
    if (!case_.contains("score") || compressor_->last_scores(0) == nullptr) return;
    const std::string scorer = compressor_->policy().scorer->name;
    if (scorer == "position" || scorer == "window_qhead") return;
    const double sign = scorer == "persistence" ? -1 : 1;
    for (int g = 0; g < in_.n_kv; ++g) {
      const Json& expected = case_["score"][layer][g];
      for (size_t t = 0; t < expected.size(); ++t) {
        const float got = compressor_->last_scores(g)[t];
        if (!expected[t].is_number() || std::isinf(got)) continue;  // protected columns
        EXPECT_NEAR(sign * got, expected[t].get<double>(), 1e-5 * std::abs(expected[t].get<double>()) + 1e-9)
            << "score " << layer << " " << g << " " << t;
      }
    }
  }

  void CheckKept(int layer, const Json& expected) {
    for (int g = 0; g < in_.n_kv; ++g) {
      std::vector<int> kept;
      for (int r = 0; r < cache_->Len(layer, g); ++r) kept.push_back(cache_->PositionAt(layer, g, r));
      EXPECT_EQ(kept, expected[layer][g].get<std::vector<int>>()) << "layer " << layer << " head " << g;
    }
  }

  void Step(int s, int layer) {
    const int t = in_.n + s, d = in_.d;
    std::vector<float> q(static_cast<size_t>(in_.n_q * d)), k(static_cast<size_t>(in_.n_kv * d)), v(k.size()),
        out(q.size()), rotated(q.size());
    CopyQueries(layer, t, q.data());
    for (int g = 0; g < in_.n_kv; ++g) {
      for (int x = 0; x < d; ++x)
        k[static_cast<size_t>(g * d + x)] = in_.At("K", layer, g, t, x),
                                      v[static_cast<size_t>(g * d + x)] = in_.At("V", layer, g, t, x);
    }
    const bool stored = compressor_->KeysRotated(layer);
    if (!stored) Unrotate(t, &q), Unrotate(t, &k);
    ASSERT_TRUE(cache_->ReserveStep().ok());
    ASSERT_TRUE(ws_.Reserve(cache_->config(), in_.n + in_.steps, 0, 2, nullptr).ok());
    ASSERT_TRUE(angles_.Grow(rope_, in_.n + in_.steps, nullptr).ok());
    ASSERT_TRUE(compressor_->ReserveStep(in_.n + in_.steps).ok());
    for (int g = 0; g < in_.n_kv; ++g) cache_->Append(layer, g, k.data() + g * d, v.data() + g * d, t);
    const AttendArgs args{ops_,
                          *cache_,
                          layer,
                          q.data(),
                          out.data(),
                          scale_,
                          0,
                          compressor_->wants_probabilities(),
                          compressor_->RotationOf(layer),
                          &angles_,
                          RopePairing::kHalf,
                          rotated.data()};
    Attend(args, &ws_);
    compressor_->AfterAttend(layer, q.data(), v.data(), &ws_, cache_.get());
    const bool quantised = case_["options"].contains("bits");
    for (int h = 0; h < in_.n_q; ++h) {
      for (int x = 0; x < d; ++x) {
        EXPECT_NEAR(out[static_cast<size_t>(h * d + x)], case_["attention"][s][layer][h][x].get<double>(),
                    quantised ? 5e-3 : 1e-5)
            << "step " << s << " layer " << layer << " head " << h << " dim " << x;
      }
    }
  }

  void Unrotate(int position, std::vector<float>* x) {
    std::vector<float> cos(static_cast<size_t>(in_.d / 2)), sin(cos.size());
    rope_.Angles(-position, cos.data(), sin.data());
    for (size_t i = 0; i < x->size(); i += static_cast<size_t>(in_.d))
      ops_.kernels->rope(x->data() + i, cos.data(), sin.data(), in_.d, RopePairing::kHalf);
  }

  void CheckState(int layer) {
    const Json& final = case_["final"];
    for (int g = 0; g < in_.n_kv; ++g) {
      const int n = cache_->Len(layer, g);
      std::vector<float> values(static_cast<size_t>(n)), v(static_cast<size_t>(in_.d));
      const auto check = [&](const char* name, int aux) {
        if (!final.contains(name)) return;
        cache_->GetAux(layer, g, aux, values.data());
        for (int r = 0; r < n; ++r) {
          const double expected = final[name][layer][g][r].get<double>();
          EXPECT_NEAR(values[static_cast<size_t>(r)], expected, 1e-5 * std::abs(expected) + 1e-6)
              << name << " " << layer << " " << g << " " << r;
        }
      };
      check("A", 0), check("F", 0), check("a", 0), check("cnt", 1), check("I", 0);
      if (!final.contains("V")) continue;
      for (int r = 0; r < n; ++r) {
        cache_->ReadValue(layer, g, r, v.data());
        for (int x = 0; x < in_.d; ++x)
          EXPECT_NEAR(v[static_cast<size_t>(x)], final["V"][layer][g][r][x].get<double>(), 1e-5) << "V " << r;
      }
    }
  }

  Inputs in_;
  Json case_;
  std::unique_ptr<ThreadPool> pool_;
  Rope rope_;
  OpContext ops_;
  std::unique_ptr<Compressor> compressor_;
  std::unique_ptr<KvCache> cache_;
  AttendWorkspace ws_;
  AngleTable angles_;
  float scale_ = 1;
};

class GoldenMicro : public testing::TestWithParam<const char*> {};

TEST_P(GoldenMicro, PromptAndDecode) {
  const Json golden = ReadGolden(std::string("micro/") + GetParam() + ".json");
  for (size_t i = 0; i < golden["cases"].size(); ++i) {
    const Json& c = golden["cases"][i];
    SCOPED_TRACE("case " + std::to_string(i) + " " + GoldenSpec(GetParam(), c["C"], c["options"]));
    Micro micro(GetParam(), c);
    if (HasFatalFailure()) return;
    micro.Prompt();
    micro.Decode();
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenMicro,
                         testing::Values("full", "streaming", "streaming-baseline", "h2o", "tova",
                                         "scissorhands", "snapkv", "snapkv-int8", "snapkv-int4", "pyramidkv",
                                         "pyramidinfer", "cam", "headkv-r2", "ada-snapkv", "ada-pyramid",
                                         "cokv", "ahakv", "weightedkv", "spindlekv", "nacl"),
                         [](const auto& name) {
                           std::string s = name.param;
                           for (char& ch : s) ch = ch == '-' ? '_' : ch;
                           return s;
                         });

}  // namespace
}  // namespace kvc
