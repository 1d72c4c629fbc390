// The files a user names: what is read within limits, from wherever; what is written, and what never is.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/tool/run_program.h"

namespace {

namespace fs = std::filesystem;

const std::string kScores = R"({"estimator":"ssv","dataset":"a","samples":3,"scores":[[1,2],[3,6]]})";
const std::string kTask =
    R"({"context":"Ada lives in Rome.","questions":[{"question":" Ada lives in","answer":" Rome."}]})";

// The command is refused before it does anything, and the input is as it was.
void ExpectSpared(const std::vector<std::string>& arguments, const std::string& input) {
  const std::string before = ReadWholeFile(input);
  ASSERT_NE(before, "") << input;
  const ProgramResult result = RunKvc(arguments);
  std::string line;
  for (const std::string& argument : arguments) line += " " + argument;
  EXPECT_NE(result.exit_code, 0) << line;
  EXPECT_NE(result.err.find("the output must be another file"), std::string::npos) << line << result.err;
  EXPECT_EQ(ReadWholeFile(input), before) << line;
}

TEST(ToolOutputs, ConvertSparesEveryFileOfItsSource) {
  const TemporaryFolder folder;
  const std::string model = folder.Path("model"), scores = folder.Path("scores.json");
  fs::copy(KVC_SOURCE_DIR "/models/recall", model, fs::copy_options::recursive);
  fs::copy_file(model + "/head_scores.json", scores);
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors",
                           "README.md", "head_scores.json", "../model/./config.json"}) {
    ExpectSpared({"convert", model, model + "/" + name}, model + "/" + name);
  }
  ExpectSpared({"convert", model, scores, "--head-scores", scores}, scores);
  const std::string logits = folder.Write("logits.json", "[]");
  ExpectSpared({"convert", model, logits, "--check-against", logits}, logits);
  // What it is checked against is read before the work.
  EXPECT_EQ(
      RunKvc({"convert", model, folder.Path("new"), "--check-against", folder.Path("nobody")}).exit_code, 1);
  EXPECT_FALSE(fs::exists(folder.Path("new")));
  fs::create_symlink("model/config.json", folder.Path("link"));
  fs::create_symlink("model", folder.Path("folder"));
  fs::create_hard_link(model + "/tokenizer.json", folder.Path("second name"));
  ExpectSpared({"convert", model, folder.Path("link")}, model + "/config.json");
  ExpectSpared({"convert", model, folder.Path("folder/config.json")}, model + "/config.json");
  ExpectSpared({"convert", folder.Path("folder"), model + "/config.json"}, model + "/config.json");
  ExpectSpared({"convert", model, folder.Path("second name")}, model + "/tokenizer.json");
  // A model file is at home there, also when it is made again.
  for (int i = 0; i < 2; ++i) EXPECT_EQ(RunKvc({"convert", model, model + "/model.kvc"}).exit_code, 0);

  const std::string llama2c = folder.Path("llama2c");
  fs::copy(KVC_SOURCE_DIR "/models/stories260k", llama2c);
  ExpectSpared({"convert", llama2c + "/stories260K.bin", llama2c + "/stories260K.bin"},
               llama2c + "/stories260K.bin");
  ExpectSpared({"convert", llama2c + "/stories260K.bin", llama2c + "/tok512.bin"}, llama2c + "/tok512.bin");
  const std::string gguf = folder.Path("model.gguf");
  fs::copy_file(KVC_SOURCE_DIR "/tests/data/convert/llama_q4_0.gguf", gguf);
  ExpectSpared({"convert", gguf, gguf}, gguf);
}

