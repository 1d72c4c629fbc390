// kvc score on the recall model: shards, kills and resumption change nothing; messages; pictures.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "tests/tool/run_program.h"

namespace {

using Json = nlohmann::json;

const char* const kTasks = KVC_SOURCE_DIR "/models/recall/tasks/train/niah_multi.jsonl";

// A measurement small enough for a test: sizes that divide 24, so that eight balanced samples reach every
// head.
std::vector<std::string> Score(const std::string& out, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"score",   KVC_RECALL,  "--data", kTasks,      "--limit",
                                        "1",       "--utility", "nll",    "--samples", "8",
                                        "--sizes", "3,12",      "--out",  out,         "--balanced"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

void ExpectGood(const ProgramResult& result) { EXPECT_EQ(result.exit_code, 0) << result.err; }

bool Exists(const std::string& path) { return std::system(("test -e '" + path + "'").c_str()) == 0; }

TEST(ToolScore, ShardsKillsAndResumptionGiveTheSameBits) {
  const TemporaryFolder folder;
  ExpectGood(RunKvc(Score(folder.Path("whole.json"), {})));
  const std::string whole = ReadWholeFile(folder.Path("whole.json"));
  const Json scores = Json::parse(whole);
  EXPECT_EQ(scores["shape"], (Json{6, 4}));
  EXPECT_EQ(scores["samples"], 8 * 2 * 2);
  EXPECT_TRUE(scores.contains("correlation_between_runs"));

  // Killed twice at some moment, other batches, then resumed: the program's own kill is the hardest there is.
  for (const char* seconds : {"0.4", "0.7"}) {
    std::vector<std::string> killed = {"timeout", "-s", "KILL", seconds, KVC_PROGRAM};
    const std::vector<std::string> arguments =
        Score(folder.Path("killed.json"), {"--resume", "--batch", "5"});
    killed.insert(killed.end(), arguments.begin(), arguments.end());
    RunProgram("/usr/bin/env", killed);
  }
  ExpectGood(RunKvc(Score(folder.Path("killed.json"), {"--resume", "--batch", "7", "--threads", "1"})));
  EXPECT_EQ(ReadWholeFile(folder.Path("killed.json")), whole);

  std::vector<std::string> merge = {"score-merge", "--out", folder.Path("merged.json")};
  for (const char* shard : {"4", "2", "1", "3"}) {
    ExpectGood(RunKvc(Score(folder.Path("part.json"), {"--shard", std::string(shard) + "/4"})));
    merge.push_back(folder.Path("part.json." + std::string(shard) + "-of-4.log"));
    // A machine died while it wrote: the last line is cut, and done again.
    const std::string log = ReadWholeFile(merge.back());
    folder.Write("part.json." + std::string(shard) + "-of-4.log", log.substr(0, log.size() - 30));
    ExpectGood(RunKvc(Score(folder.Path("part.json"), {"--resume", "--shard", std::string(shard) + "/4"})));
    EXPECT_EQ(ReadWholeFile(merge.back()), log);
  }
  EXPECT_FALSE(Exists(folder.Path("part.json")));
  ExpectGood(RunKvc(merge));
  EXPECT_EQ(ReadWholeFile(folder.Path("merged.json")), whole);

  const ProgramResult other = RunKvc(Score(folder.Path("killed.json"), {"--resume", "--seed", "2"}));
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_NE(other.err.find("seed is 1, here 2"), std::string::npos) << other.err;
}

// As many samples as the bound asks for; slices in the file, and drawn.
TEST(ToolScore, SamplesByABoundOfTheError) {
  const TemporaryFolder folder;
  const std::vector<std::string> common = {"score",     KVC_RECALL, "--data",  kTasks, "--limit",         "1",
                                           "--utility", "nll",      "--sizes", "6,12", "--draw-examples", "1",
                                           "--delta",   "0.5"};
  std::vector<std::string> good = common;
  good.insert(good.end(), {"--variant", "left", "--epsilon", "1.2", "--out", folder.Path("s.json")});
  ExpectGood(RunKvc(good));
  const Json scores = Json::parse(ReadWholeFile(folder.Path("s.json")));
  EXPECT_EQ(scores["samples_with_a_head"], 8);  // 2 / 1.44 * ln(2 * 2 * 24 / 0.5), rounded up
  EXPECT_GE(scores["samples_per_size"], 16);    // a head is in a quarter of the coalitions of six; two runs
  ASSERT_EQ(scores["slices"].size(), 2u);
  EXPECT_EQ(scores["slices"][1]["size"], 12);
  ExpectGood(RunKvc({"score-plot", folder.Path("s.json"), "--out", folder.Path("s.svg")}));
  EXPECT_NE(ReadWholeFile(folder.Path("s.svg")).find("size 12"), std::string::npos);
  const std::vector<std::vector<std::string>> wrong = {
      {"--epsilon", "1"},  // --variant both
      {"--variant", "left", "--epsilon", "1", "--balanced"},
      {"--variant", "left", "--epsilon", "1", "--samples", "9"},
      {"--variant", "left", "--epsilon", "0.001"},  // 10 million
      {"--variant", "left"}};                       // --delta alone
  for (const std::vector<std::string>& options : wrong) {
    std::vector<std::string> arguments = common;
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(), {"--out", folder.Path("x.json")});
    EXPECT_EQ(RunKvc(arguments).exit_code, 2) << options.back();
  }
}

TEST(ToolScore, SharesPrefillAndWeightPasses) {
  const TemporaryFolder folder;
  const ProgramResult run = RunKvc(Score(folder.Path("s.json"), {"--json"}));
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json cost = run.Json()["cost"];
  EXPECT_EQ(cost["prefills"], 1);
  EXPECT_GE(cost["weight_passes_alone"].get<double>(), 10 * cost["weight_passes"].get<double>());
}

TEST(ToolScore, ScoresGoIntoAModelFileAndAPicture) {
  const TemporaryFolder folder;
  ExpectGood(RunKvc(Score(folder.Path("s.json"), {"--choose-alpha", "32", "--mask-experiment", "both"})));
  const Json scores = Json::parse(ReadWholeFile(folder.Path("s.json")));
  EXPECT_EQ(scores["budget"], 32);
  EXPECT_EQ(scores["alpha_by_budget"][0]["alpha"], scores["alpha"]);
  const Json curves = scores["mask_curves"];
  // The same experiments on the finished file find the same; other candidates and budgets can be asked for.
  ExpectGood(
      RunKvc(Score(folder.Path("again.json"), {"--scores", folder.Path("s.json"), "--choose-alpha", "32"})));
  EXPECT_EQ(Json::parse(ReadWholeFile(folder.Path("again.json"))), scores);
  ExpectGood(RunKvc(Score(folder.Path("two.json"), {"--scores", folder.Path("s.json"), "--choose-alpha",
                                                    "16,32", "--alphas", "2,20"})));
  const Json two = Json::parse(ReadWholeFile(folder.Path("two.json")))["alpha_by_budget"];
  EXPECT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1]["candidates"], Json({2, 20}));
  EXPECT_EQ(curves["top"].size(), curves["masked"].size());
  EXPECT_EQ(curves["top"].front(), curves["bottom"].front());  // nothing masked
  EXPECT_EQ(curves["top"].back(), curves["bottom"].back());    // everything masked

  ExpectGood(RunKvc({"convert", KVC_SOURCE_DIR "/models/recall", folder.Path("scored.kvc"), "--head-scores",
                     folder.Path("s.json")}));
  const ProgramResult about = RunKvc({"inspect", folder.Path("scored.kvc"), "--json"});
  ASSERT_EQ(about.exit_code, 0) << about.err;
  const Json table = about.Json()["head_scores"][0];
  EXPECT_EQ(table["estimator"], "ssv");
  EXPECT_EQ(table["dataset"], "niah_multi");
  EXPECT_NEAR(table["scores"][1][2].get<double>(), scores["scores"][1][2].get<double>(), 1e-6);

  const std::string picture = folder.Path("s.svg");
  ExpectGood(RunKvc({"score-plot", folder.Path("s.json"), "--out", picture, "--model",
                     folder.Path("scored.kvc"), "--budget", "16,32"}));
  const ProgramResult parsed = RunProgram(
      "/usr/bin/env", {"python3", "-c", "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])", picture});
  EXPECT_EQ(parsed.exit_code, 0) << parsed.err;
  const std::string svg = ReadWholeFile(picture);
  EXPECT_EQ(std::count(svg.begin(), svg.end(), '\n') > 100, true);
  for (const char* part : {"prefers-color-scheme:dark", "slots per head at 16", "heads masked", "Spearman"}) {
    EXPECT_NE(svg.find(part), std::string::npos) << part;
  }
  if (std::system("command -v rsvg-convert > /dev/null") == 0) {
    EXPECT_EQ(RunProgram("/usr/bin/env", {"rsvg-convert", picture, "-o", folder.Path("s.png")}).exit_code, 0);
  }
}

