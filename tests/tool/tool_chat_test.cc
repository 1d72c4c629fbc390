// kvc chat, typed by a script.
#include <gtest/gtest.h>
#include <signal.h>

#include <sstream>
#include <string>
#include <vector>

#include "tests/tool/run_program.h"

namespace {

using Json = nlohmann::json;

// What the program answers to these lines.
ProgramResult Chat(const std::string& model, const std::string& lines,
                   const std::vector<std::string>& options = {}) {
  std::vector<std::string> arguments = {lines, model};
  arguments.insert(arguments.end(), options.begin(), options.end());
  return RunShell("kvc=$1 lines=$2; shift 2; printf '%s' \"$lines\" | \"$kvc\" chat \"$@\"", arguments);
}

// --json: a line a turn.
std::vector<Json> Turns(const ProgramResult& result) {
  std::vector<Json> turns;
  std::istringstream lines(result.out);
  for (std::string line; std::getline(lines, line);) turns.push_back(Json::parse(line));
  return turns;
}

// recall as a model that was trained on turns: only the marks matter here.
std::string WithTurns(const TemporaryFolder& folder) {
  const ProgramResult made = RunShell(
      "mkdir \"$3/hf\" && cp \"$2\"/models/recall/* \"$3/hf\" 2>/dev/null; "
      "printf '{}' > \"$3/hf/tokenizer_config.json\" && "
      "cp \"$2\"/tests/data/templates/chatml.jinja \"$3/hf/chat_template.jinja\" && "
      "\"$1\" convert \"$3/hf\" \"$3/turns.kvc\"",
      {KVC_SOURCE_DIR, folder.Path("")});
  EXPECT_EQ(made.exit_code, 0) << made.err;
  return folder.Path("turns.kvc");
}

TEST(Chat, ATurnIsWhatItsMarksSay) {
  const TemporaryFolder folder;
  const std::string model = WithTurns(folder);
  const ProgramResult chat =
      Chat(model, "hello\nmore\n", {"--json", "--max-tokens", "9", "--system", "be kind"});
  ASSERT_EQ(chat.exit_code, 0) << chat.err;
  const std::vector<Json> turns = Turns(chat);
  ASSERT_EQ(turns.size(), 2u);
  const std::string first =
      "<|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";
  const ProgramResult run = RunKvc({"run", model, "--json", "--max-tokens", "9", "--prompt", first});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(turns[0]["tokens"], run.Json()["tokens"]);
  EXPECT_EQ(turns[0]["user"], "hello");
  EXPECT_FALSE(turns[0]["stopped"]);
}

// kvc run of the folder hf, with the cache of converted models in `cache`.
ProgramResult RunWithCache(const TemporaryFolder& folder, const std::string& model,
                           const std::string& cache) {
  return RunShell("KVC_CACHE=\"$3\" \"$1\" run \"$2\" --prompt 'The code of Ada is' --max-tokens 4 --json",
                  {model, folder.Path(cache)});
}

TEST(Chat, AFolderIsConvertedOnceIntoTheCache) {
  const TemporaryFolder folder;
  const std::string made = WithTurns(folder), source = folder.Path("hf");
  const ProgramResult first = RunWithCache(folder, source, "deep/cache");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_NE(first.err.find("converting"), std::string::npos) << first.err;
  const ProgramResult second = RunWithCache(folder, source, "deep/cache");
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_EQ(second.err.find("converting"), std::string::npos) << second.err;
  const ProgramResult file =
      RunKvc({"run", made, "--prompt", "The code of Ada is", "--max-tokens", "4", "--json"});
  EXPECT_EQ(first.Json()["tokens"], file.Json()["tokens"]);
  EXPECT_EQ(second.Json()["tokens"], file.Json()["tokens"]);
  // A source that has changed is converted again, in place of what it was.
  RunShell("touch -d '2001-01-01' \"$2/config.json\"", {source});
  const ProgramResult third = RunWithCache(folder, source, "deep/cache");
  EXPECT_NE(third.err.find("converting"), std::string::npos) << third.err;
  EXPECT_EQ(RunShell("ls \"$2\" | wc -l", {folder.Path("deep/cache")}).out, "1\n");
  const ProgramResult chat =
      RunShell("echo hello | KVC_CACHE=\"$3\" \"$1\" chat \"$2\" --max-tokens 3 --json",
               {source, folder.Path("deep/cache")});
  ASSERT_EQ(chat.exit_code, 0) << chat.err;
  EXPECT_EQ(chat.err.find("converting"), std::string::npos) << chat.err;
}

TEST(Chat, AGgufFileIsConvertedOnceIntoTheCache) {
  const TemporaryFolder folder;
  const std::string source = std::string(KVC_SOURCE_DIR) + "/tests/data/reference_gguf/smollm3.gguf";
  for (const bool first : {true, false}) {
    const ProgramResult run =
        RunShell("XDG_CACHE_HOME=\"$3\" KVC_CACHE= \"$1\" run \"$2\" --tokens \"$4\" --max-tokens 2",
                 {source, folder.Path("xdg"), folder.Write("ids.json", "[1, 2, 3]")});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.err.find("converting") != std::string::npos, first) << run.err;
  }
  EXPECT_EQ(RunShell("ls \"$2/kvc\" | wc -l", {folder.Path("xdg")}).out, "1\n");
}

