// What kvc says when asked for help, and when asked for nonsense.
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "tests/support/process_memory.h"
#include "tests/tool/run_program.h"

namespace {

// Those that the program's help lists, so that a new one is looked at without a line here.
std::vector<std::string> Commands() {
  const ProgramResult result = RunKvc({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  std::istringstream lines(result.out.substr(std::min(result.out.find("Subcommands:"), result.out.size())));
  std::vector<std::string> commands;
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    // Summaries go on in lines that begin further to the right.
    if (line.rfind("  ", 0) == 0 && line.size() > 2 && line[2] != ' ' && words >> name)
      commands.push_back(name);
  }
  return commands;
}

TEST(ToolHelp, ListsEveryCommand) {
  const std::vector<std::string> commands = Commands();
  for (const char* known : {"convert", "run", "score-merge", "demo"})
    EXPECT_EQ(std::count(commands.begin(), commands.end(), known), 1) << known;
}

TEST(ToolHelp, EveryCommandHasAnExample) {
  for (const std::string& command : Commands()) {
    const ProgramResult result = RunKvc({command, "--help"});
    EXPECT_EQ(result.exit_code, 0) << command;
    EXPECT_NE(result.out.find("Example:\n  kvc " + command), std::string::npos) << result.out;
  }
}

TEST(ToolHelp, Version) {
  const ProgramResult result = RunKvc({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.rfind("kvc ", 0), 0u) << result.out;
}

TEST(ToolHelp, LicensesAreTheFiles) {
  const std::string source = KVC_SOURCE_DIR "/";
  EXPECT_EQ(RunKvc({"licenses"}).out,
            ReadWholeFile(source + "NOTICE") + "\nLICENSE\n=======\n" + ReadWholeFile(source + "LICENSE"));
}

TEST(ToolHelp, VerboseSaysWhatTheLibraryDoes) {
  const std::vector<std::string> run = {"run",          KVC_RECALL, "--prompt", "A secret is told here.",
                                        "--max-tokens", "3",        "--policy", "snapkv:budget=5,window=2",
                                        "--context",    "100000"};
  std::vector<std::string> verbose = run, before = run;
  verbose.push_back("--verbose");
  before.insert(before.begin(), "-v");
  const ProgramResult silent = RunKvc(run), told = RunKvc(verbose), again = RunKvc(before);
  EXPECT_EQ(told.exit_code, 0) << told.err;
  EXPECT_EQ(told.out, silent.out);
  EXPECT_EQ(again.err, told.err);
  const auto count = [](const std::string& text, const std::string& word) {
    int n = 0;
    for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++n;
    return n;
  };
  EXPECT_EQ(count(told.err, "kvc: info: opened "), 1) << told.err;
  EXPECT_EQ(count(told.err, "kvc: warning: max_tokens=100000"), 1) << told.err;
  EXPECT_EQ(count(told.err, "kvc: debug: compressed "), 1) << told.err;
  EXPECT_EQ(count(told.err, "secret"), 0) << told.err;
  EXPECT_EQ(count(silent.err, "compressed"), 0) << silent.err;
}

using CommandLines = std::vector<std::vector<std::string>>;

void ExpectWrongUse(const CommandLines& wrong) {
  for (const std::vector<std::string>& arguments : wrong) {
    const ProgramResult result = RunKvc(arguments);
    std::string line;
    for (const std::string& argument : arguments) line += " " + argument;
    EXPECT_EQ(result.exit_code, 2) << "kvc" << line << "\n" << result.err;
    EXPECT_EQ(result.out, "") << line;
    EXPECT_NE(result.err, "") << line;
  }
}

TEST(ToolUsage, WrongUseIsExitCodeTwo) {
  ExpectWrongUse({
      {},
      {"nonsense"},
      {"run"},
      {"run", KVC_RECALL, "--no-such-option"},
      {"run", KVC_RECALL, "--prompt", "a", "--prompt-file", "b"},
      {"run", KVC_RECALL, "--temperature", "-1"},
      {"run", KVC_RECALL, "--max-tokens", "many"},
      {"run", KVC_RECALL, "--memory-limit", "12 parsecs"},
      {"run", KVC_RECALL, "--on-full", "explode"},
      {"run", KVC_RECALL, "--prompt", "a", "--policy", "snapkv:window=many"},
      {"kept", KVC_RECALL, "--prompt", "a"},
      {"plan", KVC_RECALL},
      {"plan", KVC_RECALL, "--context", "0"},
      {"plan", KVC_RECALL, "--context", "67108864"},
      {"plan", KVC_RECALL, "--context", "900", "--max-tokens", "2147483647"},
      {"score-plot", "s.json", "--out", "s.svg", "--model", KVC_RECALL, "--budget", "9", "--context",
       "67108865"},
      {"eval", KVC_RECALL},
      {"eval", KVC_RECALL, "--data", "x", "--json", "--csv"},
      {"bench", KVC_RECALL, "--prompt", "0"},
      {"bench", KVC_RECALL, "--batch", "0"},
      {"bench", KVC_RECALL, "--batch", "4,257"},
      {"bench", KVC_RECALL, "--batch", "2", "--gen", "0"},
      {"bench", KVC_RECALL, "--arrive", "100"},
      {"bench", KVC_RECALL, "--batch", "256", "--arrive", "100"},
      {"convert", "only-one"},
      {"run", KVC_RECALL, "--seed", "99999999999999999999"},
      {"run", KVC_RECALL, "--max-tokens", "1e3"},
      {"run", KVC_RECALL, "--max-tokens", "0x10"},
      {"run", KVC_RECALL, "--max-tokens", "010"},  // ten to some, eight to others
      {"run", KVC_RECALL, "--max-tokens", "99999999999999999999"},
      {"run", KVC_RECALL, "--threads", "1025"},
      {"run", KVC_RECALL, "--threads", "-1"},
      {"run", KVC_RECALL, "--temperature", "nan"},
      {"run", KVC_RECALL, "--top-p", "nan"},
      {"run", KVC_RECALL, "--top-p", "1.5"},
      {"eval", KVC_RECALL, "--text", KVC_SOURCE_DIR "/README.md", "--window", "1"},
      {"eval", KVC_RECALL, "--text", KVC_SOURCE_DIR "/README.md", "--window", "1025"},
      {"score", KVC_RECALL, "--data", "x", "--out", "o", "--validation", "nan"},
      {"score", KVC_RECALL, "--data", "x", "--out", "o", "--min-spearman", "nan"},
      {"score", KVC_RECALL, "--data", "x", "--out", "o", "--samples", "2000000000"},
      {"score", KVC_RECALL, "--data", "x", "--out", "o", "--shard", "99999999999/99999999999", "--samples",
       "9"},
      {"score", KVC_RECALL, "--data", "x", "--out", "o", "--sizes", "3,3"},
      {"score", KVC_RECALL, "--data", "x", "--out", "o", "--choose-alpha", "16", "--alphas", "24"},
      {"score", KVC_RECALL, "--data", "x", "--out", "o", "--method", "headkv-r2", "--choose-alpha", "16"},
      {"score", KVC_RECALL, "--data", "x", "--out", "o", "--method", "headkv-r2", "--mask-experiment",
       "both"},
      {"score-merge", "--average", "a.json", "b.json", "--out", "o", "--log", "l"},
      {"score-merge", "--average", "a.json", "b.json", "--out", "o", "--variant", "both"},
      {"score-merge", "--average", "a.json", "b.json", "--out", "o", "--standardise"},
      {"score-merge", "--average", "a.json", "b.json", "--out", "o", "--with-offset"},
      {"eval", KVC_RECALL, "--data", "x", "--explain", "--csv"},
  });
}

// What would have no effect is not what was meant, and what is not there neither.
TEST(ToolUsage, OptionsThatDoNotGoTogetherAreWrongUse) {
  ExpectWrongUse({
      {"eval", KVC_RECALL, "--data", "x", "--window", "64"},
      {"eval", KVC_RECALL, "--data", "x", "--windows", "4"},
      {"eval", KVC_RECALL, "--data", "x", "--text-protocol", "prefix"},
      {"eval", KVC_RECALL, "--text", "x", "--windows", "4", "--limit", "2"},
      {"eval", KVC_RECALL, "--suite", "ruler", "--lengths", "512"},
      {"eval", KVC_RECALL, "--suite", "ruler", "--data", "x", "--items", "4"},
      {"eval", KVC_RECALL, "--suite", "longbench", "--data", "x", "--essay", "y"},
      {"bench", KVC_RECALL, "--tokens", "x", "--prompt", "64"},
      {"convert", KVC_RECALL, "o", "--group", "64"},
      {"tune", KVC_RECALL, "--data", "x", "--policy", "snapkv", "--max-kl", "0.1"},
      {"tune", KVC_RECALL, "--data", "x", "--policy", "snapkv", "--budgets", "64,5%"},
      {"tune", KVC_RECALL, "--data", "x", "--policy", "snapkv", "--budgets", "5%,300KiB"},
      {"tune", KVC_RECALL, "--data", "x", "--policy", "snapkv", "--budgets", "5%", "--budget-key", "budget"},
      {"tune", KVC_RECALL, "--data", "x", "--policy", "snapkv", "--budgets", "many"},
      {"run", KVC_RECALL, "--prompt", "a", "--device", "gpu"},
      {"inspect", KVC_RECALL, "--device", "cpu:1"},
      {"demo", "--model", KVC_RECALL, "--tasks", KVC_SOURCE_DIR "/samples/data/recall_demo.jsonl", "--json",
       "--stories", KVC_RECALL},
  });
}

// The message names the file and says what is wrong with it; nothing goes to stdout.
void ExpectFailure(const std::vector<std::string>& arguments, const std::string& words) {
  const ProgramResult result = RunKvc(arguments);
  EXPECT_EQ(result.exit_code, 1) << words;
  EXPECT_EQ(result.out, "") << words;
  EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
}

TEST(ToolFailure, FilesThatAreNotThere) {
  ExpectFailure({"run", "/no/such.kvc"}, "/no/such.kvc");
  ExpectFailure({"inspect", "/no/such.kvc"}, "/no/such.kvc");
  const TemporaryFolder folder;
  ExpectFailure({"verify", folder.Path("")}, ": is a folder; kvc convert makes a model file of it");
  ExpectFailure({"convert", "/no/such", "/tmp/never.kvc"}, "/no/such");
  ExpectFailure({"run", KVC_RECALL, "--prompt-file", "/no/prompt.txt"}, "/no/prompt.txt: No such file");
  ExpectFailure({"eval", KVC_RECALL, "--data", "/no/tasks.jsonl"}, "/no/tasks.jsonl: No such file");
}

TEST(ToolFailure, FilesWithOtherThingsInThem) {
  const TemporaryFolder folder;
  const std::string text = folder.Write("text.kvc", "this is no model file, however long one makes it");
  ExpectFailure({"verify", text}, text);
  ExpectFailure({"kept", KVC_RECALL, "--policy", "full", "--tokens", folder.Write("a.json", "[1, 2")},
                "a.json: not valid JSON");
  ExpectFailure({"kept", KVC_RECALL, "--policy", "full", "--tokens", folder.Write("b.json", "[1, -2]")},
                "b.json: -2 is no token id");
  ExpectFailure({"kept", KVC_RECALL, "--policy", "full", "--tokens", folder.Write("c.json", "[1, 2.5]")},
                "c.json: 2.5 is no token id");
  ExpectFailure({"kept", KVC_RECALL, "--policy", "full", "--tokens", folder.Write("d.json", "{\"x\": 1}")},
                "d.json: expected an array");
  ExpectFailure({"kept", KVC_RECALL, "--policy", "full", "--tokens", folder.Write("e.json", "[]")},
                "e.json: holds no token");
  ExpectFailure({"kept", KVC_RECALL, "--policy", "full", "--tokens", folder.Write("f.json", "[\"a\"]")},
                "f.json: element 0 is not a number");
  ExpectFailure({"kept", KVC_RECALL, "--policy", "full", "--tokens", folder.Write("g.json", "[[1, 2], [3]]")},
                "g.json: element 0 is not a number");
  const std::vector<std::string> table = {"run", KVC_RECALL, "--prompt", "a", "--policy", "table", "--table"};
  const auto with = [&](const std::string& file) {
    std::vector<std::string> arguments = table;
    arguments.push_back(file);
    return arguments;
  };
  ExpectFailure({"run", KVC_RECALL, "--prompt", "a", "--policy", "table"}, "--table FILE gives them");
  ExpectFailure(with(folder.Write("h.json", "[[1, 2], [3]]")), "h.json: rows of unequal length");
  ExpectFailure(with(folder.Write("i.json", "[1, [2, 3]]")), "i.json: rows of unequal length");
  ExpectFailure(with(folder.Write("j.json", "{\"slots\": []}")), "j.json: holds no number of slots");
  ExpectFailure({"run", KVC_RECALL, "--prompt", "a", "--policy", "cokv:budget=16", "--head-scores",
                 folder.Write("k.json", "[1e39]")},
                "k.json: 1e+39 is too large");
  ExpectFailure({"score-merge", "--out", folder.Path("o"), folder.Write("l.log", "one\ntwo\n")},
                "l.log: no log of head scoring");
}

TEST(ToolFailure, TaskFilesNameTheLine) {
  const TemporaryFolder folder;
  const std::string good =
      "{\"context\": \"c\", \"questions\": [{\"question\": \"q\", \"answer\": \"a\"}]}\n";
  ExpectFailure({"eval", KVC_RECALL, "--data", folder.Write("a.jsonl", good + "{oops\n")},
                "a.jsonl:2: not a JSON object");
  ExpectFailure({"eval", KVC_RECALL, "--data", folder.Write("b.jsonl", good + "\n{\"context\": \"c\"}\n")},
                "b.jsonl:3: expected a list of questions");
  ExpectFailure({"eval", KVC_RECALL, "--data", folder.Write("c.jsonl", "{\"context\": 1}\n")},
                "c.jsonl:1: expected a text under \"context\"");
  ExpectFailure({"eval", KVC_RECALL, "--data", folder.Write("d.jsonl", "\n\n")}, "d.jsonl: holds no task");
}

TEST(ToolFailure, PoliciesSayWhatIsWrong) {
  const auto expect = [](const std::vector<std::string>& arguments, const std::string& words) {
    const ProgramResult result = RunKvc(arguments);
    EXPECT_EQ(result.exit_code, 2) << words;
    EXPECT_EQ(result.out, "") << words;
    EXPECT_NE(result.err.find(words), std::string::npos) << result.err;
  };
  expect({"run", KVC_RECALL, "--policy", "no-such-method:budget=4"}, "no-such-method");
  expect({"run", KVC_RECALL, "--policy", "snapkv:budgett=64"}, "budgett");
  expect(
      {"tune", KVC_RECALL, "--data", KVC_SOURCE_DIR "/samples/data/recall_demo.jsonl", "--policy", "nobody"},
      "nobody");
}

// What is printed before a failure stays on lines of its own.
TEST(ToolUsage, AFailureBeginsItsOwnLine) {
  const ProgramResult result = RunKvc({"run", KVC_RECALL, "--context", "1", "--max-tokens", "5"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out.back(), '\n');
  EXPECT_EQ(result.err.rfind("kvc: cannot generate", 0), 0u) << result.err;
}

TEST(ToolUsage, MistypedWordsAreAnswered) {
  const auto err = [](const std::vector<std::string>& arguments) {
    const ProgramResult result = RunKvc(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    return result.err;
  };
  const std::string unknown = err({"frobnicate"});
  EXPECT_NE(unknown.find("no command \"frobnicate\""), std::string::npos) << unknown;
  for (const std::string& command : Commands())
    EXPECT_NE(unknown.find(command), std::string::npos) << unknown;
  const char* const pairs[][2] = {
      {"pln", "plan"}, {"evla", "eval"}, {"conv", "convert"}, {"score_merge", "score-merge"}};
  for (const auto& [wrong, meant] : pairs) {
    const std::string text = err({wrong});
    EXPECT_NE(text.find("did you mean \"" + std::string(meant) + "\"?"), std::string::npos) << text;
  }
  const std::string option = err({"run", KVC_RECALL, "--polcy", "full"});
  EXPECT_NE(option.find("--polcy"), std::string::npos) << option;
  EXPECT_NE(option.find("did you mean --policy?"), std::string::npos) << option;
  const std::string global = err({"--versio"});
  EXPECT_NE(global.find("not expected: --versio; did you mean --version?"), std::string::npos) << global;
  EXPECT_NE(err({}).find("a command is needed"), std::string::npos);
  EXPECT_EQ(RunKvc({"help"}).out, RunKvc({"--help"}).out);
  EXPECT_EQ(RunKvc({"help", "plan"}).out, RunKvc({"plan", "--help"}).out);
}

// Text from files and arguments must not move the cursor of whoever reads the message.
TEST(ToolUsage, MessagesAreSafeToPrint) {
  const ProgramResult result = RunKvc({"inspect", "/no/\x1b[31mred\xff\r"});
  EXPECT_NE(result.err.find("/no/\\x1b[31mred\\xff\\x0d"), std::string::npos) << result.err;
}

TEST(ToolOutput, LinesFitATerminal) {
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{"methods"}, {"methods", "cokv"}, {"methods", "spindlekv"}}) {
    const std::string out = RunKvc(arguments).out + "\n";
    for (size_t begin = 0, end; begin < out.size(); begin = end + 1) {
      end = out.find('\n', begin);
      EXPECT_LE(end - begin, 120u) << out.substr(begin, end - begin);
    }
  }
}

TEST(ToolOutput, WhatCannotBeWrittenIsAnError) {
  const std::string cannot = "could not write all of the output";
  for (const char* script :
       {"\"$1\" methods > /dev/full", "\"$1\" methods >&-", "\"$1\" --help > /dev/full",
        "\"$1\" --version >&-", "\"$1\" inspect \"$2\" --json > /dev/full",
        "\"$1\" run \"$2\" --prompt a --max-tokens 100000 --context 200000 > /dev/full",
        "\"$1\" run \"$2\" --prompt a --json > /dev/full",
        "(trap '' PIPE; \"$1\" run \"$2\" --prompt a --max-tokens 100000 --context 200000; "
        "exit $?) | true; exit ${PIPESTATUS[0]}"}) {
    const ProgramResult result = RunShell(script, {KVC_RECALL});
    EXPECT_EQ(result.exit_code, 1) << script << result.err;
    EXPECT_NE(result.err.find(cannot), std::string::npos) << script << result.err;
  }
  // A reader that had enough is no error of ours: as any filter, the program ends of SIGPIPE and says
  // nothing.
  const ProgramResult enough = RunShell(
      "\"$1\" run \"$2\" --prompt a --max-tokens 100000 --context 1024 --on-full evict | head -c 1 > "
      "/dev/null; exit ${PIPESTATUS[0]}",
      {KVC_RECALL});
  EXPECT_EQ(enough.exit_code, 128 + 13);
  EXPECT_EQ(enough.err, "");
  const ProgramResult closed = RunShell("\"$1\" run \"$2\" --prompt-file - <&-", {KVC_RECALL});
  EXPECT_EQ(closed.exit_code, 1);
  EXPECT_NE(closed.err.find("standard input: cannot be read"), std::string::npos) << closed.err;
  EXPECT_EQ(RunShell("\"$1\" methods 2>&- > /dev/null", {}).exit_code, 0);
}

// Whatever is not there in the end, the message is about memory or threads. From half a MiB above what the
// program needs to start: between the two the C++ runtime has no memory for exceptions (its own pool, taken
// at the start).
TEST(ToolFailure, LittleMemoryIsSaid) {
  if (kvc::test::kSanitized) GTEST_SKIP() << "sanitizers need address space of their own";
  if (kvc::test::kUnderQemu)
    GTEST_SKIP() << "the limit is the emulator's, which waits for ever without memory";
  const auto limited = [](int kib, const std::string& arguments) {
    return RunShell("ulimit -v " + std::to_string(kib) + "; exec \"$1\" " + arguments, {KVC_RECALL});
  };
  int least = 4000;
  while (least < 100000 && limited(least, "--version").exit_code > 2) least += 500;
  int n_failed = 0;
  for (int kib = least + 500; kib <= least + 30000; kib += 2000) {
    const ProgramResult result = limited(kib, "run \"$2\" --prompt a --max-tokens 2");
    if (result.exit_code == 0 || result.exit_code == 127) continue;  // enough; not even to start
    ++n_failed;
    EXPECT_EQ(result.exit_code, 1) << kib << result.err;
    EXPECT_NE(result.err.find("memory"), std::string::npos) << kib << result.err;
  }
  EXPECT_GT(n_failed, 0);
}

TEST(ToolFailure, PoliciesWithoutHeadScoresNameOneThatWorks) {
  const TemporaryFolder folder;
  const std::string model = folder.Path("stories.kvc");
  ASSERT_EQ(RunKvc({"convert", KVC_SOURCE_DIR "/models/stories260k/stories260K.bin", model}).exit_code, 0);
  for (const char* policy :
       {"cokv:budget=16", "cokv:budget=64,window=4", "cokv-document:budget=64", "cokv:budget_ratio=0.5"}) {
    for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
             {"run", model, "--prompt", "Once upon a time", "--max-tokens", "2"},
             {"plan", model, "--context", "100"}}) {
      std::vector<std::string> arguments = command;
      arguments.insert(arguments.end(), {"--policy", policy});
      const ProgramResult result = RunKvc(arguments);
      EXPECT_EQ(result.exit_code, 1);
      const size_t at = result.err.find("try --policy ");
      ASSERT_NE(at, std::string::npos) << result.err;
      const size_t begin = at + std::string("try --policy ").size();
      arguments.back() = result.err.substr(begin, result.err.find_first_of(" \n", begin) - begin);
      EXPECT_EQ(RunKvc(arguments).exit_code, 0) << arguments.back();
    }
  }
}

TEST(ToolPlan, SaysWhenAContextIsBeyondTraining) {
  const std::vector<std::vector<std::string>> beyond = {
      {"plan", KVC_RECALL, "--context", "5000"},
      {"run", KVC_RECALL, "--prompt", "a", "--max-tokens", "2", "--context", "5000"},
      {"kept", KVC_RECALL, "--prompt", "a", "--policy", "full", "--context", "5000"}};
  for (std::vector<std::string> arguments : beyond) {
    EXPECT_NE(RunKvc(arguments).err.find("beyond the 1,024 that this model was trained for"),
              std::string::npos);
    for (std::string& argument : arguments) argument = argument == "5000" ? "900" : argument;
    EXPECT_EQ(RunKvc(arguments).err, "");
  }
  // Positions that are counted in the cache stay where the model was trained.
  EXPECT_EQ(RunKvc({"plan", KVC_RECALL, "--context", "5000", "--policy", "streaming:budget=64"}).err, "");
  EXPECT_NE(RunKvc({"plan", KVC_RECALL, "--context", "900", "--max-tokens", "500", "--policy",
                    "snapkv:budget=64,pos_mode=incache"})
                .err.find("beyond the 1,024"),
            std::string::npos)
      << "steps keep everything";
  EXPECT_EQ(RunKvc({"plan", KVC_RECALL, "--context", "5000", "--json"}).Json()["beyond_trained_context"],
            true);
  const nlohmann::json within = RunKvc({"plan", KVC_RECALL, "--context", "900", "--json"}).Json();
  EXPECT_EQ(within["beyond_trained_context"], false);
  EXPECT_EQ(within["trained_context"], 1024);
}

// An answer that was asked for is planned for; without one as much as the model was trained for.
TEST(ToolPlan, AnAnswerThatWasAskedForIsPlanned) {
  const auto planned = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"plan", KVC_RECALL, "--context", "1000", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunKvc(arguments).Json();
  };
  const nlohmann::json plain = planned({}), longer = planned({"--max-tokens", "3000"});
  EXPECT_EQ(plain["context"], 1024);
  EXPECT_EQ(longer["context"], 4000);
  EXPECT_EQ(longer["beyond_trained_context"], true);
  EXPECT_GT(longer["cache_bytes_end"], plain["cache_bytes_end"]);
}

