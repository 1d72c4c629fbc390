// kvc score on the recall model: shards, kills and resumption change nothing; messages; pictures.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include "tests/support/emulated.h"
#include "tests/tool/run_program.h"
#include "tests/tool/short_tasks.h"

namespace {

using Json = nlohmann::json;

const char* const kTasks = KVC_SOURCE_DIR "/models/recall/tasks/train/niah_multi.jsonl";

// Two of them, short.
const std::string& Tasks() {
  static const std::string path = ShortTasks(kTasks, 2);
  return path;
}

// A measurement small enough for a test: sizes that divide 24, so that eight balanced samples reach every
// head.
std::vector<std::string> Score(const std::string& out, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"score",   KVC_RECALL,  "--data", Tasks(),     "--limit",
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
  const std::string shards = kvc::test::Fewer("2", "4");
  for (const std::string shard : {"4", "2", "1", "3"}) {
    if (shard > shards) continue;
    ExpectGood(RunKvc(Score(folder.Path("part.json"), {"--shard", shard + "/" + shards})));
    const std::string name = "part.json." + shard + "-of-" + shards + ".log";
    merge.push_back(folder.Path(name));
    // A machine died while it wrote: the last line is cut, and done again.
    const std::string log = ReadWholeFile(merge.back());
    folder.Write(name, log.substr(0, log.size() - 30));
    ExpectGood(RunKvc(Score(folder.Path("part.json"), {"--resume", "--shard", shard + "/" + shards})));
    EXPECT_EQ(ReadWholeFile(merge.back()), log);
  }
  EXPECT_FALSE(Exists(folder.Path("part.json")));
  ExpectGood(RunKvc(merge));
  EXPECT_EQ(ReadWholeFile(folder.Path("merged.json")), whole);

  const ProgramResult other = RunKvc(Score(folder.Path("killed.json"), {"--resume", "--seed", "2"}));
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_NE(other.err.find("seed is 1, here 2"), std::string::npos) << other.err;
}

// What all heads together and none of them are worth is what `kvc eval` finds right with the full cache and
// with the window alone. An answer that is right by its tokens is in the text that is generated.
TEST(ToolScore, UtilitiesOfAnswersAreThoseOfEval) {
  const TemporaryFolder folder;
  const ProgramResult eval = RunKvc({"eval", KVC_RECALL, "--data", Tasks(), "--limit", "1", "--policy",
                                     "full", "--policy", "snapkv:budget=8,window=8", "--json"});
  ExpectGood(eval);
  const Json results = eval.Json()["results"];
  const double full = results[0]["accuracy"], none = results[1]["accuracy"];
  EXPECT_GT(full, none);
  std::vector<double> worst_first[2];
  for (const std::string utility : {"exact", "needle"}) {
    const std::string out = folder.Path(utility + ".json");
    ExpectGood(
        RunKvc({"score", KVC_RECALL, "--data", Tasks(), "--limit", "1", "--utility", utility, "--first-line",
                "--max-answer", "12", "--variant", "alone", "--mask-experiment", "both", "--out", out}));
    const Json curves = Json::parse(ReadWholeFile(out))["mask_curves"];
    for (const char* order : {"top", "bottom"}) {
      EXPECT_EQ(curves[order].front(), full) << utility << " " << order;
      EXPECT_EQ(curves[order].back(), none) << utility << " " << order;
    }
    worst_first[utility == "needle"] = curves["bottom"].get<std::vector<double>>();
  }
  ASSERT_EQ(worst_first[0].size(), worst_first[1].size());
  for (size_t i = 0; i < worst_first[0].size(); ++i) EXPECT_GE(worst_first[1][i], worst_first[0][i]) << i;
}

// A text is generated up to any stop token of the model: up to the full stop it is what was asked for, and
// goes on where a full stop ends nothing.
TEST(ToolScore, GeneratedAnswersEndAtEveryStopToken) {
  const TemporaryFolder folder;
  const std::string stops = folder.Path("stops.kvc");
  WriteRecallWithTwoStops(folder);
  ExpectGood(RunKvc({"convert", folder.Path(""), stops}));
  const std::string task = folder.Write(
      "task.jsonl", Json{{"context", "The code of Ann is 117. The code of Robin is 386."},
                         {"questions", {{{"question", " The code of Robin is"}, {"answer", " 386"}}}}}
                        .dump());
  double utility[2];
  for (const std::string& model : {stops, std::string(KVC_RECALL)}) {
    const std::string out = folder.Path(model == stops ? "stops.json" : "recall.json");
    ExpectGood(RunKvc({"score", model, "--data", task, "--utility", "f1", "--max-answer", "12", "--variant",
                       "alone", "--mask-experiment", "top", "--out", out}));
    utility[model == stops] = Json::parse(ReadWholeFile(out))["mask_curves"]["top"].front();
  }
  EXPECT_EQ(utility[true], 1);
  EXPECT_LT(utility[false], 1);
}

// As many samples as the bound asks for; slices in the file, and drawn.
TEST(ToolScore, SamplesByABoundOfTheError) {
  const TemporaryFolder folder;
  const std::vector<std::string> common = {
      "score", KVC_RECALL, "--data", Tasks(),           "--limit", "1",       "--utility",
      "nll",   "--sizes",  "6,12",   "--draw-examples", "1",       "--delta", "0.5"};
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
      {"--variant", "left", "--epsilon", "1", "--standardise"},
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

// What a head is worth alone and what the others lose without it: complementary contributions of size 1 are
// the sum of the two.
TEST(ToolScore, SingleHeadsAddUpToContributionsOfSizeOne) {
  const TemporaryFolder folder;
  const auto score = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"score", KVC_RECALL,  "--data", Tasks(), "--limit",
                                          "1",     "--utility", "nll",    "--out", folder.Path(name)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunKvc(arguments);
  };
  for (const char* variant : {"alone", "leftout"}) ExpectGood(score(variant, {"--variant", variant}));
  ExpectGood(
      score("left", {"--variant", "left", "--sizes", "1", "--balanced", "--runs", "1", "--samples", "24"}));
  const auto read = [&](const char* name) { return Json::parse(ReadWholeFile(folder.Path(name))); };
  const Json alone = read("alone"), leftout = read("leftout"), left = read("left");
  EXPECT_EQ(alone["samples"], 24) << "every head once";
  double largest = 0;
  for (size_t layer = 0; layer < 6; ++layer) {
    for (size_t head = 0; head < 4; ++head) {
      const double a = alone["scores"][layer][head], b = leftout["scores"][layer][head];
      EXPECT_NEAR(a + b, left["scores"][layer][head].get<double>(), 1e-7) << layer << "." << head;
      largest = std::max(largest, std::fabs(a - b));
    }
  }
  EXPECT_GT(largest, 1e-3) << "they are not the same";
  ExpectGood(score("part", {"--variant", "alone", "--shard", "1/2"}));
  ExpectGood(score("part", {"--variant", "alone", "--shard", "2/2"}));
  ExpectGood(RunKvc({"score-merge", folder.Path("part.1-of-2.log"), folder.Path("part.2-of-2.log"), "--out",
                     folder.Path("merged")}));
  EXPECT_EQ(read("merged")["scores"], alone["scores"]);
  const std::string half = folder.Path("part.1-of-2.log");
  const ProgramResult twice = RunKvc({"score-merge", half, half, "--out", folder.Path("twice")});
  EXPECT_NE(twice.err.find("part.1-of-2.log adds nothing to the files before it"), std::string::npos)
      << twice.err;
  EXPECT_EQ(score("x", {"--variant", "alone", "--sizes", "3"}).exit_code, 2);
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
  const ProgramResult scored = RunKvc({"score", KVC_RECALL, "--data", Tasks(), "--limit", "2", "--samples",
                                       "40", "--method", "headkv-r2", "--out", folder.Path("r.json")});
  ExpectGood(scored);
  EXPECT_NE(scored.err.find("note: --samples changes nothing with --method headkv-r2"), std::string::npos)
      << scored.err;
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

// Layers that are not scored have no part in the mean that is taken off.
TEST(ToolScore, AveragesTasksOfTheSameLayersOnly) {
  const TemporaryFolder folder;
  const std::string a =
      folder.Write("a.json", R"({"estimator":"ssv","layers":[1],"samples":3,"scores":[[0,0],[3,6]]})");
  const std::string b =
      folder.Write("b.json", R"({"estimator":"ssv","layers":[1],"samples":4,"scores":[[0,0],[0,4]]})");
  ExpectGood(RunKvc({"score-merge", "--average", a, b, "--out", folder.Path("m.json")}));
  const Json mean = Json::parse(ReadWholeFile(folder.Path("m.json")));
  EXPECT_EQ(mean["layers"], Json::parse("[1]"));
  EXPECT_EQ(mean["scores"], Json::parse("[[0,0],[-1.75,1.75]]"));
  for (const char* layers : {"[0,1]", "[1,0]", "[2]", "[]", "7"}) {
    const std::string other = folder.Write(
        "c.json", std::string(R"({"estimator":"ssv","scores":[[0,0],[0,4]],"layers":)") + layers + "}");
    const ProgramResult bad = RunKvc({"score-merge", "--average", a, other, "--out", folder.Path("m.json")});
    EXPECT_EQ(bad.exit_code, 1) << layers;
    EXPECT_NE(bad.err.find("c.json"), std::string::npos) << bad.err;
  }
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

// recall as a model of a family whose layers differ: all but two have a window of 64 tokens.
std::string WithWindows(const TemporaryFolder& folder) {
  RunShell("mkdir \"$3\" && cp \"$2\"/*.json \"$2\"/model.safetensors \"$3\"",
           {KVC_SOURCE_DIR "/models/recall", folder.Path("hf")});
  Json config = Json::parse(ReadWholeFile(folder.Path("hf/config.json")));
  config["architectures"] = {"MinistralForCausalLM"}, config["model_type"] = "ministral";
  config["sliding_window"] = 64;
  for (int layer = 0; layer < 6; ++layer)
    config["layer_types"].push_back(layer == 1 || layer == 4 ? "full_attention" : "sliding_attention");
  folder.Write("hf/config.json", config.dump());
  ExpectGood(RunKvc({"convert", folder.Path("hf"), folder.Path("windows.kvc")}));
  return folder.Path("windows.kvc");
}

// A question whose answer has left the windows when it comes.
std::string OneFact(const TemporaryFolder& folder) {
  const std::string all = ReadWholeFile(kTasks),
                    prose = Json::parse(all.substr(0, all.find('\n')))["context"];
  Json task;
  task["context"] = prose.substr(0, 300) + " The code of Robin is 386. " + prose.substr(300, 500);
  task["questions"].push_back({{"question", " The code of Robin is"}, {"answer", " 386."}});
  return folder.Write("task.jsonl", task.dump());
}

// Zeros where a layer has a window, and only there.
void ExpectPlayers(const Json& scores, size_t width) {
  EXPECT_EQ(scores["layers"], (Json{1, 4}));
  ASSERT_EQ(scores["scores"].size(), 6u);
  for (size_t layer = 0; layer < 6; ++layer) {
    const Json& row = scores["scores"][layer];
    ASSERT_EQ(row.size(), width);
    const bool zeros = std::all_of(row.begin(), row.end(), [](const Json& x) { return x == 0.0; });
    EXPECT_EQ(zeros, layer != 1 && layer != 4) << layer;
  }
}

// Coalitions and their utilities of a log: its records without their checksums.
std::vector<std::string> RecordsOf(const std::string& log) {
  std::istringstream lines(ReadWholeFile(log));
  std::vector<std::string> records;
  std::string line;
  for (std::getline(lines, line); std::getline(lines, line);)
    records.push_back(line.substr(0, line.rfind(' ')));
  return records;
}

// Coalitions of one question (methods.md 3.1, 3.3) and retrieval scores (3.7) beside numbers that this
// library did not make (tests/vectors/oracle/make_score_vectors.py).
TEST(ToolScore, UtilitiesAndRetrievalAreThoseOfTheReference) {
  const TemporaryFolder folder;
  const Json golden = Json::parse(ReadWholeFile(KVC_SOURCE_DIR "/tests/data/reference/score.json"));
  const std::string model = folder.Path("f32.kvc"), task = folder.Write("task.jsonl", golden["task"].dump());
  ExpectGood(RunKvc({"convert", KVC_SOURCE_DIR "/models/recall", model, "--weights", "f32"}));
  ExpectGood(RunKvc({"score", model, "--data", task, "--utility", "nll", "--sizes", golden["size"].dump(),
                     "--samples", "9", "--runs", "1", "--seed", golden["seed"].dump(), "--out",
                     folder.Path("s.json")}));
  const std::vector<std::string> records = RecordsOf(folder.Path("s.json.log"));
  ASSERT_EQ(records.size(), 9u);
  for (size_t k = 0; k < golden["utilities"].size(); ++k) {
    std::istringstream fields(records[k]);
    std::string run, size, number, questions, with, without;
    fields >> run >> size >> number >> questions >> with >> without;
    EXPECT_EQ(number, std::to_string(k));
    EXPECT_NEAR(std::strtod(with.c_str(), nullptr), golden["utilities"][k][0].get<double>(), 1e-4) << k;
    EXPECT_NEAR(std::strtod(without.c_str(), nullptr), golden["utilities"][k][1].get<double>(), 1e-4) << k;
  }
  ExpectGood(
      RunKvc({"score", model, "--data", task, "--method", "headkv-r2", "--out", folder.Path("r.json")}));
  const Json scores = Json::parse(ReadWholeFile(folder.Path("r.json")))["scores"];
  ASSERT_EQ(scores.size(), golden["retrieval"].size());
  for (size_t layer = 0; layer < scores.size(); ++layer) {
    for (size_t head = 0; head < scores[layer].size(); ++head)
      EXPECT_NEAR(scores[layer][head].get<double>(), golden["retrieval"][layer][head].get<double>(), 1e-4)
          << layer << " " << head;
  }
}

// methods.md 3.5: looked at every 5 samples of a size, and at its end where the runs' mean distance is first
// below 1/N.
TEST(ToolScore, StopsWhereTheRunsAgree) {
  const TemporaryFolder folder;
  const Json golden = Json::parse(ReadWholeFile(KVC_SOURCE_DIR "/tests/data/reference/score.json"));
  const std::string out = folder.Path("s.json");
  ExpectGood(RunKvc({"score", KVC_RECALL, "--data", folder.Write("task.jsonl", golden["task"].dump()),
                     "--utility", "nll", "--sizes", "12", "--out", out}));
  const Json scores = Json::parse(ReadWholeFile(out));
  const int n = scores["samples_per_size"];
  EXPECT_EQ(n % 5, 0);
  EXPECT_EQ(RecordsOf(out + ".log").size(), static_cast<size_t>(2 * n));
  const Json& seen = scores["convergence"];
  ASSERT_GT(seen.size(), 2u);
  for (size_t i = 0; i < seen.size(); ++i) {
    EXPECT_EQ(seen[i]["samples"], n - 5 * static_cast<int>(seen.size() - 1 - i));
    EXPECT_EQ(seen[i]["mae"].get<double>() < 1.0 / 24, i + 1 == seen.size()) << seen[i];
  }
  double distance = 0;
  const Json &a = scores["scores_by_run"][0], &b = scores["scores_by_run"][1];
  for (size_t i = 0; i < 24; ++i)
    distance += std::fabs(a[i / 4][i % 4].get<double>() - b[i / 4][i % 4].get<double>()) / 24;
  EXPECT_NEAR(distance, seen.back()["mae"].get<double>(), 1e-8);
  for (size_t i = 0; i < 24; ++i) {
    const double mean = (a[i / 4][i % 4].get<double>() + b[i / 4][i % 4].get<double>()) / 2;
    EXPECT_NEAR(scores["scores"][i / 4][i % 4].get<double>(), mean, 1e-8) << i;
  }
}

// The question is fed behind the masking, whichever way that is said (methods.md 3.1); without it the masking
// is behind the question. Where a prompt is cut shows too.
TEST(ToolScore, ASplitAsLongAsTheQuestionIsWhatIsAsked) {
  const TemporaryFolder folder;
  const std::string task = OneFact(folder);
  const ProgramResult tokens =
      RunKvc({"tokenize", KVC_RECALL, "--continue", "--text", " The code of Robin is", "--json"});
  ExpectGood(tokens);
  const std::string n = std::to_string(tokens.Json()["n_tokens"].get<int>());
  const auto records = [&](const std::string& name, const std::vector<std::string>& how) {
    std::vector<std::string> arguments = {
        "score",   KVC_RECALL, "--data",     task,    "--utility",      "nll", "--samples", "2",
        "--sizes", "12",       "--balanced", "--out", folder.Path(name)};
    arguments.insert(arguments.end(), how.begin(), how.end());
    ExpectGood(RunKvc(arguments));
    return RecordsOf(folder.Path(name + ".log"));
  };
  const std::vector<std::string> asked = records("asked", {});
  ASSERT_EQ(asked.size(), 4u);  // of two runs
  EXPECT_EQ(records("split", {"--protocol", "prompt", "--split", n}), asked);
  EXPECT_NE(records("whole", {"--protocol", "prompt"}), asked);
  EXPECT_EQ(records("long", {"--max-prompt", "4000"}), asked);
  EXPECT_NE(records("cut", {"--max-prompt", "60"}), asked);
}

TEST(ToolScore, HeadsOfLayersWithAWindowDoNotPlay) {
  const TemporaryFolder folder;
  const std::string model = WithWindows(folder), data = OneFact(folder);
  const auto score = [&](const std::string& out, const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"score", model,   "--data",        data, "--balanced", "--utility",
                                          "nll",   "--out", folder.Path(out)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunKvc(arguments);
  };
  const auto read = [&](const std::string& name) { return Json::parse(ReadWholeFile(folder.Path(name))); };
  const ProgramResult exact = score("exact.json", {"--method", "exact", "--mask-experiment", "both"});
  ExpectGood(exact);
  EXPECT_NE(exact.err.find("2 of 6 layers see all tokens: 8 KV heads play"), std::string::npos) << exact.err;
  const Json truth = read("exact.json");
  ExpectPlayers(truth, 4);
  // Shapley values share out exactly what the caches of the players are worth together.
  double sum = 0;
  for (const Json& row : truth["scores"]) {
    for (const Json& x : row) sum += x.get<double>();
  }
  const double full = truth["utility_full"], none = truth["utility_none"];
  EXPECT_NEAR(sum, full - none, 1e-7);
  EXPECT_GT(full, none + 0.1);
  EXPECT_EQ(truth["mask_curves"]["masked"].back(), 8);
  EXPECT_NEAR(truth["mask_curves"]["top"].back().get<double>(), none, 1e-9);
  EXPECT_NEAR(truth["mask_curves"]["bottom"].front().get<double>(), full, 1e-9);
  // Every estimator, over the same players.
  ExpectGood(score("s.json", {"--variant", "regression", "--samples", "24"}));
  EXPECT_EQ(read("s.json")["sizes"], (Json{1, 2, 3, 4}));
  for (const char* variant : {"left", "both", "regression"}) {
    ExpectGood(RunKvc({"score-merge", folder.Path("s.json.log"), "--variant", variant, "--out",
                       folder.Path("variant.json")}));
    const Json estimated = read("variant.json");
    ExpectPlayers(estimated, 4);
    for (const Json& slice : estimated["slices"]) EXPECT_EQ(slice["scores"][0], Json({0.0, 0.0, 0.0, 0.0}));
  }
  EXPECT_EQ(read("variant.json"), read("s.json"));
  EXPECT_EQ(score("x.json", {"--sizes", "8", "--samples", "9"}).exit_code, 2);
  // Shards and their merging, alpha, pictures, a model file, a policy by it.
  const std::vector<std::string> half = {"--variant", "pooled", "--sizes", "4", "--samples", "24"};
  ExpectGood(score("half.json", half));
  ExpectPlayers(read("half.json"), 4);
  std::vector<std::string> merge = {"score-merge", "--out", folder.Path("merged.json")};  // as the logs say
  for (const char* shard : {"1", "2"}) {
    std::vector<std::string> part = half;
    part.insert(part.end(), {"--shard", std::string(shard) + "/2"});
    ExpectGood(score("part.json", part));
    merge.push_back(folder.Path("part.json." + std::string(shard) + "-of-2.log"));
  }
  ExpectGood(RunKvc(merge));
  EXPECT_EQ(read("merged.json"), read("half.json"));
  ExpectGood(
      score("alpha.json", {"--scores", folder.Path("s.json"), "--choose-alpha", "32", "--alphas", "2,6"}));
  ExpectGood(RunKvc({"score-plot", folder.Path("s.json"), "--out", folder.Path("s.svg"), "--model", model,
                     "--budget", "32"}));
  ExpectGood(RunKvc({"score-merge", "--average", folder.Path("s.json"), folder.Path("exact.json"), "--out",
                     folder.Path("mean.json")}));
  ExpectPlayers(read("mean.json"), 4);
  ExpectGood(RunKvc(
      {"convert", folder.Path("hf"), folder.Path("scored.kvc"), "--head-scores", folder.Path("mean.json")}));
  ExpectGood(RunKvc({"run", folder.Path("scored.kvc"), "--prompt", "The code of Ada is 386.", "--policy",
                     "cokv:budget=16,window=4,alpha=2", "--max-tokens", "2"}));
}

// Retrieval scores leave the same heads out: what those hold has other places than the text, so that they
// would score for a sentence which has left their windows.
TEST(ToolScore, HeadsOfLayersWithAWindowRetrieveNothing) {
  const TemporaryFolder folder;
  ExpectGood(RunKvc({"score", WithWindows(folder), "--data", OneFact(folder), "--method", "headkv-r2",
                     "--out", folder.Path("r.json")}));
  ExpectPlayers(Json::parse(ReadWholeFile(folder.Path("r.json"))), 8);
}

TEST(ToolScore, AModelOfWindowsAloneIsRefused) {
  const TemporaryFolder folder;
  const std::string model = folder.Path("windows.kvc");
  ExpectGood(RunKvc({"convert", KVC_SOURCE_DIR "/tests/data/reference/hf_mistral_window", model}));
  for (const char* method : {"ssv", "exact", "headkv-r2"}) {
    const ProgramResult refused =
        RunKvc({"score", model, "--data", Tasks(), "--method", method, "--out", folder.Path("s.json")});
    EXPECT_EQ(refused.exit_code, 1) << method;
    EXPECT_NE(refused.err.find("every layer of this model attends to its newest tokens only"),
              std::string::npos)
        << refused.err;
  }
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
  // A task that stood there twice would count twice.
  const std::string once = folder.Write("once.jsonl", good), copy = folder.Write("copy.jsonl", good);
  const ProgramResult twice =
      RunKvc({"score", KVC_RECALL, "--data", once, "--data", copy, "--out", folder.Path("twice.json")});
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_NE(twice.err.find("copy.jsonl: the same tasks as once.jsonl"), std::string::npos) << twice.err;
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
