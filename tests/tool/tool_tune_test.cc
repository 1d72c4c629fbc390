// kvc tune on the recall model: what it promises, finds and writes; data that is too little; messages.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/emulated.h"
#include "tests/tool/run_program.h"
#include "tests/tool/short_tasks.h"

namespace {

using Json = nlohmann::json;

const char* const kTasks = KVC_SOURCE_DIR "/models/recall/tasks/train/niah.jsonl";  // 40, one question each

// All of them, short.
const std::string& Tasks() {
  static const std::string path = ShortTasks(kTasks, 40);
  return path;
}

std::vector<std::string> Tune(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"tune", KVC_RECALL, "--data", Tasks()};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::string Join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += word + " ";
  return text;
}

// A promise is about draws that know nothing of each other: a context counts once.
TEST(ToolTune, TheSameContextIsNoSecondDraw) {
  const std::vector<std::string> more = {"--policy", "full",    "--max-loss", "35%",   "--confidence",
                                         "90%",      "--limit", "20",         "--json"};
  const ProgramResult once = RunKvc(Tune(more));
  std::vector<std::string> again = more;
  again.insert(again.end(), {"--data", Tasks()});
  const ProgramResult twice = RunKvc(Tune(again));
  ASSERT_EQ(once.exit_code, 0) << once.err;
  ASSERT_EQ(twice.exit_code, 0) << twice.err;
  EXPECT_EQ(once.Json()["n_tune"], twice.Json()["n_tune"]);
  EXPECT_NE(twice.err.find("20 tasks have the context of another"), std::string::npos) << twice.err;
}

// Who reads what is printed may close the pipe: what was found is in its file by then.
TEST(ToolTune, TheFileIsWrittenBeforeAnythingIsPrinted) {
  const TemporaryFolder folder;
  // More than fits into what is kept back until a program ends.
  const std::vector<std::string> words =
      Tune({"--policy", "full", "--policy", "streaming", "--budgets",
            "64,56,48,40,36,32,30,28,26,24,22,20,18,16", "--max-loss", "35%", "--confidence", "90%",
            "--limit", "20", "--json", "--out", folder.Path("policy.txt")});
  RunShell("(sleep 0.1; \"$@\") | true", words);
  EXPECT_EQ(ReadWholeFile(folder.Path("policy.txt")).substr(0, 4), "full");
}

// full:kv=int8 is a candidate as it stands; streaming has dropped the code at every budget tried here.
TEST(ToolTune, FindsTheSmallestThatKeepsThePromise) {
  const TemporaryFolder folder;
  constexpr int kAll = kvc::test::Fewer(20, 40), kHeldOut = kAll * 3 / 5, kTuned = kAll - kHeldOut;
  const std::vector<std::string> arguments =
      Tune({"--policy", "streaming", "--policy", "full:kv=int8", "--policy", "full", "--budgets", "64,32",
            "--max-loss", "35%", "--confidence", "90%", "--held-out", "0.6", "--limit", std::to_string(kAll),
            "--json", "--out", folder.Path("policy.txt")});
  const ProgramResult run = RunKvc(arguments);
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const Json result = run.Json();
  EXPECT_EQ(result["n_tune"], kTuned);
  EXPECT_EQ(result["n_held_out"], kHeldOut);
  EXPECT_EQ(result["bound"], "binomial");
  EXPECT_DOUBLE_EQ(result["level"].get<double>(), 0.1 / 3);
  EXPECT_EQ(ReadWholeFile(folder.Path("policy.txt")), result["policy"].get<std::string>() + "\n");
  EXPECT_NE(result["policy"].get<std::string>().find("kv=int8"), std::string::npos);
  ASSERT_EQ(result["candidates"].size(), 4u);
  const Json &large = result["candidates"][0], &small = result["candidates"][1],
             &full = result["candidates"][3];
  EXPECT_EQ(large["verdict"], "failed");
  EXPECT_EQ(small["verdict"], "not tested");
  EXPECT_GT(large["cache_bytes"], small["cache_bytes"]);
  EXPECT_LT(large["n_tasks"], kTuned);  // given up as soon as it could not pass any more
  EXPECT_EQ(full["loss"], 0.0);
  EXPECT_NEAR(full["p_value"].get<double>(), std::pow(0.65, kTuned), 1e-12);
  EXPECT_LT(result["chosen"]["cache_bytes"], full["cache_bytes"]);
  const Json& held = result["held_out"];
  EXPECT_EQ(held["n_tasks"], kHeldOut);
  EXPECT_LE(held["violation_rate_low"], held["violation_rate"]);
  EXPECT_GE(held["violation_rate_high"], held["violation_rate"]);
  EXPECT_GE(held["accuracy_full"].get<double>(), 0.9);
  EXPECT_EQ(RunKvc(arguments).Json()["candidates"], result["candidates"]);
}