TEST(ToolOutputs, ScoringSparesWhatItReads) {
  const TemporaryFolder folder;
  const std::string model = folder.Path("model.kvc"), tasks = folder.Write("tasks.jsonl", kTask + "\n"),
                    scores = folder.Write("scores.json", kScores), out = folder.Path("out");
  fs::copy_file(KVC_RECALL, model);
  const auto score = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all = {"score", model, "--data", tasks, "--samples", "60"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  for (const std::string& input : {model, tasks}) {
    ExpectSpared(score({"--out", input}), input);
    ExpectSpared(score({"--out", out, "--log", input}), input);
    ExpectSpared(score({"--out", out, "--log", input, "--resume"}), input);
    ExpectSpared(score({"--out", input, "--method", "headkv-r2"}), input);
  }
  ExpectSpared({"score", model, "--data", tasks, "--scores", scores, "--choose-alpha", "16", "--out", scores},
               scores);
  ExpectSpared({"score-merge", "--average", scores, "--out", scores}, scores);
  ExpectSpared({"score-merge", "--average", scores, "--out", out, "--log", scores}, scores);
  for (const std::string& input : {model, scores})
    ExpectSpared({"score-plot", scores, "--model", model, "--budget", "16", "--out", input}, input);
  const std::string kept = folder.Write("kept.log", "of an earlier day");
  const ProgramResult exists =
      RunKvc({"score-merge", folder.Write("a.log", "x"), "--out", out, "--log", kept});
  EXPECT_EQ(exists.exit_code, 2);
  EXPECT_NE(exists.err.find("kept.log exists"), std::string::npos) << exists.err;
  EXPECT_EQ(ReadWholeFile(kept), "of an earlier day");
  const ProgramResult twice = RunKvc(score({"--out", out, "--log", folder.Path("./out")}));
  EXPECT_EQ(twice.exit_code, 2);
  EXPECT_NE(twice.err.find("two outputs"), std::string::npos) << twice.err;
  EXPECT_FALSE(fs::exists(out));
}

TEST(ToolOutputs, EvaluationAndChatSpareWhatTheyRead) {
  const TemporaryFolder folder;
  const std::string model = folder.Path("model.kvc"), tasks = folder.Write("tasks.jsonl", kTask + "\n"),
                    scores = folder.Write("scores.json", kScores);
  fs::copy_file(KVC_RECALL, model);
  for (const std::string& input : {model, tasks, scores}) {
    ExpectSpared({"eval", model, "--data", tasks, "--explain", "--policy", "cokv:budget=64", "--head-scores",
                  scores, "--picture", input},
                 input);
  }
  const std::string own = folder.Path("own.json");  // of this model
  fs::copy_file(KVC_SOURCE_DIR "/models/recall/head_scores.json", own);
  for (const std::string& input : {model, own}) {
    const std::string before = ReadWholeFile(input);
    const ProgramResult chat =
        RunShell(R"(printf '/save %s\n' "$2" | "$1" chat "$3" --policy cokv:budget=64 --head-scores "$4")",
                 {input, model, own});
    EXPECT_NE(chat.err.find("the output must be another file"), std::string::npos) << chat.err;
    EXPECT_EQ(ReadWholeFile(input), before);
  }
}

// Scripts write --option="$VALUE".
TEST(ToolInputs, AnEmptyValueBehindAnEqualsSignIsOne) {
  const ProgramResult tokens = RunKvc({"tokenize", KVC_RECALL, "--text=", "--json"});
  EXPECT_EQ(tokens.exit_code, 0) << tokens.err;
  EXPECT_EQ(tokens.Json()["tokens"], nlohmann::json::array()) << tokens.out;
  const ProgramResult run = RunKvc({"run", KVC_RECALL, "--prompt=", "--max-tokens=2", "--json"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.Json()["stats"]["n_answer"], 2) << run.out;
}

// --resume goes on with a log; what is none stays as it is, with and without an end of its last line.
TEST(ToolOutputs, ResumeLeavesFilesAloneThatAreNoLog) {
  const TemporaryFolder folder;
  const std::string tasks = folder.Write("tasks.jsonl", kTask + "\n");
  for (const char* text : {"a diary without a last line end", "a diary\n", "{\"formal\"", "x"}) {
    const std::string notes = folder.Write("notes", text);
    const ProgramResult result = RunKvc({"score", KVC_RECALL, "--data", tasks, "--samples", "60", "--out",
                                         folder.Path("out"), "--log", notes, "--resume"});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_NE(result.err.find("notes"), std::string::npos) << result.err;
    EXPECT_EQ(ReadWholeFile(notes), text);
  }
}

TEST(ToolOutputs, LinksAreFollowedAlsoWhenTheyPointNowhereYet) {
  const TemporaryFolder folder;
  const std::string scores = folder.Write("scores.json", kScores);
  fs::create_directory(folder.Path("real"));
  for (const char* name : {"a", "b"}) {
    const std::string link = folder.Path(std::string("link_") + name), real = "real/" + std::string(name);
    fs::create_symlink(real, link);
    for (int i = 0; i < 2; ++i) {
      const ProgramResult made =
          RunKvc(std::string(name) == "a"
                     ? std::vector<std::string>{"score-plot", scores, "--out", link}
                     : std::vector<std::string>{"convert",
                                                KVC_SOURCE_DIR "/models/stories260k/stories260K.bin", link});
      EXPECT_EQ(made.exit_code, 0) << made.err;
      EXPECT_TRUE(fs::is_symlink(link));
      EXPECT_TRUE(fs::is_regular_file(folder.Path(real)));
    }
  }
}

TEST(ToolOutputs, PlacesWhereNothingCanBeWritten) {
  const TemporaryFolder folder;
  const std::string scores = folder.Write("scores.json", kScores);
  const struct {
    std::string out, message;
    int exit_code;
  } cases[] = {{"", "--out: the file name is empty", 2},
               {"-", "an output goes to a file", 2},
               {folder.Path("none/out"), "none/out: cannot create a file beside it: No such file", 1},
               {folder.Path(""), "is a directory", 1},
               {scores + "/out", "Not a directory", 1},
               {"/dev/full", "/dev/full: is not a regular file", 1}};
  for (const auto& c : cases) {
    const ProgramResult result = RunKvc({"score-plot", scores, "--out", c.out});
    EXPECT_EQ(result.exit_code, c.exit_code) << c.out << result.err;
    EXPECT_NE(result.err.find(c.message), std::string::npos) << result.err;
  }
}

// --prompt-file, --tokens, ...: every option that takes a file.
TEST(ToolInputs, AnEmptyNameIsAnError) {
  const std::vector<std::vector<std::string>> commands = {
      {"run", KVC_RECALL, "--prompt-file", ""},
      {"run", KVC_RECALL, "--tokens", ""},
      {"run", KVC_RECALL, "--prompt", "a", "--table", ""},
      {"run", KVC_RECALL, "--prompt", "a", "--head-scores", ""},
      {"run", ""},
      {"tokenize", KVC_RECALL, "--file", ""},
      {"bench", KVC_RECALL, "--tokens", ""},
      {"eval", KVC_RECALL, "--data", ""},
      {"eval", KVC_RECALL, "--text", ""},
      {"eval", KVC_RECALL, "--suite", "ruler", "--essay", ""},
      {"eval", KVC_RECALL, "--suite", "ruler", "--questions", ""},
      {"tune", KVC_RECALL, "--policy", "full", "--data", ""},
      {"tune", KVC_RECALL, "--policy", "full", "--data", "d", "--out", ""},
      {"demo", "--model", "", "--tasks", "x"},
      {"demo", "--model", KVC_RECALL, "--tasks", ""},
      {"demo", "--model", KVC_RECALL, "--tasks", "x", "--stories", ""},
      {"convert", "", "out"},
      {"convert", "in", ""},
      {"convert", "in", "out", "--head-scores", ""},
      {"score", KVC_RECALL, "--data", "", "--out", "o"},
      {"score", KVC_RECALL, "--data", "d", "--out", ""},
      {"score", KVC_RECALL, "--data", "d", "--out", "o", "--log", ""},
      {"score", KVC_RECALL, "--data", "d", "--out", "o", "--scores", ""},
      {"score-merge", "", "--out", "o"},
      {"score-plot", "", "--out", "o"},
      {"score-plot", "s", "--out", "o", "--model", ""},
  };
  for (const std::vector<std::string>& arguments : commands) {
    const ProgramResult result = RunKvc(arguments);
    std::string line;
    for (const std::string& argument : arguments) line += " '" + argument + "'";
    EXPECT_EQ(result.exit_code, 2) << line << result.err;
    EXPECT_NE(result.err.find("the file name is empty"), std::string::npos) << line << result.err;
  }
}

TEST(ToolInputs, PipesAreReadToTheirEnd) {
  const TemporaryFolder folder;
  const std::string text = " The code of Robin is 386";
  const std::string wanted = RunKvc({"tokenize", KVC_RECALL, "--text", text}).out;
  EXPECT_EQ(RunShell("printf '%s' \"$3\" | \"$1\" tokenize \"$2\" --file -", {KVC_RECALL, text}).out, wanted);
  EXPECT_EQ(RunShell("\"$1\" tokenize \"$2\" --file <(printf '%s' \"$3\")", {KVC_RECALL, text}).out, wanted);
  EXPECT_EQ(RunShell("\"$1\" tokenize \"$2\" --file <(printf '%s' ' The code'; sleep 0.3; printf '%s' ' of "
                     "Robin is 386')",
                     {KVC_RECALL})
                .out,
            wanted);
  EXPECT_EQ(RunShell("\"$1\" tokenize \"$2\" --file <(true)", {KVC_RECALL}).out, "\n");
  const std::string fifo = folder.Path("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(RunShell("(sleep 0.3; printf '%s' \"$4\" > \"$3\") & \"$1\" tokenize \"$2\" --file \"$3\"",
                     {KVC_RECALL, fifo, text})
                .out,
            wanted);
  // A file that is read for two things gives both from one reading.
  const std::string table = "[" + [] {
    std::string rows;
    for (int i = 0; i < 24; ++i) rows += std::string(i == 0 ? "" : ",") + "12";
    return rows;
  }() + "]";
  const ProgramResult eval = RunShell(
      "\"$1\" eval \"$2\" --data <(echo \"$3\") --policy table --policy table --table <(echo \"$4\") --json",
      {KVC_RECALL, kTask, table});
  ASSERT_EQ(eval.exit_code, 0) << eval.err;
  EXPECT_EQ(eval.Json()["table"].size(), 24u);
  const ProgramResult score =
      RunShell("\"$1\" score \"$2\" --data <(echo \"$3\") --samples 60 --out \"$4\" --utility nll",
               {KVC_RECALL, kTask, folder.Path("scores.json")});
  EXPECT_EQ(score.exit_code, 0) << score.err;
}

TEST(ToolInputs, WhatHasNoEndStopsAtTheLimit) {
  const TemporaryFolder folder;
  const std::vector<std::vector<std::string>> commands = {
      {"run", KVC_RECALL, "--prompt-file"},
      {"run", KVC_RECALL, "--tokens"},
      {"run", KVC_RECALL, "--prompt", "a", "--policy", "table", "--table"},
      {"run", KVC_RECALL, "--prompt", "a", "--policy", "cokv:budget=16", "--head-scores"},
      {"tokenize", KVC_RECALL, "--file"},
      {"eval", KVC_RECALL, "--data"},
      {"eval", KVC_RECALL, "--text"},
      {"score", KVC_RECALL, "--out", folder.Path("o"), "--data"},
      {"score-merge", "--out", folder.Path("o")},
      {"score-plot", "--out", folder.Path("o")},
      {"convert", KVC_SOURCE_DIR "/models/recall", folder.Path("o"), "--head-scores"},
  };
  for (std::vector<std::string> arguments : commands) {
    arguments.push_back("/dev/zero");
    const ProgramResult result = RunKvc(arguments);
    EXPECT_EQ(result.exit_code, 1) << arguments[0] << result.err;
    EXPECT_NE(result.err.find("/dev/zero: more than the limit of"), std::string::npos) << result.err;
  }
  const ProgramResult piped = RunShell("cat /dev/zero | \"$1\" run \"$2\" --prompt-file -", {KVC_RECALL});
  EXPECT_NE(piped.err.find("standard input: more than the limit of"), std::string::npos) << piped.err;
  const std::string fifo = folder.Path("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const ProgramResult lonely = RunKvc({"run", KVC_RECALL, "--prompt-file", fifo});
  EXPECT_NE(lonely.err.find("fifo: a named pipe that nobody writes to"), std::string::npos) << lonely.err;
  EXPECT_NE(RunKvc({"run", KVC_RECALL, "--prompt-file", folder.Path("")}).err.find("is a directory"),
            std::string::npos);
  for (const std::string& model : {std::string("/dev/zero"), fifo, folder.Path("")})
    EXPECT_EQ(RunKvc({"inspect", model}).exit_code, 1) << model;
}

// Names with blanks, quotes, line ends and bytes that are no UTF-8: files as others, printed so that they
// harm nobody, and written as JSON that can be read.
TEST(ToolInputs, NamesMayBeAnything) {
  const TemporaryFolder folder;
  const std::string odd = folder.Path("a \"b\"\n\xc3\xbc\xff\x1b[31m");
  fs::create_directory(odd);
  fs::copy(KVC_SOURCE_DIR "/models/recall", odd + "/\xff");
  const std::string model = odd + "/\xff.kvc", tasks = odd + "/ta\xffsk.jsonl", out = odd + "/o\xff.json";
  fs::copy_file(KVC_RECALL, folder.Path("plain.kvc"));
  folder.Write(tasks.substr(folder.Path("").size()), kTask + "\n");
  const std::vector<std::vector<std::string>> commands = {
      {"convert", odd + "/\xff", model},
      {"inspect", model},
      {"verify", model},
      {"eval", model, "--data", tasks},
      {"score", model, "--data", tasks, "--utility", "nll", "--samples", "60", "--out", out, "--name",
       "\xff"},
      {"score", model, "--data", tasks, "--utility", "nll", "--samples", "60", "--out", out, "--resume"},
      {"score-merge", out + ".log", "--out", odd + "/m.json"},
      {"score-merge", "--average", out, odd + "/m.json", "--out", odd + "/a.json"},
      {"score-plot", out, "--out", odd + "/s.svg", "--model", model, "--budget", "16"},
      {"convert", odd + "/\xff", model, "--head-scores", out},
  };
  for (const std::vector<std::string>& arguments : commands) {
    const ProgramResult result = RunKvc(arguments);
    EXPECT_EQ(result.exit_code, 0) << arguments[0] << result.err;
    for (const std::string& text : {result.out, result.err}) {
      EXPECT_EQ(text.find('\x1b'), std::string::npos) << arguments[0];
      EXPECT_EQ(text.find('\xff'), std::string::npos) << arguments[0];
    }
  }
  for (const char* json : {"/o\xff.json", "/m.json", "/a.json"})
    EXPECT_TRUE(nlohmann::json::accept(ReadWholeFile(odd + json))) << json;
  EXPECT_EQ(RunKvc({"inspect", model, "--json"}).Json()["config"]["name"], "\\xff");
}

TEST(ToolInputs, NestedAndHugeJsonIsRefusedWithItsPlace) {
  const TemporaryFolder folder;
  const std::string deep = folder.Write("deep.json", "\n" + std::string(200000, '['));
  const std::string objects = [&] {
    std::string text;
    for (int i = 0; i < 100000; ++i) text += "{\"a\":";
    return folder.Write("objects.json", text);
  }();
  const std::string huge = folder.Write("huge.json", "[1,\n 2, 1e400]");
  const std::vector<std::vector<std::string>> commands = {
      {"run", KVC_RECALL, "--tokens"},
      {"run", KVC_RECALL, "--policy", "table", "--table"},
      {"run", KVC_RECALL, "--policy", "cokv:budget=16", "--head-scores"},
      {"bench", KVC_RECALL, "--tokens"},
      {"eval", KVC_RECALL, "--data"},
      {"demo", "--model", KVC_RECALL, "--tasks"},
      {"score", KVC_RECALL, "--out", folder.Path("o"), "--data"},
      {"score-merge", "--average", "--out", folder.Path("o")},
      {"score-plot", "--out", folder.Path("o")},
      {"convert", KVC_SOURCE_DIR "/models/recall", folder.Path("o"), "--head-scores"},
  };
  for (const std::vector<std::string>& command : commands) {
    for (const std::string& file : {deep, objects, huge}) {
      std::vector<std::string> arguments = command;
      arguments.push_back(file);
      const ProgramResult result = RunKvc(arguments);
      EXPECT_EQ(result.exit_code, 1) << command[0] << " " << file << result.err;
      EXPECT_NE(result.err.find(fs::path(file).filename().string()), std::string::npos) << result.err;
      EXPECT_EQ(result.err.find("json.exception"), std::string::npos) << result.err;
    }
  }
  EXPECT_NE(
      RunKvc({"run", KVC_RECALL, "--tokens", deep}).err.find("line 2, column 65, byte 66: nested deeper"),
      std::string::npos);
  EXPECT_NE(
      RunKvc({"run", KVC_RECALL, "--tokens", huge}).err.find("line 2, column 10, byte 13: number overflow"),
      std::string::npos);
}

}  // namespace
