// kvc eval --suite on miniature files of the published form, and on tasks that are made.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <sstream>

#include "tests/support/emulated.h"
#include "tests/support/question_sets.h"
#include "tests/tool/run_program.h"

namespace {

using Json = nlohmann::json;

// What the model says after a prompt, so that the expected answers of a file can be made right or wrong.
std::string Continuation(const std::string& prompt, int n_tokens) {
  const ProgramResult run =
      RunKvc({"run", KVC_RECALL, "--prompt", prompt, "--max-tokens", std::to_string(n_tokens), "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return run.Json()["text"];
}

Json Suite(const std::string& name, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"eval", KVC_RECALL, "--suite", name, "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  const ProgramResult run = RunKvc(arguments);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  return run.exit_code == 0 ? run.Json()["results"] : Json::array();
}

const char* const kFacts =
    "The code of Robin is 386. The code of Nina is 417. It rained all day long in the town.";

TEST(ToolSuite, RulerFilesAsPublished) {
  const TemporaryFolder folder;
  std::filesystem::create_directories(folder.Path("niah_single_1"));
  const Json robin = {
      {"index", 0}, {"input", std::string(kFacts) + "\nThe code of Robin is"}, {"outputs", {"386"}}};
  Json both = robin;  // half of what is expected is said
  both["outputs"] = {"386", "not said"};
  folder.Write("niah_single_1/validation.jsonl", robin.dump() + "\n" + both.dump() + "\n");
  const Json parts = {
      {"input", kFacts}, {"answer_prefix", " The code of Nina is"}, {"outputs", {"nothing", "417"}}};
  folder.Write("qa_1.jsonl", parts.dump() + "\n\n");
  for (const char* protocol : {"prompt", "ask"}) {
    const Json rows = Suite("ruler", {"--data", folder.Path(""), "--protocol", protocol, "--policy", "full",
                                      "--policy", "streaming:budget=8"});
    ASSERT_EQ(rows.size(), 4u);
    EXPECT_EQ(rows[0]["kind"], "niah_single_1");
    EXPECT_EQ(rows[0]["metric"], "match-all");
    EXPECT_EQ(rows[0]["scores"], (Json{1.0, 0.5})) << protocol;
    EXPECT_EQ(rows[0]["score"], 0.75);
    EXPECT_LT(rows[1]["score"], 0.75);
    EXPECT_LT(rows[1]["cache_bytes"], rows[0]["cache_bytes"]);
    EXPECT_EQ(rows[2]["kind"], "qa_1");
    EXPECT_EQ(rows[2]["metric"], "match-part");
    EXPECT_EQ(rows[2]["score"], 1.0);
    EXPECT_EQ(rows[2]["protocol"], protocol);
  }
  EXPECT_EQ(Suite("ruler", {"--data", folder.Path(""), "--tasks", "qa_1"}).size(), 1u);
}

// The metric and the length of an answer are those of the task; the form of the prompt is the file's.
TEST(ToolSuite, LongBenchFilesAsPublished) {
  const TemporaryFolder folder;
  const Json line = {{"input", "The code of Robin is"},
                     {"context", kFacts},
                     {"answers", {"none", "386"}},
                     {"all_classes", nullptr},
                     {"dataset", "qasper"},
                     {"language", "en"},
                     {"_id", "1"},
                     {"length", 20}};
  Json classes = line;
  classes["all_classes"] = {"386", "38", "417"};  // "38" is part of the right one and does not count
  classes["answers"] = {"386"};
  std::filesystem::create_directories(folder.Path("config"));
  std::filesystem::create_directories(folder.Path("data"));
  folder.Write("config/dataset2prompt.json",
               Json{{"qasper", "{{x}} {context} {input}"}, {"trec", "{context} {input}"}}.dump());
  folder.Write("config/dataset2maxlen.json", Json{{"qasper", 6}, {"trec", 4}}.dump());
  folder.Write("data/qasper.jsonl", line.dump() + "\n");
  folder.Write("data/trec.jsonl", classes.dump() + "\n");
  folder.Write("data/dureader.jsonl", line.dump() + "\n");
  const Json rows = Suite("longbench", {"--data", folder.Path("data"), "--policy", "full"});
  ASSERT_EQ(rows.size(), 2u);
  // F1 of the answer that was given, which is known from a plain run of the same prompt.
  const std::string said = Continuation("{x} " + std::string(kFacts) + " The code of Robin is", 6);
  ASSERT_EQ(said.rfind(" 386.", 0), 0u) << said;
  std::istringstream words(said);
  int n = 0;
  for (std::string word; words >> word;) n += word != "The" && word != "a" && word != "the";
  EXPECT_EQ(rows[0]["metric"], "f1");
  EXPECT_NEAR(rows[0]["score"].get<double>(), 2.0 / (n + 1), 1e-9) << said;
  EXPECT_EQ(rows[1]["metric"], "classification");
  EXPECT_EQ(rows[1]["score"], 1.0);
  const ProgramResult segmented = RunKvc(
      {"eval", KVC_RECALL, "--suite", "longbench", "--data", folder.Path("data"), "--tasks", "dureader"});
  EXPECT_EQ(segmented.exit_code, 1);
  EXPECT_NE(segmented.err.find("Chinese words"), std::string::npos) << segmented.err;
}

TEST(ToolSuite, LongPromptsAreCutInTheMiddle) {
  const TemporaryFolder folder;
  std::string prose;
  for (int i = 0; i < 1200; ++i) prose += " It rained.";
  const Json line = {{"input", prose + "\nThe code of Robin is"}, {"outputs", {"386"}}};
  const Json rows = Suite("ruler", {"--data", folder.Write("qa_2.jsonl", line.dump() + "\n")});
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["slots_per_head"], 1024 - 32);
}

TEST(ToolSuite, MadeTasksRunAndRepeat) {
  const std::vector<std::string> more = {
      "--tasks", "niah_single_1,fwe", "--items", "1",        "--length",
      "700",     "--policy",          "full",    "--policy", "snapkv:budget=64,window=8"};
  const Json rows = Suite("ruler", more);
  ASSERT_EQ(rows.size(), 4u);
  for (const Json& row : rows) {
    EXPECT_EQ(row["n"], 1);
    EXPECT_GE(row["score"], 0.0);
    EXPECT_LE(row["score"], 1.0);
  }
  EXPECT_GT(rows[0]["slots_per_head"], 400);
  EXPECT_EQ(rows[1]["slots_per_head"], 64);
  const Json again = Suite("ruler", more);
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(again[i]["scores"], rows[i]["scores"]);
}

// A mean over what is left is no score of RULER.
TEST(ToolSuite, TasksThatAreLeftOutAreNamed) {
  const ProgramResult result = RunKvc({"eval", KVC_RECALL, "--suite", "ruler", "--items", "1", "--length",
                                       "1024", "--policy", "snapkv:budget=64,window=8", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  for (const char* task :
       {"niah_single_2 (--essay)", "niah_single_3 (--essay)", "niah_multikey_1 (--essay)",
        "niah_multivalue (--essay)", "niah_multiquery (--essay)", "qa_1 (--questions)", "qa_2 (--questions)"})
    EXPECT_NE(result.err.find(task), std::string::npos) << task << " in\n" << result.err;
  EXPECT_EQ(result.err.find("vt ("), std::string::npos) << result.err;
}

TEST(ToolSuite, TasksAreMadeOfQuestionSets) {
  const TemporaryFolder folder;
  const Json rows = Suite(
      "ruler", {"--questions", folder.Write("dev.json", kvc::SquadText(8, 5)), "--questions",
                folder.Write("hotpot.json", kvc::HotpotText(3)), "--tasks", "qa_1,qa_2", "--items", "2"});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["kind"], "qa_1");
  EXPECT_EQ(rows[1]["kind"], "qa_2");
  for (const Json& row : rows) {
    EXPECT_EQ(row["metric"], "match-part");
    EXPECT_EQ(row["n"], 2);
    EXPECT_GT(row["slots_per_head"], 500) << "there is room for 1,024 tokens";
  }
}

TEST(ToolSuite, NeedlesByDepthAndLength) {
  constexpr size_t kItems = kvc::test::Fewer(1, 2);
  const std::vector<std::string> more = {"--lengths", "320,300", "--items", std::to_string(kItems),
                                         "--policy",  "full"};
  const Json rows = Suite("needle", more);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["kind"], "needle_300");
  EXPECT_EQ(rows[1]["kind"], "needle_320");
  EXPECT_LT(rows[1]["slots_per_head"], 320);
  for (const Json& row : rows) {
    ASSERT_EQ(row["scores"].size(), 11 * kItems);
    ASSERT_EQ(row["depths"].size(), 11 * kItems);
    for (size_t i = 0; i < 11 * kItems; ++i)
      EXPECT_EQ(row["depths"][i], static_cast<double>(i / kItems) / 10);
  }
  std::vector<std::string> arguments = {"eval",    KVC_RECALL, "--suite",  "needle",
                                        "--limit", "1",        "--policy", "full"};
  if (!kvc::test::kUnderQemu) arguments.insert(arguments.end(), {"--policy", "streaming:budget=32"});
  const ProgramResult run = RunKvc(arguments);
  EXPECT_EQ(run.exit_code, 0) << run.err;
  for (const char* said : {"full, score by depth and tokens of the prompt", "depth  512  1024", "\n100 %"})
    EXPECT_NE(run.out.find(said), std::string::npos) << said << run.out;
}

TEST(ToolSuite, WhatIsWrongIsSaid) {
  const TemporaryFolder folder;
  const auto expect = [&](const std::vector<std::string>& more, int exit_code, const std::string& message) {
    std::vector<std::string> arguments = {"eval", KVC_RECALL};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult run = RunKvc(arguments);
    EXPECT_EQ(run.exit_code, exit_code) << run.err;
    EXPECT_NE(run.err.find(message), std::string::npos) << run.err;
  };
  expect({"--suite", "longbench"}, 2, "needs --data");
  expect({"--suite", "glue"}, 2, "--suite");
  expect({"--suite", "ruler", "--length", "2000"}, 2, "the model's context has 1024 tokens");
  expect({"--suite", "ruler", "--tasks", "niah_single_2"}, 1,
         "niah_single_2 hides its needles in a text: --essay FILE");
  expect({"--suite", "ruler", "--tasks", "chess"}, 2, "--tasks chess");
  expect({"--suite", "ruler", "--data", folder.Path("none")}, 1, "none");
  expect({"--suite", "ruler", "--data", folder.Write("vt.jsonl", "{\"input\": \"a\"}\n")}, 1,
         "vt.jsonl:1: expected at least one answer under \"outputs\"");
  expect({"--suite", "ruler", "--data", folder.Write("cwe.jsonl", "{\"input\": 1, \"outputs\": [\"x\"]}\n")},
         1, "cwe.jsonl:1: expected a text under \"input\"");
  expect({"--suite", "longbench", "--data", folder.Path("vt.jsonl")}, 1, "dataset2prompt.json");
  expect({"--items", "3", "--data", "x"}, 2, "--suite");
  expect({"--suite", "needle", "--data", "x"}, 2, "it has no --data");
  expect({"--suite", "needle", "--lengths", "300,2000"}, 2,
         "--lengths 2000: the model's context has 1024 tokens");
  expect({"--suite", "needle", "--lengths", "20"}, 1, "does not fit 20 tokens");
  expect({"--suite", "ruler", "--tasks", "qa_2"}, 1, "asks the questions of HotpotQA: --questions FILE");
  expect({"--suite", "ruler", "--questions", folder.Write("odd.json", "{}")}, 1,
         "odd.json: expected \"data\"");
  expect({"--suite", "needle", "--questions", folder.Path("odd.json")}, 2, "no --questions");
}

}  // namespace