// The divergence of eight bits is small and not zero: where the limit lies decides.
TEST(ToolTune, DivergenceIsJudgedByItsLimit) {
  const auto tune = [](const char* limit) {
    return RunKvc(Tune({"--metric", "kl", "--policy", "full:kv=int8", "--max-kl", limit, "--limit", "12",
                        "--max-loss", "0.3", "--confidence", "0.9", "--held-out", "0", "--json"}));
  };
  const ProgramResult wide = tune("1"), none = tune("0");
  ASSERT_EQ(wide.exit_code, 0) << wide.err;
  EXPECT_EQ(wide.Json()["chosen"]["loss"], 0.0);
  EXPECT_GT(wide.Json()["chosen"]["kl"], 0.0);
  EXPECT_EQ(wide.Json()["n_held_out"], 0);
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_TRUE(none.Json()["policy"].is_null());
  EXPECT_NE(none.err.find("no budget passed"), std::string::npos) << none.err;
  EXPECT_NE(none.err.find("Larger --budgets, another policy or a larger --max-loss may pass"),
            std::string::npos)
      << none.err;
}

// Budgets with a unit say what they are of.
TEST(ToolTune, BudgetsAreSlotsSharesOrBytes) {
  const struct {
    const char *budgets, *first, *second;
  } cases[] = {{"16,32", "budget=32", "budget=16"},
               {"5%,20%", "budget_ratio=0.2", "budget_ratio=0.05"},
               {"60KiB,100000B", "budget_bytes=100000", "budget_bytes=61440"}};
  for (const auto& c : cases) {
    const ProgramResult run = RunKvc(Tune({"--policy", "streaming", "--policy", "full", "--budgets",
                                           c.budgets, "--max-loss", "60%", "--limit", "12", "--json"}));
    ASSERT_EQ(run.exit_code, 0) << run.err;
    const Json candidates = run.Json()["candidates"];
    ASSERT_EQ(candidates.size(), 3u) << c.budgets;
    EXPECT_NE(candidates[0]["policy"].get<std::string>().find(c.first), std::string::npos) << candidates[0];
    EXPECT_NE(candidates[1]["policy"].get<std::string>().find(c.second), std::string::npos) << candidates[1];
  }
}

// The table for people has what the JSON has.
TEST(ToolTune, TheTextSaysWhatTheJsonDoes) {
  const std::vector<std::string> arguments = Tune({"--policy", "streaming", "--policy", "full", "--budgets",
                                                   "16,32", "--max-loss", "60%", "--limit", "12"});
  std::vector<std::string> for_programs = arguments;
  for_programs.push_back("--json");
  const ProgramResult text = RunKvc(arguments), json = RunKvc(for_programs);
  ASSERT_EQ(text.exit_code, 0) << text.err;
  const Json outcome = json.Json();
  const std::string chosen = outcome["chosen"]["policy"];
  const auto number = [](const Json& of) { return std::to_string(of.get<int>()); };
  const std::string wanted[] = {
      number(outcome["n_tune"]) + " tasks to tune on, " + number(outcome["n_held_out"]) + " held out, seed 1",
      "streaming:budget=32 ", "streaming:budget=16 ", "\n" + chosen + "\n",
      "Held out: " + number(outcome["held_out"]["violations"]) + " of " +
          number(outcome["held_out"]["n_tasks"]) + " violated"};
  for (const std::string& words : wanted)
    EXPECT_NE(text.out.find(words), std::string::npos) << words << "\n" << text.out;
}

TEST(ToolTune, SaysWhatItCannotPromise) {
  const struct {
    std::vector<std::string> more;
    int exit_code;
    const char* message;
  } cases[] = {
      {{"--policy", "snapkv", "--policy", "cokv"},
       1,
       "28 tasks to tune on are too few: 95 % confidence in a loss of at most 1 % with 2 policies needs 368 "
       "even when nothing is lost, 525 with those held out"},
      {{"--policy", "snapkv:windo=3", "--max-loss", "30%"}, 2, "no option \"windo\""},
      {{"--policy", "snapkv:window=8", "--budgets", "4", "--max-loss", "30%"}, 2, "snapkv:window=8"},
      {{"--policy", "snapkv", "--max-loss", "120%"}, 2, "not in the range"},
      {{"--policy", "snapkv", "--max-loss", "x%"}, 2, "no number"},
      {{"--policy", "snapkv", "--metric", "bleu"}, 2, "--metric"},
      {{"--policy", "snapkv", "--max-loss", "30%", "--out", Tasks()}, 2, "the output must be another file"},
      {{}, 2, "--policy"}};
  for (const auto& c : cases) {
    const ProgramResult run = RunKvc(Tune(c.more));
    EXPECT_EQ(run.exit_code, c.exit_code) << Join(c.more) << run.err;
    EXPECT_NE(run.err.find(c.message), std::string::npos) << Join(c.more) << run.err;
  }
}

}  // namespace
