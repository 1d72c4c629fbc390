// What kvc says when asked for help, and when asked for nonsense.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tool/run_program.h"

namespace {

const char* const kCommands[] = {"convert", "inspect", "verify", "tokenize", "run", "kept",
                                 "plan",    "methods", "eval",   "bench",    "demo"};

TEST(ToolHelp, ListsEveryCommand) {
  const ProgramResult result = RunKvc({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  for (const char* command : kCommands) EXPECT_NE(result.out.find(command), std::string::npos) << command;
}

TEST(ToolHelp, EveryCommandHasAnExample) {
  for (const char* command : kCommands) {
    const ProgramResult result = RunKvc({command, "--help"});
    EXPECT_EQ(result.exit_code, 0) << command;
    EXPECT_NE(result.out.find(std::string("Example:\n  kvc ") + command), std::string::npos) << result.out;
  }
}

TEST(ToolHelp, Version) {
  const ProgramResult result = RunKvc({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out.rfind("kvc ", 0), 0u) << result.out;
}

TEST(ToolUsage, WrongUseIsExitCodeTwo) {
  const std::vector<std::vector<std::string>> wrong = {
      {},
      {"nonsense"},
      {"run"},
      {"run", KVC_RECALL, "--no-such-option"},
      {"run", KVC_RECALL, "--prompt", "a", "--prompt-file", "b"},
      {"run", KVC_RECALL, "--temperature", "-1"},
      {"run", KVC_RECALL, "--max-tokens", "many"},
      {"run", KVC_RECALL, "--memory-limit", "12 parsecs"},
      {"run", KVC_RECALL, "--on-full", "explode"},
      {"kept", KVC_RECALL, "--prompt", "a"},
      {"plan", KVC_RECALL},
      {"plan", KVC_RECALL, "--context", "0"},
      {"eval", KVC_RECALL},
      {"eval", KVC_RECALL, "--data", "x", "--json", "--csv"},
      {"bench", KVC_RECALL, "--prompt", "0"},
      {"convert", "only-one"},
  };
  for (const std::vector<std::string>& arguments : wrong) {
    const ProgramResult result = RunKvc(arguments);
    std::string line;
    for (const std::string& argument : arguments) line += " " + argument;
    EXPECT_EQ(result.exit_code, 2) << "kvc" << line << "\n" << result.err;
    EXPECT_EQ(result.out, "") << line;
    EXPECT_NE(result.err, "") << line;
  }
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
  ExpectFailure({"run", KVC_RECALL, "--policy", "no-such-method:budget=4"}, "NOT_FOUND");
  ExpectFailure({"run", KVC_RECALL, "--policy", "snapkv:budgett=64"}, "budgett");
}

TEST(ToolFailure, VerifyForMachines) {
  const ProgramResult result = RunKvc({"verify", "/no/such.kvc", "--json"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.Json()["good"], false);
  EXPECT_EQ(result.Json()["status"], "IO");
}

TEST(ToolMethods, ListsAndDescribes) {
  const nlohmann::json list = RunKvc({"methods", "--json"}).Json();
  ASSERT_TRUE(list.is_array());
  std::vector<std::string> names;
  for (const nlohmann::json& method : list) {
    names.push_back(method.at("name"));
    EXPECT_FALSE(method.at("summary").get<std::string>().empty()) << names.back();
    EXPECT_TRUE(method.contains("source")) << names.back();
    for (const nlohmann::json& option : method.at("options")) {
      for (const char* key : {"key", "kind", "range", "default", "help"})
        EXPECT_TRUE(option.contains(key)) << names.back() << " " << key;
    }
  }
  for (const char* name : {"full", "streaming", "snapkv", "snapkv-w8", "ada-snapkv", "cokv"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
  }
  const ProgramResult one = RunKvc({"methods", "snapkv"});
  EXPECT_EQ(one.exit_code, 0);
  EXPECT_NE(one.out.find("window"), std::string::npos) << one.out;
  ExpectFailure({"methods", "no-such-method"}, "no method \"no-such-method\"");
}

}  // namespace
