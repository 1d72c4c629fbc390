// Head scores from JSON: every layout, and what must be refused.
#include "models/convert/head_scores_json.h"

#include <cmath>

#include "tests/unit/convert_fixture.h"

namespace kvc {
namespace {

using nlohmann::json;

ModelConfig Model(int32_t layers, int32_t heads, int32_t kv_heads) {
  ModelConfig c;
  c.n_layers = layers, c.n_heads = heads, c.n_kv_heads = kv_heads;
  return c;
}

Result<std::vector<HeadScoreTable>> Parse(const json& value, const ModelConfig& config) {
  const std::string text = value.dump();
  return ParseHeadScores({reinterpret_cast<const uint8_t*>(text.data()), text.size()}, "s.json", config);
}

TEST(ConvertHeadScores, OurLayoutNestedAndFlat) {
  json own = {{"name", "mine"},         {"estimator", "ssv"},
              {"shape", {2, 2}},        {"scores", {{1.5, -2.0}, {0.0, 4.0}}},
              {"data", "tasks"},        {"sizes", {1, 2}},
              {"samples_per_size", 10}, {"runs", 3},
              {"variant", "both"},      {"seed", 7},
              {"budget", 64},           {"alpha", 1}};
  for (const json& scores : {own["scores"], json{1.5, -2.0, 0.0, 4.0}}) {
    own["scores"] = scores;
    const auto tables = Parse(own, Model(2, 4, 2));
    ASSERT_TRUE(tables.ok()) << tables.status().message();
    ASSERT_EQ(tables.value().size(), 1u);
    const HeadScoreTable& t = tables.value()[0];
    EXPECT_EQ(t.scores, std::vector<float>({1.5f, -2.0f, 0.0f, 4.0f}));
    EXPECT_EQ(t.name, "mine");
    EXPECT_EQ(t.dataset, "tasks");
    EXPECT_EQ(t.n_samples, 60);
    EXPECT_EQ(t.seed, 7);
    EXPECT_EQ(t.budget, 64);
    EXPECT_EQ(t.alpha, 1);
    EXPECT_NE(t.note.find("variant: both"), std::string::npos);
  }
}

TEST(ConvertHeadScores, BareNumbers) {
  auto tables = Parse({{1, 2}, {3, 4}}, Model(2, 4, 2));
  ASSERT_TRUE(tables.ok());
  EXPECT_EQ(tables.value()[0].estimator, "ssv");
  tables = Parse(json(std::vector<double>(8, 0.5)), Model(2, 4, 2));
  ASSERT_TRUE(tables.ok());
  EXPECT_EQ(tables.value()[0].estimator, "headkv-r2");
  EXPECT_EQ(tables.value()[0].n_columns, 4);
}

TEST(ConvertHeadScores, Refused) {
  const ModelConfig model = Model(2, 4, 2);
  const json own = {{"name", "mine"}, {"estimator", "ssv"}, {"shape", {2, 2}}, {"scores", {1, 2, 3, 4}}};
  const auto with = [&](const json& more) {
    json changed = own;
    changed.update(more);
    return Parse(changed, model).status();
  };
  EXPECT_TRUE(with(json::object()).ok());
  ExpectError(with({{"shape", {2, 4}}}), Code::kInvalid,
              {"s.json", "2 layers, 4 heads do not fit", "2 KV heads"});
  ExpectError(with({{"shape", {3, 2}}}), Code::kInvalid, {"3 layers"});
  ExpectError(with({{"shape", {2, -2}}}), Code::kBadModel, {"shape"});
  ExpectError(with({{"shape", 4}}), Code::kBadModel, {"shape must be [layers, heads]"});
  ExpectError(with({{"scores", {1, 2, 3}}}), Code::kInvalid, {"3 scores", "2 x 2"});
  ExpectError(with({{"scores", {{1, 2, 3}, {4}}}}), Code::kInvalid, {"2 rows of 2"});
  ExpectError(with({{"scores", {1, 2, 3, "x"}}}), Code::kBadModel, {"no number"});
  ExpectError(with({{"scores", {1, 2, 3, 1e300}}}), Code::kBadModel, {"score 3 is not finite"});
  ExpectError(with({{"name", ""}}), Code::kBadModel, {"name and estimator"});
  ExpectError(with({{"estimator", "headkv-r2"}}), Code::kInvalid, {"headkv-r2"});
  ExpectError(with({{"estimator", "headkv-r2"}, {"shape", {2, 4}}, {"scores", {1, 1, 1, 1, 1, 1, 1, -1}}}),
              Code::kBadModel, {"negative"});
  ExpectError(Parse({{"something", "else"}}, model).status(), Code::kUnsupported, {"layout"});
  ExpectError(Parse({{"format", "other/9"}}, model).status(), Code::kUnsupported, {"other/9"});
  ExpectError(Parse({1, 2, 3}, model).status(), Code::kInvalid, {"3 scores"});
  ExpectError(Parse(json("text"), model).status(), Code::kUnsupported, {"layout"});
}

// Utilities of all coalitions of a small game, fed once each: the estimator then is exact
// (methods.md 3.4, 3.6).
TEST(ConvertHeadScores, CokvAccumulatorsGiveTheSlicedShapleyValue) {
  constexpr int kPlayers = 6;
  const auto utility = [](int mask) {
    double u = 0;
    for (int i = 0; i < kPlayers; ++i) u += (mask >> i & 1) * (0.1 * i + 0.05);
    return u + ((mask & 3) == 3 ? 0.4 : 0) + ((mask & 12) != 0 ? 0.2 : 0);
  };
  const int all = (1 << kPlayers) - 1;
  std::vector<double> expected(kPlayers, 0.0);
  json slices = json::object();
  for (const int j : {2, 3}) {
    std::vector<double> left(kPlayers, 0.0), right(kPlayers, 0.0);
    std::vector<int> n_left(kPlayers, 0), n_right(kPlayers, 0);
    int m = 0;
    for (int mask = 0; mask <= all; ++mask) {
      if (__builtin_popcount(static_cast<unsigned>(mask)) != j) continue;
      const double u = utility(mask) - utility(all & ~mask);
      ++m;
      for (int i = 0; i < kPlayers; ++i) {
        if (mask >> i & 1)
          left[i] += u, ++n_left[i];
        else
          right[i] -= u, ++n_right[i];
      }
    }
    for (int i = 0; i < kPlayers; ++i)
      expected[i] += left[i] / n_left[i] / 2;  // mean over the slices of the slice means
    slices[std::to_string(j)] = {{"coalition_sum", left},
                                 {"coalition_count", n_left},
                                 {"complement_sum", right},
                                 {"complement_count", n_right},
                                 {"samples", m}};
  }
  json file = {{"format", "kvc-head-scores/1"},
               {"method", "CoKV complementary contributions"},
               {"model", "x"},
               {"layers", 3},
               {"kv_heads", 2},
               {"query_heads", 4},
               {"source", "test"},
               {"tasks", {{"qa", slices}, {"trec", slices}}}};
  const auto tables = Parse(file, Model(3, 4, 2));
  ASSERT_TRUE(tables.ok()) << tables.status().message();
  ASSERT_EQ(tables.value().size(), 2u);
  EXPECT_EQ(tables.value()[0].name, "ssv-qa");
  EXPECT_EQ(tables.value()[0].n_samples, 15 + 20);
  for (int i = 0; i < kPlayers; ++i)
    EXPECT_NEAR(tables.value()[0].scores[static_cast<size_t>(i)], expected[i], 1e-6) << i;
  ExpectError(Parse(file, Model(3, 6, 3)).status(), Code::kInvalid, {"task qa", "do not fit"});
  const json flat = file["tasks"]["qa"]["2"]["coalition_sum"];
  const json rows[] = {{{flat[0], flat[1]}, {flat[2], flat[3]}, {flat[4], flat[5]}},
                       {{flat[0], flat[1], flat[2]}, {flat[3], flat[4], flat[5]}}};
  file["tasks"]["qa"]["2"]["coalition_sum"] = rows[0];
  EXPECT_TRUE(Parse(file, Model(3, 4, 2)).ok());
  file["tasks"]["qa"]["2"]["coalition_sum"] = rows[1];
  ExpectError(Parse(file, Model(3, 4, 2)).status(), Code::kInvalid, {"size 2: coalition_sum", "3 rows of 2"});
  file["tasks"]["qa"]["2"]["coalition_sum"] = flat;
  file["tasks"]["qa"]["2"]["coalition_count"][4] = 0;
  ExpectError(Parse(file, Model(3, 4, 2)).status(), Code::kBadModel,
              {"task qa, size 2", "head 4", "not enough samples"});
  file["tasks"] = {{"qa", {{"6", slices["2"]}}}};
  ExpectError(Parse(file, Model(3, 4, 2)).status(), Code::kBadModel, {"coalition of 6 among 6"});
}

TEST(ConvertHeadScores, HeadKvMeansAndLists) {
  const ModelConfig model = Model(2, 2, 1);
  auto tables = Parse({{"format", "kvc-head-scores/1"},
                       {"method", "HeadKV-R2 retrieval-reasoning"},
                       {"layers", 2},
                       {"query_heads", 2},
                       {"scores", {0.1, 0.2, 0.3, 0.4}}},
                      model);
  ASSERT_TRUE(tables.ok()) << tables.status().message();
  EXPECT_EQ(tables.value()[0].estimator, "headkv-r2");
  EXPECT_EQ(tables.value()[0].scores, std::vector<float>({0.1f, 0.2f, 0.3f, 0.4f}));
  tables =
      Parse({{"0-0", {1.0, 3.0}}, {"0-1", {0.0, 0.0}}, {"1-0", {0.5, 0.25}}, {"1-1", {4.0, 4.0}}}, model);
  ASSERT_TRUE(tables.ok()) << tables.status().message();
  EXPECT_EQ(tables.value()[0].scores, std::vector<float>({2.0f, 0.0f, 0.375f, 4.0f}));
  EXPECT_EQ(tables.value()[0].n_samples, 2);
  ExpectError(Parse({{"0-0", {1.0}}, {"0-1", {1.0}}, {"1-0", {1.0}}, {"1-1", json::array()}}, model).status(),
              Code::kBadModel, {"head 1-1", "not enough samples"});
  ExpectError(Parse({{"0-0", {1.0}}, {"0-1", {1.0}}}, model).status(), Code::kInvalid, {"2 heads"});
  ExpectError(Parse({{"format", "kvc-head-scores/1"},
                     {"method", "HeadKV-R2"},
                     {"layers", 2},
                     {"query_heads", 2},
                     {"scores", {{0.1, 0.2, 0.3}, {0.4}}}},
                    model)
                  .status(),
              Code::kInvalid, {"2 rows of 2"});
  ExpectError(Parse({{"format", "kvc-head-scores/1"}, {"method", "Other"}}, model).status(),
              Code::kUnsupported, {"'Other'"});
}

}  // namespace
}  // namespace kvc