TEST(ToolScore, RetrievalScoresOfQueryHeads) {
  const TemporaryFolder folder;
  ExpectGood(RunKvc({"score", KVC_RECALL, "--data", kTasks, "--limit", "2", "--method", "headkv-r2", "--out",
                     folder.Path("r.json")}));
  const Json scores = Json::parse(ReadWholeFile(folder.Path("r.json")));
  EXPECT_EQ(scores["shape"], (Json{6, 8}));
  double best = 0;
  for (const Json& row : scores["scores"]) {
    for (const Json& score : row) {
      EXPECT_GE(score.get<double>(), 0);
      best = std::max(best, score.get<double>());
    }
  }
  EXPECT_GT(best, 0.1);  // some head copies
  ExpectGood(RunKvc({"convert", KVC_SOURCE_DIR "/models/recall", folder.Path("r.kvc"), "--head-scores",
                     folder.Path("r.json")}));
}

TEST(ToolScore, AveragesTasks) {
  const TemporaryFolder folder;
  const std::string a =
      folder.Write("a.json", R"({"estimator":"ssv","dataset":"a","samples":3,"scores":[[1,2],[3,6]]})");
  const std::string b =
      folder.Write("b.json", R"({"estimator":"ssv","dataset":"b","samples":4,"scores":[[0,0],[0,4]]})");
  ExpectGood(RunKvc({"score-merge", "--average", a, b, "--out", folder.Path("m.json")}));
  const Json mean = Json::parse(ReadWholeFile(folder.Path("m.json")));
  EXPECT_EQ(mean["dataset"], "*");
  EXPECT_EQ(mean["samples"], 7);
  EXPECT_EQ(mean["scores"], Json::parse("[[-1.5,-1],[-0.5,3]]"));
}