// What nothing is drawn with is said, and said once.
TEST(ToolUsage, OptionsOfDrawingNeedATemperature) {
  const auto told = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"run", KVC_RECALL, "--prompt", "a", "--max-tokens", "2"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = RunKvc(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  EXPECT_EQ(told({"--top-k", "4"}),
            "kvc: note: --top-k changes nothing without --temperature: the likeliest token is taken\n");
  EXPECT_NE(told({"--seed", "4", "--draft", "2"}).find("--seed changes nothing"), std::string::npos);
  EXPECT_EQ(told({"--seed", "4", "--temperature", "0.5"}), "");
  EXPECT_EQ(told({"--seed", "4", "--temperature", "0"}), "");
  EXPECT_EQ(told({"--repeat-penalty", "1.1"}), "");
}

// Scores and slots that no policy of the command takes; nothing is said where one may.
TEST(ToolUsage, TablesThatNobodyTakes) {
  const TemporaryFolder folder;
  const std::string scores = KVC_SOURCE_DIR "/models/recall/head_scores.json";
  std::string slots = "[[12,12,12,12]";
  for (int layer = 1; layer < 6; ++layer) slots += ",[12,12,12,12]";
  const std::string table = folder.Write("slots.json", slots + "]");
  const auto told = [](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"run",          KVC_RECALL, "--prompt", "a",
                                          "--max-tokens", "2",        "--policy"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult result = RunKvc(arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  EXPECT_EQ(told({"snapkv:budget=64", "--head-scores", scores}),
            "kvc: note: --head-scores changes nothing with --policy snapkv:budget=64\n");
  EXPECT_EQ(told({"cokv:budget=64", "--table", table}),
            "kvc: note: --table changes nothing with --policy cokv:budget=64\n");
  EXPECT_EQ(told({"cokv:budget=64", "--head-scores", scores}), "");
  EXPECT_EQ(told({"snapkv:budget=64,allocator=cokv", "--head-scores", scores}), "");
  EXPECT_EQ(told({"snapkv:budget=64,kv=mixed", "--head-scores", scores}), "");
  EXPECT_EQ(told({"table:window=8", "--table", table}), "");
  EXPECT_EQ(told({"full", "--head-scores", scores, "--draft", "2", "--draft-policy", "cokv:budget=32"}), "");
}

TEST(ToolUsage, OptionsOfSomethingElseAreRefused) {
  const std::string scores = KVC_SOURCE_DIR "/models/recall/head_scores.json";
  const TemporaryFolder folder;
  const std::string text = folder.Write("text.txt", "The code of Ada is 215."), out = folder.Path("out.svg");
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"eval", KVC_RECALL, "--text", text, "--protocol", "prompt"}, "--protocol is for --data or --suite"},
      {{"score-plot", scores, "--out", out, "--model", KVC_RECALL}, "--model is for --budget"},
      {{"score-plot", scores, "--out", out, "--context", "100"}, "--context is for --budget"},
      {{"tokenize", KVC_RECALL}, "tokenize needs --text TEXT or --file FILE"}};
  for (const auto& [arguments, message] : cases) {
    const ProgramResult result = RunKvc(arguments);
    EXPECT_EQ(result.exit_code, 2) << result.err;
    EXPECT_NE(result.err.find(message), std::string::npos) << result.err;
  }
  EXPECT_EQ(RunKvc({"tokenize", KVC_RECALL, "--text", ""}).exit_code, 0) << "an empty text is one";
}

