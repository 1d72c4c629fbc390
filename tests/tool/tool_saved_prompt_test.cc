// kvc run --save and --load: a prompt that was read and compressed once, asked by another process.
#include <gtest/gtest.h>

#include "tests/tool/run_program.h"

namespace {

using Json = nlohmann::json;

constexpr char kPolicy[] = "reconstruct:budget=64", kAda[] = " The code of Ada is",
               kNina[] = " The code of Nina is";

class SavedPrompt : public testing::Test {
 protected:
  SavedPrompt() : file_(folder_.Path("prompt.kvcs")) {
    std::string facts;
    for (const char* name : {"Ada", "Nina", "Omar", "Ruth"})
      facts += std::string(" The code of ") + name + " is " + std::to_string(100 + 37 * name[0]) + ".";
    for (int i = 0; i < 3; ++i) text_ += facts;
  }
  std::vector<std::string> Whole(const std::vector<std::string>& more) const {
    std::vector<std::string> all = {"run", KVC_RECALL, "--prompt", text_, "--policy", kPolicy};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  const TemporaryFolder folder_;
  const std::string file_;
  std::string text_;
};

TEST_F(SavedPrompt, IsAnsweredAsIfItHadJustBeenRead) {
  const Json at_once =
      RunKvc(Whole({"--ask", kAda, "--ask", kNina, "--max-tokens", "6", "--save", file_, "--json"})).Json();
  ASSERT_EQ(at_once["saved"], file_);
  ASSERT_EQ(at_once["answers"].size(), 2u);
  const Json later = RunKvc({"run", KVC_RECALL, "--load", file_, "--ask", kAda, "--ask", kNina,
                             "--max-tokens", "6", "--json"})
                         .Json();
  EXPECT_EQ(later["answers"], at_once["answers"]);
  EXPECT_EQ(later["n_prompt"], at_once["n_prompt"]);
  for (const char* of_cache : {"n_slots", "n_slots_full", "cache_bytes", "cache_bytes_full"})
    EXPECT_EQ(later["stats_after_prompt"][of_cache], at_once["stats_after_prompt"][of_cache]) << of_cache;
  const ProgramResult streamed =
      RunKvc({"run", KVC_RECALL, "--load", file_, "--ask", kAda, "--max-tokens", "6", "--stats"});
  EXPECT_EQ(streamed.out, kAda + at_once["answers"][0]["text"].get<std::string>() + "\n");
  EXPECT_NE(streamed.err.find("of the loaded file"), std::string::npos) << streamed.err;
}

// The prompt alone is no question: nothing is answered, and the file is the same.
TEST_F(SavedPrompt, ComesWithoutAnAnswer) {
  const ProgramResult saved = RunKvc(Whole({"--save", file_}));
  EXPECT_EQ(saved.exit_code, 0) << saved.err;
  EXPECT_EQ(saved.out, "");
  EXPECT_NE(saved.err.find(file_), std::string::npos) << saved.err;
  const std::string bytes = ReadWholeFile(file_);
  const Json again = RunKvc(Whole({"--save", file_, "--json"})).Json();
  EXPECT_EQ(again["tokens"], Json::array());
  EXPECT_EQ(again["answers"], Json::array());
  EXPECT_EQ(again["stats"]["n_answer"], 0);
  EXPECT_EQ(ReadWholeFile(file_).size(), bytes.size());
  // It goes on as text too.
  const Json going_on = RunKvc({"run", KVC_RECALL, "--load", file_, "--max-tokens", "4", "--json"}).Json();
  EXPECT_EQ(going_on["tokens"], RunKvc(Whole({"--max-tokens", "4", "--json"})).Json()["tokens"]);
}

TEST_F(SavedPrompt, WhatTheFileHasIsNotSaidAgain) {
  ASSERT_EQ(RunKvc(Whole({"--save", file_})).exit_code, 0);
  for (const std::vector<std::string>& more :
       std::vector<std::vector<std::string>>{{"--prompt", "x"},
                                             {"--policy", "full"},
                                             {"--context", "100"},
                                             {"--on-full", "slide"},
                                             {"--compare"},
                                             {"--save", folder_.Path("other")}}) {
    std::vector<std::string> arguments = {"run", KVC_RECALL, "--load", file_, "--ask", kAda};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const ProgramResult refused = RunKvc(arguments);
    EXPECT_EQ(refused.exit_code, 2) << more[0];
    EXPECT_NE(refused.err.find(more[0]), std::string::npos) << refused.err;
  }
  EXPECT_EQ(RunKvc(Whole({"--save", file_, "--compare"})).exit_code, 2);
  const ProgramResult nothing = RunKvc(Whole({"--save", file_, "--max-tokens", "5"}));
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_NE(nothing.err.find("--max-tokens is for answers"), std::string::npos) << nothing.err;
}

TEST_F(SavedPrompt, FilesThatAreNoneAreToldApart) {
  EXPECT_EQ(RunKvc(Whole({"--save", KVC_RECALL})).exit_code, 2) << "it would replace the model";
  const ProgramResult none = RunKvc({"run", KVC_RECALL, "--load", folder_.Path("none"), "--ask", kAda});
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(none.err.find(folder_.Path("none")), std::string::npos) << none.err;
  ASSERT_EQ(RunKvc(Whole({"--save", file_})).exit_code, 0);
  std::string bytes = ReadWholeFile(file_);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  folder_.Write("prompt.kvcs", bytes);
  const ProgramResult damaged = RunKvc({"run", KVC_RECALL, "--load", file_, "--ask", kAda});
  EXPECT_EQ(damaged.exit_code, 1);
  EXPECT_NE(damaged.err.find("damaged"), std::string::npos) << damaged.err;
}

// Room is a matter of the file: what could be said instead is said where it was saved.
TEST_F(SavedPrompt, IsAsFullAsItWasSaved) {
  const Json about = RunKvc(Whole({"--save", file_, "--json"})).Json();
  const int n = about["n_prompt"].get<int>();
  ASSERT_EQ(RunKvc(Whole({"--save", file_, "--context", std::to_string(n + 8)})).exit_code, 0);
  const ProgramResult full =
      RunKvc({"run", KVC_RECALL, "--load", file_, "--ask", kAda, "--max-tokens", "20"});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_NE(full.err.find("--context N where it was saved"), std::string::npos) << full.err;
}

}  // namespace