TEST(ToolScore, SaysWhatIsWrong) {
  const TemporaryFolder folder;
  struct Case {
    std::string tasks;
    std::vector<std::string> more;
    int exit_code;
    std::string message;
  };
  const std::string good =
      R"({"context":"Ada lives in Rome.","questions":[{"question":" Ada lives in","answer":" Rome."}]})";
  std::string longest;
  for (int i = 0; i < 3000; ++i) longest += " 7";
  const Case cases[] = {
      {"", {}, 1, "holds no task"},
      {good + "\n{\"context\":", {}, 1, "tasks.jsonl:2"},
      {good + "\n\n" + R"({"context":"x","questions":[{"question":"y","answer":")" + longest + "\"}]}",
       {},
       1,
       "tasks.jsonl:3: an answer of"},
      {good, {"--method", "exact"}, 2, "16 heads"},
      {good, {"--variant", "pooled"}, 2, "--sizes 12"},
      {good, {"--shard", "5/4", "--samples", "5"}, 2, "I/N"},
      {good, {"--shard", "1/4"}, 2, "--samples"},
      {good, {"--sizes", "24", "--samples", "2"}, 2, "coalitions have 1 to 23"},
      {good, {"--samples", "1"}, 2, "not enough samples"},
      {good, {"--samples", "60", "--out", "/nowhere/s.json"}, 1, "/nowhere/s.json"},
  };
  int number = 0;
  for (const Case& c : cases) {
    const std::string data = folder.Write("tasks.jsonl", c.tasks);
    std::vector<std::string> arguments = {"score", KVC_RECALL, "--data", data};
    if (std::find(c.more.begin(), c.more.end(), "--out") == c.more.end()) {
      arguments.insert(arguments.end(), {"--out", folder.Path(std::to_string(number++) + ".json")});
    }
    arguments.insert(arguments.end(), c.more.begin(), c.more.end());
    const ProgramResult result = RunKvc(arguments);
    EXPECT_EQ(result.exit_code, c.exit_code) << c.message;
    EXPECT_NE(result.err.find(c.message), std::string::npos) << result.err;
  }
}

}  // namespace
