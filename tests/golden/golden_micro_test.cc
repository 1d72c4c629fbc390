// Every method on small random tensors against reference values (tests/data/goldens/micro): scores, kept
// sets, attention of 12 decode steps, and the state afterwards. Tolerances are those the reference states for
// f32: scores 1e-5 relative, attention 1e-5 (int8 and int4 5e-3: a code may round the other way), sets exact.
#include <gtest/gtest.h>

#include <cmath>

#include "lib/compress/compressor.h"
#include "tests/golden/golden_files.h"
#include "tests/parity/cases.h"
#include "tests/support/test_device.h"

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
  Micro(const std::string& method, const Json& c) : case_(c) {
    RopeConfig rope;
    rope.theta = in_.theta;
    rope_ = Rope(rope, in_.d);
    ropes_.assign(static_cast<size_t>(in_.layers), &rope_);
    Result<Policy> policy = ParsePolicy(GoldenSpec(method, c["C"], c["options"]).c_str());
    EXPECT_TRUE(policy.ok()) << policy.status().message();
    HeadScores scores;
    scores.values = GoldenScores(c["options"]);
    scale_ = static_cast<float>(1 / std::sqrt(static_cast<double>(in_.d)));
    auto compressor =
        Compressor::Create(policy.value(), {in_.layers, in_.n_q, in_.n_kv, in_.d, {}, 0}, scores, false,
                           {ropes_.data(), RopePairing::kHalf, scale_}, memory_.own());
    EXPECT_TRUE(compressor.ok()) << compressor.status().message();
    compressor_ = std::move(compressor.value());
    const StoragePlan& plan = compressor_->plan();
    CacheLayout layout = plan.LayoutFor(plan.PageSlots(100));
    for (const HeadFormat& head :
         layout.heads) {  // the reference does not round entries that are not quantised yet
      if (head.ring < 0) continue;
      PageFormat& ring = layout.formats[static_cast<size_t>(head.ring)];
      ring.type = KvType::kF32;
      ring.Lay();
    }
    cache_ = std::move(
        KvCache::Create(std::make_shared<const CacheLayout>(std::move(layout)), memory_.arenas()).value());
  }

  void Prompt() {
    PromptNeeds needs;
    ASSERT_TRUE(compressor_->BeginPrompt(in_.n, &needs).ok());
    for (int layer = 0; layer < in_.layers; ++layer) {
      LayerBuffers kv;
      ObservedBuffers observed;
      const LayerWork work = Work();
      FillLayer(layer, needs, &kv, &observed);
      const std::vector<int32_t> n_before(static_cast<size_t>(in_.n_kv), 0);
      const Status status = compressor_->StoreLayer(work, layer, kv, observed, true, n_before, cache_.get());
      ASSERT_TRUE(status.ok()) << status.message();
      CheckScores(layer);
      CheckKept(layer, case_["kept"]);
      if (!case_.contains("prompt_codebook")) continue;
      CheckVisible(layer, case_["query_lists"]);
      for (int g = 0; g < in_.n_kv; ++g) {
        const Json& books = case_["prompt_codebook"][layer][g];
        CheckBooks(layer, g, books, books["refK"], books["refV"]);
      }
    }
    if (case_.contains("codebook")) CheckRatios();
  }

  void Decode() {
    for (int s = 0; s < in_.steps; ++s) {
      ASSERT_TRUE(step_.Ensure(cache_.get(), compressor_->writes_all()).ok());
      for (int layer = 0; layer < in_.layers; ++layer) Step(s, layer);
      step_.Done(cache_.get());
    }
    for (int layer = 0; layer < in_.layers; ++layer) {
      const Json& final = case_["final"];
      CheckKept(layer, final["kept"]);
      CheckState(layer);
      if (!final.contains("codebook")) continue;
      CheckVisible(layer, final["visible"]);
      for (int g = 0; g < in_.n_kv; ++g)
        CheckBooks(layer, g, final["codebook"][layer][g], final["refK"][layer][g], final["refV"][layer][g]);
    }
  }

 private:
  LayerWork Work() { return {memory_.device(), memory_.stream(), nullptr, &choice_}; }

  void FillLayer(int layer, const PromptNeeds& needs, LayerBuffers* kv, ObservedBuffers* observed) {
    ASSERT_TRUE(
        kv->Reserve(memory_.own(), in_.n_kv, in_.d, in_.n, 0, compressor_->plan().n_aux(), false).ok());
    ASSERT_TRUE(compressor_->LoadLayer(Work(), layer, in_.n, *cache_, kv).ok());
    test::HostLayer entries(in_.n_kv, in_.d, in_.n, compressor_->plan().n_aux());
    for (int g = 0; g < in_.n_kv; ++g) {
      for (int t = 0; t < in_.n; ++t) {
        for (int x = 0; x < in_.d; ++x)
          entries.Key(g, t)[x] = in_.At("K", layer, g, t, x),
                         entries.Value(g, t)[x] = in_.At("V", layer, g, t, x);
        entries.Position(g, t) = t;
      }
      kv->view().len[g] = in_.n;
    }
    const LayerView& view = kv->view();
    memory_.Write(view.keys.As<float>(), entries.keys),
        memory_.Write(view.values.As<float>(), entries.values);
    memory_.Write(view.positions, entries.positions), memory_.Write(view.aux, entries.aux);
    ASSERT_TRUE(observed
                    ->Reserve(memory_.own(), in_.n_q, in_.n_kv, in_.d, in_.n,
                              std::min(needs.window_rows, in_.n), needs.column_sums, false)
                    .ok());
    ASSERT_TRUE(observed->Clear(memory_.stream(), memory_.device()).ok());
    observed->n_new = in_.n;
    memory_.Write(observed->queries(), Queries(layer, in_.n - observed->n_rows, observed->n_rows));
    if (needs.column_sums) SumColumns(layer, view, observed);
  }

  void SumColumns(int layer, const LayerView& view, ObservedBuffers* observed) {
    const std::vector<int32_t> base(static_cast<size_t>(in_.n_kv), 0);
    const PromptRows rows{base.data(), 0, in_.n};
    DeviceBuffer<float> q = memory_.Upload(Queries(layer, 0, in_.n)), out, lse;
    ASSERT_TRUE(out.Allocate(memory_.own(), q.size(), "test").ok());
    ASSERT_TRUE(lse.Allocate(memory_.own(), in_.n_q * in_.n, "test").ok());
    Device* device = memory_.device();
    ASSERT_TRUE(device
                    ->AttendPrompt(memory_.stream(),
                                   {view, rows, in_.n_q, 0, scale_, q.at(), out.at(), lse.at(), in_.n})
                    .ok());
    ASSERT_TRUE(device
                    ->FoldColumns(memory_.stream(), {view, rows, in_.n_q, in_.n, scale_, q.at(), lse.at(),
                                                     in_.n, observed->sums(), ColumnFold::kSums})
                    .ok());
  }

  // Rows [n, H, D] from token t on.
  std::vector<float> Queries(int layer, int t, int n) {
    std::vector<float> q;
    for (int i = t; i < t + n; ++i) {
      for (int h = 0; h < in_.n_q; ++h) {
        for (int x = 0; x < in_.d; ++x) q.push_back(in_.At("Q", layer, h, i, x));
      }
    }
    return q;
  }

  void CheckScores(int layer) {
    if (!case_.contains("score") || !compressor_->scored()) return;
    const std::string scorer = compressor_->policy().scorer->name;
    if (scorer == "position") return;
    const double sign = scorer == "persistence" ? -1 : 1;
    const bool per_query_head = scorer == "window_qhead" && !case_["options"].contains("spindle_gqa");
    const DevicePtr<float> lines = per_query_head ? choice_.per_head.at() : choice_.scores.at();
    const int n_lines = per_query_head ? in_.n_q : in_.n_kv;
    ASSERT_EQ(case_["score"][layer].size(), static_cast<size_t>(n_lines));
    for (int g = 0; g < n_lines; ++g) {
      const Json& expected = case_["score"][layer][g];
      const std::vector<float> scores = memory_.Read(lines + g * choice_.stride, choice_.stride);
      for (size_t t = 0; t < expected.size(); ++t) {
        const float got = scores[t];
        if (!expected[t].is_number() || std::isinf(got)) continue;  // protected columns
        EXPECT_NEAR(sign * got, expected[t].get<double>(), 1e-5 * std::abs(expected[t].get<double>()) + 1e-9)
            << "score " << layer << " " << g << " " << t;
      }
    }
  }

  void CheckKept(int layer, const Json& expected) {
    for (int g = 0; g < in_.n_kv; ++g) {
      std::vector<int32_t> kept;
      ASSERT_TRUE(cache_->Positions(memory_.stream(), layer * in_.n_kv + g, &kept).ok());
      EXPECT_EQ(kept, expected[layer][g].get<std::vector<int32_t>>()) << "layer " << layer << " head " << g;
    }
  }

  // methods.md 2.16 (g), from the sizes of the reference's books.
  void CheckRatios() {
    double paper = 0, exact = 0;
    for (int layer = 0; layer < in_.layers; ++layer) {
      double book = 0, kept = 0;
      for (int g = 0; g < in_.n_kv; ++g) {
        book +=
            case_["codebook"][layer][g]["K"].get<double>() + case_["codebook"][layer][g]["V"].get<double>();
        kept += 2.0 * case_["cap"][layer][g].get<double>();
      }
      const double r1 = kept / (2.0 * in_.n_kv * in_.n), r2 = book / kept, extra = 2.0 / in_.d;
      paper += r1 * r2 * (1 + extra) / in_.layers, exact += r1 * (r2 + extra) / in_.layers;
    }
    EXPECT_NEAR(cache_->Ratios(in_.n).paper, paper, 1e-12);
    EXPECT_NEAR(cache_->Ratios(in_.n).exact, exact, 1e-12);
  }

  // SpindleKV: the positions that each query head sees of what its KV head holds.
  void CheckVisible(int layer, const Json& expected) {
    test::HostLayer got = memory_.Load(*cache_, layer);
    const int group = in_.n_q / in_.n_kv;
    ASSERT_EQ(expected[layer].size(), static_cast<size_t>(in_.n_q));
    for (int h = 0; h < in_.n_q; ++h) {
      const int g = h / group;
      std::vector<int32_t> visible;
      for (int r = 0; r < got.len[static_cast<size_t>(g)]; ++r) {
        if ((got.seen[got.Entry(g, r)] >> (h % group) & 1) != 0) visible.push_back(got.Position(g, r));
      }
      EXPECT_EQ(visible, expected[layer][h].get<std::vector<int32_t>>()) << layer << " query head " << h;
    }
  }

  // The codebooks of a head as they lie in its pages: directions, what every coded entry refers to, and its
  // magnitude, which is the length of the vector that was coded. refs: one for every entry; those of the raw
  // tail say nothing.
  void CheckBooks(int layer, int g, const Json& books, const Json& ref_k, const Json& ref_v) {
    const CacheView& view = cache_->view();
    const CacheLayout& layout = cache_->layout();
    const int head = layer * in_.n_kv + g;
    const PageFormat &main = layout.main(head),
                     &directions = layout.formats[static_cast<size_t>(layout.directions)];
    const auto page = [&](int32_t format, const PageFormat& f, int32_t id) {
      return memory_.Read(view.bases[format] + int64_t{id} * f.bytes, f.bytes);
    };
    for (int which = 0; which < 2; ++which) {
      const Json& expected = books[which == 0 ? "K" : "V"];
      ASSERT_EQ(view.book_len[2 * head + which], static_cast<int32_t>(expected.size())) << head;
      for (int e = 0; e < view.book_len[2 * head + which]; ++e) {
        const std::vector<uint8_t> bytes =
            page(layout.directions, directions,
                 view.books[(2 * head + which) * view.book_stride + e / directions.slots]);
        const float* direction =
            reinterpret_cast<const float*>(bytes.data() + directions.keys) + e % directions.slots * in_.d;
        for (int x = 0; x < in_.d; ++x)
          EXPECT_NEAR(direction[x], expected[e][x].get<double>(), 1e-5) << "direction " << e;
      }
    }
    std::vector<int32_t> kept;
    ASSERT_TRUE(cache_->Positions(memory_.stream(), head, &kept).ok());
    ASSERT_EQ(kept.size(), ref_k.size());
    const Json& raw = case_["final"]["raw"][layer][g];
    for (int r = 0; r < view.len[head]; ++r) {
      const std::vector<uint8_t> bytes = page(layout.heads[static_cast<size_t>(head)].main, main,
                                              view.pages[head * view.page_stride + r / main.slots]);
      EXPECT_EQ(reinterpret_cast<const int32_t*>(bytes.data() + main.positions)[r % main.slots],
                kept[static_cast<size_t>(r)]);
      EXPECT_EQ(raw[r], 0) << "entry " << r << " is in the tail";
      for (int which = 0; which < 2; ++which) {
        const int64_t part = which == 0 ? main.keys : main.values;
        const CodedVector coded = reinterpret_cast<const CodedVector*>(bytes.data() + part)[r % main.slots];
        double norm = 0;
        for (int x = 0; x < in_.d; ++x) {
          const double v = in_.At(which == 0 ? "K" : "V", layer, g, kept[static_cast<size_t>(r)], x);
          norm += v * v;
        }
        EXPECT_EQ(coded.ref, (which == 0 ? ref_k : ref_v)[r].get<uint32_t>()) << "entry " << r;
        EXPECT_NEAR(coded.magnitude, std::sqrt(norm), 1e-5 * std::sqrt(norm)) << "entry " << r;
      }
    }
    // What is not coded yet are the entries that the reference has in its tail too.
    for (size_t r = static_cast<size_t>(view.len[head]); r < kept.size(); ++r) EXPECT_EQ(raw[r], 1) << r;
  }

  void Step(int s, int layer) {
    const int t = in_.n + s, d = in_.d;
    test::TokenInput in{layer, t, Queries(layer, t, 1), {}, {}, &rope_, RopePairing::kHalf, scale_};
    for (int g = 0; g < in_.n_kv; ++g) {
      for (int x = 0; x < d; ++x)
        in.k.push_back(in_.At("K", layer, g, t, x)), in.v.push_back(in_.At("V", layer, g, t, x));
    }
    Unrotate(t, &in.q), Unrotate(t, &in.k);
    const std::vector<float> out =
        step_.Run(*cache_, compressor_->step_plan(), in, [&] { Reobserve(layer); });
    const bool quantised = case_["options"].contains("bits");
    for (int h = 0; h < in_.n_q; ++h) {
      for (int x = 0; x < d; ++x) {
        EXPECT_NEAR(out[static_cast<size_t>(h * d + x)], case_["attention"][s][layer][h][x].get<double>(),
                    quantised ? 5e-3 : 1e-5)
            << "step " << s << " layer " << layer << " head " << h << " dim " << x;
      }
    }
  }

  void Reobserve(int layer) {
    if (!compressor_->ends_later()) return;
    const int32_t entries = compressor_->LongestHead(*cache_),
                  rows = compressor_->policy().Int(OptionId::kWindow);
    LayerBuffers kv;
    ObservedBuffers observed;
    ASSERT_TRUE(compressor_->ReserveChoice(memory_.own(), cache_->MaxSlots(), rows, &choice_).ok());
    ASSERT_TRUE(
        kv.Reserve(memory_.own(), in_.n_kv, in_.d, entries, entries, compressor_->plan().n_aux(), false)
            .ok());
    ASSERT_TRUE(observed.Reserve(memory_.own(), in_.n_q, in_.n_kv, in_.d, entries, rows, false, false).ok());
    ASSERT_TRUE(compressor_->Reobserve(Work(), layer, &kv, &observed, cache_.get()).ok());
  }

  // The inputs carry the rotation of their positions; steps turn them themselves.
  void Unrotate(int position, std::vector<float>* x) {
    const int half = in_.d / 2;
    std::vector<float> cos(static_cast<size_t>(half)), sin(cos.size());
    rope_.Angles(-position, cos.data(), sin.data());
    for (float* v = x->data(); v < x->data() + x->size(); v += in_.d)
      BestKernels().rope(v, cos.data(), sin.data(), in_.d, RopePairing::kHalf);
  }

  void CheckState(int layer) {
    const Json& final = case_["final"];
    test::HostLayer got = memory_.Load(*cache_, layer);
    for (int g = 0; g < in_.n_kv; ++g) {
      const int n = got.len[static_cast<size_t>(g)];
      const auto check = [&](const char* name, int aux) {
        if (!final.contains(name)) return;
        for (int r = 0; r < n; ++r) {
          const double expected = final[name][layer][g][r].get<double>();
          EXPECT_NEAR(got.Aux(aux, g, r), expected, 1e-5 * std::abs(expected) + 1e-6)
              << name << " " << layer << " " << g << " " << r;
        }
      };
      check("A", 0), check("F", 0), check("a", 0), check("cnt", 1), check("I", 0);
      if (!final.contains("V")) continue;
      for (int r = 0; r < n; ++r) {
        for (int x = 0; x < in_.d; ++x)
          EXPECT_NEAR(got.Value(g, r)[x], final["V"][layer][g][r][x].get<double>(), 1e-5) << "V " << r;
      }
    }
  }

  Inputs in_;
  Json case_;
  test::TestDevice memory_;
  Rope rope_;
  std::vector<const Rope*> ropes_;
  std::unique_ptr<Compressor> compressor_;
  std::unique_ptr<KvCache> cache_;
  ChoiceBuffers choice_;
  test::TokenStep step_{&memory_};
  float scale_ = 1;
};