// What cannot be done is said before the work.
TEST(ToolFailure, BeforeTheWork) {
  const std::string tasks = KVC_SOURCE_DIR "/samples/data/recall_demo.jsonl";
  ExpectFailure({"demo", "--model", KVC_RECALL, "--tasks", tasks, "--stories", "/no/stories.kvc"},
                "/no/stories.kvc");
  ExpectFailure({"bench", KVC_RECALL, "--policy", "h2o:budget=24", "--prompt", "64", "--gen", "4", "--draft",
                 "2", "--repeat", "100000"},
                "drafts are not looked at");
  const TemporaryFolder folder;
  std::string longest;
  for (int i = 0; i < 2000; ++i) longest += "7 ";
  const std::string first = ReadWholeFile(tasks).substr(0, ReadWholeFile(tasks).find('\n') + 1);
  const std::string too_long =
      "{\"context\": \"" + longest + "\", \"questions\": [{\"question\": \"q\", \"answer\": \"a\"}]}\n";
  ExpectFailure({"demo", "--model", KVC_RECALL, "--tasks", folder.Write("long.jsonl", too_long)},
                "longer than the model's context");
  const ProgramResult rest = RunKvc(
      {"demo", "--model", KVC_RECALL, "--json", "--tasks", folder.Write("both.jsonl", too_long + first)});
  EXPECT_EQ(rest.exit_code, 0) << rest.err;
  EXPECT_NE(rest.err.find("1 task is longer"), std::string::npos) << rest.err;
  ExpectFailure({"eval", KVC_RECALL, "--data", folder.Write("long.jsonl", too_long)},
                "of 1024 tokens: shorten it, or convert the model with --rope");
}

TEST(ToolFailure, VerifyForMachines) {
  const ProgramResult result = RunKvc({"verify", "/no/such.kvc", "--json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.Json()["good"], false);
  EXPECT_EQ(result.Json()["status"], "IO");
}

}  // namespace
