// kvc eval --explain on the recall model: the bounds hold on real inputs, and what is printed, written and
// drawn.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/tool/run_program.h"

namespace {

using Json = nlohmann::json;

constexpr size_t kLayers = 6, kQueryHeads = 8, kHeadSize = 64;
const char* const kTasks = KVC_SOURCE_DIR "/samples/data/recall_demo.jsonl";

std::vector<std::string> Arguments(const std::string& protocol) {
  return {"eval",
          KVC_RECALL,
          "--data",
          kTasks,
          "--limit",
          "1",
          "--protocol",
          protocol,
          "--explain",
          "--policy",
          "full",
          "--policy",
          "streaming:budget=32",
          "--policy",
          "snapkv-w8:budget=64",
          "--policy",
          "cokv:budget=96",
          "--policy",
          "h2o:budget=64",
          "--policy",
          "ada-snapkv:budget=64,window=8"};
}

double Sum(const Json& values) {
  double sum = 0;
  for (const Json& v : values) sum += v.get<double>();
  return sum;
}

// Of means over matrices with kHeadSize columns, what holds for each of them.
void ExpectSpectra(const Json& layers) {
  for (const char* key : {"normalized", "top_energy", "top_sum", "effective_rank", "rank_90"})
    ASSERT_EQ(layers[key].size(), kLayers) << key;
  for (size_t l = 0; l < kLayers; ++l) {
    const std::vector<double> normalized = layers["normalized"][l];
    ASSERT_EQ(normalized.size(), kHeadSize);
    EXPECT_DOUBLE_EQ(normalized[0], 1);
    EXPECT_TRUE(std::is_sorted(normalized.rbegin(), normalized.rend()));
    const double energy = layers["top_energy"][l], sum = layers["top_sum"][l],
                 rank = layers["effective_rank"][l], rank_90 = layers["rank_90"][l];
    EXPECT_GT(sum, 1.0 / kHeadSize);
    EXPECT_GT(energy, sum);  // squares favour the largest
    EXPECT_LT(energy, 1);
    EXPECT_GE(rank, 1 / sum);  // what it would be if all were as large as the largest
    EXPECT_LT(rank, kHeadSize);
    EXPECT_GE(rank_90, 1);
    EXPECT_LT(rank_90, 0.9 * kHeadSize);
  }
}

TEST(ToolExplain, BoundsHoldOnRealInputs) {
  for (const char* protocol : {"ask", "prompt"}) {
    SCOPED_TRACE(protocol);
    std::vector<std::string> arguments = Arguments(protocol);
    arguments.push_back("--json");
    const ProgramResult run = RunKvc(arguments);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const Json out = run.Json();
    ASSERT_EQ(out["results"].size(), 6u);
    for (const Json& row : out["results"]) {
      const Json& e = row["explain"];
      const bool full = row["policy"].get<std::string>().rfind("full", 0) == 0;
      ASSERT_EQ(e["loss"].size(), kLayers);
      EXPECT_GT(e["n_queries"], 0);
      for (size_t l = 0; l < kLayers; ++l) {
        const double loss = e["loss"][l], by_head = e["bound_by_head"][l], bound = e["bound"][l],
                     retained = e["retained"][l];
        EXPECT_LE(loss, by_head) << row["policy"];
        EXPECT_LE(by_head, bound * (1 + 1e-12)) << row["policy"];
        EXPECT_EQ(loss == 0, full) << row["policy"];
        EXPECT_EQ(retained > 0.999999, full) << row["policy"];
        EXPECT_GT(retained, 0) << row["policy"];
        const double similarity = e["attention_similarity"][l];
        EXPECT_EQ(similarity == 1, full) << row["policy"];
        EXPECT_GT(similarity, 0) << row["policy"];
        EXPECT_LE(similarity, 1) << row["policy"];
      }
      // What is kept of every tenth adds up to what is kept.
      const double kept = Sum(e["kept_by_position"]) / 10;
      EXPECT_NEAR(kept, full ? 1 : row["cache_share"].get<double>(), full ? 1e-9 : 0.01) << row["policy"];
    }
    const Json& about = out["explain"];
    ASSERT_EQ(about["concentration"][0]["top"].size(), kLayers);
    for (const Json& layer : about["concentration"][0]["top"]) {
      ASSERT_EQ(layer.size(), kQueryHeads);
      for (const Json& share : layer) {
        EXPECT_GE(share, 0.05);  // no less than uniform attention would have
        EXPECT_LE(share, 1.0000001);
      }
    }
    ASSERT_EQ(about["spectrum"].size(), 1u);
    EXPECT_EQ(about["spectrum"][0]["n_prompts"], out["results"][0]["n_prompts"]);
    for (const char* which : {"keys", "values"}) ExpectSpectra(about["spectrum"][0][which]);
    EXPECT_NE(about["spectrum"][0]["keys"], about["spectrum"][0]["values"]);
    ASSERT_EQ(about["rank_correlation"].size(), 5u);
    for (const Json& c : about["rank_correlation"]) {
      EXPECT_EQ(c["n_policies"], 5);  // the full cache has nothing to tell
      EXPECT_TRUE(c["accuracy"].is_null() || std::abs(c["accuracy"].get<double>()) <= 1);
    }
  }
}

// The answers are those of kvc eval without it.
TEST(ToolExplain, LooksWithoutTouching) {
  std::vector<std::string> arguments = Arguments("ask");
  arguments.push_back("--json");
  const Json with = RunKvc(arguments).Json();
  arguments.erase(std::find(arguments.begin(), arguments.end(), "--explain"));
  const Json without = RunKvc(arguments).Json();
  for (size_t i = 0; i < 6; ++i) {
    for (const char* key : {"accuracy", "kl", "cache_bytes", "n"})
      EXPECT_EQ(with["results"][i][key], without["results"][i][key]) << key;
    EXPECT_FALSE(without["results"][i].contains("explain"));
  }
}

TEST(ToolExplain, PrintsTablesAndDraws) {
  const TemporaryFolder folder;
  std::vector<std::string> arguments = Arguments("ask");
  const std::string picture = folder.Path("explain.svg");
  arguments.insert(arguments.end(), {"--picture", picture, "--top-share", "0.1"});
  const ProgramResult run = RunKvc(arguments);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  for (const char* part : {"L1 loss", "bound by head", "retained", "most attended 10 %", "similarity",
                           "singular values of the full cache", "effective rank", "every tenth of the prompt",
                           "rank correlation (Spearman)", "relative_loss"})
    EXPECT_NE(run.out.find(part), std::string::npos) << part;
  const ProgramResult parsed = RunProgram(
      "/usr/bin/env", {"python3", "-c",
                       "import sys, xml.etree.ElementTree as t\n"
                       "e = list(t.parse(sys.argv[1]).getroot().iter())\n"
                       "n = lambda tag: sum(x.tag.endswith('}' + tag) for x in e)\n"
                       "print(n('polyline'), n('circle'), sum(x.tag.endswith('}title') for x in e))",
                       picture});
  ASSERT_EQ(parsed.exit_code, 0) << parsed.err;
  // Five charts of six policies, two of keys and values, one of points; a heat map of 6 x 8.
  EXPECT_EQ(parsed.out, "34 6 48\n");
}

TEST(ToolExplain, WhatIsWrongIsSaid) {
  const TemporaryFolder folder;
  const std::string text = folder.Write("a.txt", "text");
  EXPECT_EQ(RunKvc({"eval", KVC_RECALL, "--text", text, "--explain"}).exit_code, 2);
  EXPECT_EQ(RunKvc({"eval", KVC_RECALL, "--suite", "ruler", "--explain"}).exit_code, 2);
  EXPECT_EQ(RunKvc({"eval", KVC_RECALL, "--data", kTasks, "--picture", folder.Path("p.svg")}).exit_code, 2);
  EXPECT_EQ(RunKvc({"eval", KVC_RECALL, "--data", kTasks, "--explain", "--top-share", "0"}).exit_code, 2);
  const ProgramResult spared =
      RunKvc({"eval", KVC_RECALL, "--data", kTasks, "--explain", "--picture", kTasks});
  EXPECT_EQ(spared.exit_code, 2);
  EXPECT_NE(spared.err.find("the output must be another file"), std::string::npos) << spared.err;
}

}  // namespace