TEST(Chat, ACacheThatCannotBeWrittenSaysWhereElse) {
  const TemporaryFolder folder;
  WithTurns(folder);
  folder.Write("plain", "a file");
  const ProgramResult run = RunWithCache(folder, folder.Path("hf"), "plain/cache");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_NE(run.err.find("KVC_CACHE names another folder"), std::string::npos) << run.err;
  const ProgramResult nowhere = RunShell(
      "env -u KVC_CACHE -u XDG_CACHE_HOME -u HOME \"$1\" run \"$2\" --prompt x", {folder.Path("hf")});
  EXPECT_EQ(nowhere.exit_code, 1);
  EXPECT_NE(nowhere.err.find("KVC_CACHE"), std::string::npos) << nowhere.err;
}

TEST(Chat, GoesOnWithTextWhereAModelHasNoTurns) {
  const ProgramResult chat = Chat(KVC_RECALL, "The code of Ada is\n and\n",
                                  {"--policy", "snapkv:budget=64,window=8", "--max-tokens", "8"});
  ASSERT_EQ(chat.exit_code, 0) << chat.err;
  EXPECT_NE(chat.err.find("not made for conversations"), std::string::npos) << chat.err;
  const ProgramResult sample =
      RunShell("printf 'The code of Ada is\\n and\\n' | \"$2\" \"$3\" snapkv:budget=64,window=8 8",
               {std::string(KVC_SAMPLES) + "/chat", KVC_RECALL});
  ASSERT_EQ(sample.exit_code, 0) << sample.err;
  EXPECT_EQ(chat.out, sample.out);
}

TEST(Chat, CommandsChangeWhatIsKept) {
  const TemporaryFolder folder;
  const std::string file = folder.Path("talk.kvcs"),
                    text = "The code of Robin is 386. The code of Ada is 215. The code of Robin is";
  const ProgramResult chat = Chat(
      KVC_RECALL,
      text + "\n/stats\n/policy snapkv:budget=24,window=4\n/trim 16\n/save " + file + "\n/stats\n/forget\n",
      {"--max-tokens", "6"});
  ASSERT_EQ(chat.exit_code, 0) << chat.err;
  for (const char* words :
       {"slots kept", "policy snapkv:budget=24,window=4 [", "given back", "saved to", "begun anew [0 tokens"})
    EXPECT_NE(chat.err.find(words), std::string::npos) << words << " is not in\n" << chat.err;
  const ProgramResult again = Chat(KVC_RECALL, "/stats\n and\n", {"--load", file, "--max-tokens", "6"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_FALSE(again.out.empty());
  const ProgramResult lost =
      Chat(KVC_RECALL, "/policy snapkv:budget=24,window=4\n", {"--load", file, "--max-tokens", "6"});
  EXPECT_EQ(lost.exit_code, 1);
  EXPECT_NE(lost.err.find("what was said before a loaded file is not known"), std::string::npos) << lost.err;
}

TEST(Chat, APolicyTellsTheConversationAgain) {
  const std::string text = "The code of Robin is 386. The code of Ada is 215. The code of Robin is";
  const ProgramResult changed =
      Chat(KVC_RECALL, text + "\n/policy snapkv:budget=4096\n and\n", {"--json", "--max-tokens", "6"});
  const ProgramResult same = Chat(KVC_RECALL, text + "\n and\n", {"--json", "--max-tokens", "6"});
  ASSERT_EQ(Turns(changed).size(), 2u) << changed.err;
  ASSERT_EQ(Turns(same).size(), 2u) << same.err;
  EXPECT_EQ(Turns(changed)[1]["text"], Turns(same)[1]["text"])
      << "a policy that drops nothing changes nothing";
}

TEST(Chat, WhatIsWrongIsSaid) {
  const std::vector<std::pair<std::string, std::string>> cases = {{"/sav x\n", "did you mean /save?"},
                                                                  {"/save\n", "a name is needed"},
                                                                  {"/trim\n", "/trim N"},
                                                                  {"/trim -3\n", "/trim N"},
                                                                  {"/trim 999999999999\n", "/trim N"},
                                                                  {"/load /no/such/file\n", "/no/such/file"},
                                                                  {"/policy snapkv:bugdet=3\n", "budget"},
                                                                  {"/policy nothing:budget=3\n", "nothing"}};
  for (const auto& [line, words] : cases) {
    const ProgramResult chat = Chat(KVC_RECALL, line);
    EXPECT_NE(chat.exit_code, 0) << line;
    EXPECT_NE(chat.err.find(words), std::string::npos) << line << chat.err;
  }
  const ProgramResult slash =
      Chat(KVC_RECALL, "//help\n/\nfirst \\\nsecond\n", {"--max-tokens", "1", "--json"});
  ASSERT_EQ(Turns(slash).size(), 3u) << slash.err;
  EXPECT_EQ(Turns(slash)[0]["user"], "/help");
  EXPECT_EQ(Turns(slash)[1]["user"], "/");
  EXPECT_EQ(Turns(slash)[2]["user"], "first \nsecond");
}

TEST(Chat, CtrlCStopsTheAnswerOnly) {
  const TemporaryFolder folder;
  const std::string lines = folder.Write("lines", "Once\n/quit\n");
  const ProgramResult chat = RunAndSignal(
      "/bin/sh",
      {"-c", "exec \"$0\" chat \"$1\" --max-tokens 1000000 --temperature 100 --seed 3 --context 200 < \"$2\"",
       KVC_PROGRAM, KVC_RECALL, lines},
      {SIGINT}, [](const std::string& out) { return !out.empty(); });
  EXPECT_EQ(chat.exit_code, 0) << chat.err;
  EXPECT_NE(chat.out.find("[stopped]"), std::string::npos) << chat.out.substr(0, 200);
}

}  // namespace