class GoldenMicro : public testing::TestWithParam<const char*> {};

TEST_P(GoldenMicro, PromptAndDecode) {
  const Json golden = ReadGolden(std::string("micro/") + GetParam() + ".json");
  for (size_t i = 0; i < golden["cases"].size(); ++i) {
    const Json& c = golden["cases"][i];
    const std::string method = golden["method"];
    SCOPED_TRACE("case " + std::to_string(i) + " " + GoldenSpec(method, c["C"], c["options"]));
    Micro micro(method, c);
    if (HasFatalFailure()) return;
    micro.Prompt();
    micro.Decode();
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenMicro,
                         testing::Values("full", "streaming", "streaming-baseline", "h2o", "tova",
                                         "scissorhands", "snapkv", "snapkv-int8", "snapkv-int4", "pyramidkv",
                                         "pyramidinfer", "cam", "headkv-r2", "ada-snapkv", "ada-pyramid",
                                         "cokv", "ahakv", "weightedkv", "spindlekv", "nacl",
                                         "ada-snapkv-ablations", "ahakv-ablations", "scissorhands-ablations",
                                         "snapkv-ablations", "spindlekv-ablations", "tova-ablations"),
                         [](const auto& name) {
                           std::string s = name.param;
                           for (char& ch : s) ch = ch == '-' ? '_' : ch;
                           return s;
                         });

// Stored vectors of symmetric codes (methods.md 4.3), to the bit: scale, codes, and two codes of 4 bits a
// byte, the low nibble first.
TEST(GoldenQuant, CodesAndScalesAreThoseOfTheGoldenFile) {
  const Json golden = ReadGolden("micro/quant.json");
  int n_symmetric = 0;
  for (const Json& c : golden["quant"]) {
    if (c["symmetric"] == 0) continue;  // not offered
    ++n_symmetric;
    const bool four = c["bits"] == 4;
    const auto x = c["x"].get<std::vector<std::vector<float>>>();
    const VectorFormat f = {four ? KvType::kInt4 : KvType::kInt8, static_cast<int32_t>(x[0].size()),
                            c["group"]};
    for (const KernelTable* table : parity::Tables()) {
      for (size_t v = 0; v < x.size(); ++v) {
        SCOPED_TRACE(std::string(table->name) + ", " + c["bits"].dump() + " bits, group " +
                     c["group"].dump());
        std::vector<uint8_t> codes(static_cast<size_t>(CodeBytes(f.type, f.d))), expected;
        std::vector<uint16_t> scales(x[v].size() / static_cast<size_t>(f.group));
        table->encode_vectors(f, x[v].data(), 1, codes.data(), scales.data());
        for (const Json& code : c[four ? "packed" : "codes"][v])
          expected.push_back(static_cast<uint8_t>(code.get<int>()));
        EXPECT_EQ(codes, expected);
        for (size_t g = 0; g < scales.size(); ++g)
          EXPECT_EQ(F16ToFloat(scales[g]), c["scale"][v][g].get<float>()) << g;
      }
    }
  }
  EXPECT_EQ(n_symmetric, 4);
}

}  // namespace
}  // namespace kvc
