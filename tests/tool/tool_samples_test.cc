// The samples in C as their comments promise them.
#include <gtest/gtest.h>

#include <map>

#include "tests/tool/run_program.h"

namespace {

const std::string kRun = KVC_SAMPLES "/run", kSampler = KVC_SAMPLES "/sampler", kChat = KVC_SAMPLES "/chat",
                  kBatch = KVC_SAMPLES "/batch", kResend = KVC_SAMPLES "/resend";

// A small model that ends its stories, with a tokenizer that puts a space before the beginning of a text.
class Samples : public testing::Test {
 protected:
  void SetUp() override {
    const ProgramResult made =
        RunKvc({"convert", KVC_SOURCE_DIR "/models/stories260k/stories260K.bin", stories_});
    ASSERT_EQ(made.exit_code, 0) << made.err;
  }
  size_t CountTokens(const std::string& text, const std::string& option) const {
    return RunKvc({"tokenize", stories_, "--text", text, option, "--json"}).Json()["n_tokens"];
  }
  const TemporaryFolder folder_;
  const std::string stories_ = folder_.Path("stories.kvc");
};

TEST(SampleRun, AnswersAndSaysWhatFailed) {
  const ProgramResult result = RunProgram(
      kRun,
      {KVC_RECALL, "full", " The code of Robin is 386. The code of Nadia is 553. The code of Robin is", "5"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out.rfind(" 386.", 0), 0u) << result.out;
  for (const std::string& program : {kRun, kSampler}) {
    EXPECT_EQ(RunProgram(program, {"/no/such.kvc", "full", "a"}).exit_code, 1);
    EXPECT_EQ(RunProgram(program, {}).exit_code, 2);
  }
}

// The command behind "for example:" in the comment a sample begins with.
std::string ExampleOf(const std::string& sample) {
  const std::string code = ReadWholeFile(KVC_SOURCE_DIR "/samples/c/" + sample + ".c");
  std::string comment = code.substr(0, code.find("*/"));
  comment = comment.substr(comment.find("or example:") + 11);
  comment = comment.substr(0, comment.find("\n *\n"));  // to the end of its paragraph
  for (size_t at = 0; (at = comment.find("\n *", at)) != std::string::npos;) comment.replace(at, 3, "");
  return comment;
}

TEST(SampleExamples, AnswerWhatAReaderFindsRight) {
  const std::map<std::string, std::string> answers = {{"run", " 386.\n"},
                                                      {"chat", " 115.\n 417.\n"},
                                                      {"batch", "1: 115.\n2: 417.\n"},
                                                      {"resend", " 115.\n 417.\n"}};
  for (const auto& [sample, answer] : answers) {
    const std::string example = ExampleOf(sample);
    SCOPED_TRACE(example);
    const TemporaryFolder folder;
    const ProgramResult result =
        RunShell("cd \"$2\" && ln -s \"$3\" recall.kvc && PATH=\"$4:$PATH\" && " + example,
                 {folder.Path(""), KVC_RECALL, KVC_SAMPLES});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.out, answer);
  }
}

// Whatever was held before, answers are those of a session that reads the text at once; what is read of it is
// what is new, or all where the policy cannot go back.
TEST(SampleResend, ReadsWhatIsNew) {
  const std::string facts = "The code of Rosa is 115. The code of Nina is 417. The code of Omar is 902.",
                    ask = " The code of Nina is";
  const std::vector<std::string> texts = {facts,
                                          facts + ask,
                                          facts + ask,
                                          facts + ask + " 417. The code of Omar is",
                                          "The code of Rosa is 115. The code of Nina is 418." + ask,
                                          "Of Omar"};
  std::string lines;
  for (const std::string& text : texts) lines += text + "\n";
  const auto read = [&](const std::string& policy) {
    const TemporaryFolder folder;
    const ProgramResult result = RunShell("\"$2\" \"$3\" \"$4\" 5 < \"$5\"",
                                          {kResend, KVC_RECALL, policy, folder.Write("texts", lines)});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    std::string expected;
    std::vector<int> n_read, n_all;
    for (const std::string& text : texts) {
      const nlohmann::json alone =
          RunKvc({"run", KVC_RECALL, "--prompt", text, "--policy", policy, "--max-tokens", "5", "--json"})
              .Json();
      expected += alone["text"].get<std::string>() + "\n";
      n_all.push_back(alone["n_prompt"]);
    }
    EXPECT_EQ(result.out, expected) << policy;
    int n = 0, of = 0, at = 0;
    for (size_t i = 0; i < texts.size(); ++i) {
      EXPECT_EQ(std::sscanf(result.err.c_str() + at, "%d of %d tokens read\n", &n, &of), 2) << result.err;
      at = static_cast<int>(result.err.find('\n', static_cast<size_t>(at))) + 1;
      EXPECT_EQ(of, n_all[i]);
      n_read.push_back(n);
    }
    EXPECT_EQ(n_read[0], n_all[0]);
    return std::make_pair(n_read, n_all);
  };
  const auto [n_read, n_all] = read("full");
  EXPECT_LE(n_read[1], n_all[1] - n_all[0]);
  EXPECT_EQ(n_read[2], 1) << "the same text: its last token";
  EXPECT_LT(n_read[3], 12);
  EXPECT_LT(n_read[4], n_all[4]);
  const auto [of_h2o, all] = read("h2o:budget=2048");
  EXPECT_LE(of_h2o[1], all[1] - all[0]) << "it goes on as the answer did";
  EXPECT_EQ(of_h2o[2], all[2]) << "what it watched cannot be taken back";
}

TEST_F(Samples, ASamplerOfItsOwn) {
  const std::vector<std::string> prompt = {stories_, "snapkv:budget=48,window=8", "Once upon a time", "60"};
  const ProgramResult greedy = RunProgram(kRun, prompt);
  const auto sample = [&](const char* min_p, const char* seed) {
    std::vector<std::string> arguments = prompt;
    arguments.insert(arguments.end(), {min_p, seed});
    const ProgramResult result = RunProgram(kSampler, arguments);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out;
  };
  EXPECT_EQ(sample("1", "5"), greedy.out);  // only the likeliest is left
  EXPECT_EQ(sample("0.05", "5"), sample("0.05", "5"));
  EXPECT_NE(sample("0.05", "5"), sample("0.05", "6"));
}

// Models do: recall with NFC, which makes two characters of U+0958, and "." as a second stop token.
TEST(SampleModels, HaveMoreTokensThanBytesAndMoreStopTokensThanOne) {
  const TemporaryFolder folder;
  const std::string made = folder.Path("nfc.kvc");
  WriteRecallWithTwoStops(folder);
  nlohmann::json tokenizer = nlohmann::json::parse(ReadWholeFile(folder.Path("tokenizer.json")));
  tokenizer["normalizer"] = {{"type", "NFC"}};
  folder.Write("tokenizer.json", tokenizer.dump());
  ASSERT_EQ(RunKvc({"convert", folder.Path(""), made}).exit_code, 0);

  std::string letters;
  for (int i = 0; i < 20; ++i) letters += "\u0958";
  const std::string file = folder.Write("letters.txt", letters),
                    text = "The code of Robin is 386. The code of Robin is";
  for (const std::string& program : {kRun, kSampler}) {
    EXPECT_EQ(RunProgram(program, {made, "full", letters, "3"}).exit_code, 0) << program;
    const ProgramResult answer = RunProgram(program, {made, "full", text, "12", "1"});
    EXPECT_EQ(answer.out, " 386\n") << program << answer.err;
  }
  EXPECT_EQ(RunProgram(KVC_SAMPLES "/ask_document", {made, "full", file, letters}).exit_code, 0);
  for (const std::string& program : {kChat, kBatch})
    EXPECT_EQ(RunShell("yes \"$4\" | head -n 1 | \"$2\" \"$3\" full 3", {program, made, letters}).exit_code,
              0);
}

TEST_F(Samples, AChatGoesOnBehindItsAnswersAndTheirStopTokens) {
  const char* const script = "printf '%s\\n%s\\n' \"$4\" \"$5\" | \"$2\" \"$3\" full 400";
  const std::string first = "Once upon a time", second = " One day, Tim";
  const ProgramResult result = RunShell(script, {kChat, stories_, first, second});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const nlohmann::json alone =
      RunKvc({"run", stories_, "--prompt", first, "--max-tokens", "400", "--json"}).Json();
  const std::string story = alone["text"];
  EXPECT_EQ(result.out.substr(0, story.size() + 1), story + "\n");
  // The story ends by itself; the stop token is heard with the second turn, which gets no space before it.
  const size_t n_first = CountTokens(first, "--bos"), n_second = CountTokens(second, "--continue");
  ASSERT_LT(alone["tokens"].size(), 400u);
  const std::string line = std::to_string(n_first) + " tokens heard, " +
                           std::to_string(alone["tokens"].size()) + " said, stop token ";
  EXPECT_EQ(result.err.rfind(line, 0), 0u) << result.err;
  EXPECT_NE(result.err.find("\n" + std::to_string(n_first + 1 + n_second) + " tokens heard, "),
            std::string::npos)
      << result.err;
}

TEST_F(Samples, AChatHasNoEnd) {
  const char* const script = "yes ' and then' | head -n 120 | \"$2\" \"$3\" full 8 64 2>&1 >/dev/null";
  const ProgramResult result = RunShell(script, {kChat, stories_});
  ASSERT_EQ(result.exit_code, 0) << result.out;
  std::vector<std::string> caches;
  for (size_t at = 0; (at = result.out.find("cache ", at)) != std::string::npos; ++at)
    caches.push_back(result.out.substr(at, result.out.find('\n', at) - at));
  ASSERT_EQ(caches.size(), 120u);
  EXPECT_EQ(caches[119], caches[60]);  // 64 tokens since long
}

// Each line is answered as kvc run answers it, however many are at work, and in as many steps as their seats
// need.
TEST(SampleBatch, ServesManyAsItServesOne) {
  const std::string policy = "snapkv:budget=64,window=8";
  std::string story;  // longer than a call reads at once
  for (int i = 0; i < 60; ++i) story += " The long road went on past house " + std::to_string(i) + ".";
  const std::vector<std::string> prompts = {" The code of Robin is 386. The code of Robin is", story, "A",
                                            " It was a dark night", " And then"};
  const std::vector<int> at_once = {1, 2, 8};
  std::vector<int> steps;
  for (const int n : at_once) {
    std::vector<std::string> arguments = {kBatch, KVC_RECALL, policy, std::to_string(n)};
    arguments.insert(arguments.end(), prompts.begin(), prompts.end());
    const ProgramResult result = RunShell(
        "batch=$2 model=$3 policy=$4 n=$5; shift 5; printf '%s\\n' \"$@\" | \"$batch\" \"$model\" "
        "\"$policy\" 12 $n",
        arguments);
    ASSERT_EQ(result.exit_code, 0) << result.err;
    for (size_t i = 0; i < prompts.size(); ++i) {
      const nlohmann::json alone = RunKvc({"run", KVC_RECALL, "--policy", policy, "--prompt", prompts[i],
                                           "--max-tokens", "12", "--json"})
                                       .Json();
      const std::string line = std::to_string(i + 1) + ":" + alone["text"].get<std::string>() + "\n";
      EXPECT_NE(("\n" + result.out).find("\n" + line), std::string::npos)
          << n << " at once, " << line << result.out;
    }
    const size_t at = result.err.find("5 prompts in ");
    ASSERT_NE(at, std::string::npos) << result.err;
    steps.push_back(std::stoi(result.err.substr(at + 13)));
    const size_t waited = result.err.find("waited ", result.err.find("2: "));
    ASSERT_NE(waited, std::string::npos) << result.err;
    EXPECT_GE(std::stoi(result.err.substr(waited + 7)), 1) << "the story is read while others are answered";
  }
  EXPECT_GE(steps[0], 5 * 12);
  EXPECT_LT(steps[1], steps[0]);
  EXPECT_LT(steps[2], 2 * 12);
}

TEST(SampleBatch, APromptThatIsRefusedDoesNotStopTheOthers) {
  std::string endless;
  for (int i = 0; i < 2000; ++i) endless += " and then";
  const ProgramResult result =
      RunShell("printf '%s\\n' \"$4\" A | \"$2\" \"$3\" full 4", {kBatch, KVC_RECALL, endless});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err.rfind("cannot queue the prompt: ", 0), 0u) << result.err;
  EXPECT_NE(result.err.find("CONTEXT_FULL"), std::string::npos) << result.err;
  EXPECT_EQ(result.out.rfind("2:", 0), 0u) << result.out;
  EXPECT_EQ(RunProgram(kBatch, {}).exit_code, 2);
  EXPECT_EQ(RunProgram(kBatch, {KVC_RECALL, "full", "4", "257"}).exit_code, 2);
}

TEST_F(Samples, AQuestionAfterAnEmptyPromptBeginsTheText) {
  const auto ask = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"run", stories_, "--max-tokens", "20", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunKvc(arguments).Json();
  };
  const nlohmann::json whole = ask({"--prompt", "Lily saw a cat"});
  const std::string empty = folder_.Write("empty", "");
  for (const std::vector<std::string>& prompt :
       {std::vector<std::string>{}, {"--prompt", ""}, {"--prompt-file", empty}}) {
    std::vector<std::string> arguments = prompt;
    arguments.insert(arguments.end(), {"--ask", "Lily saw a cat"});
    const nlohmann::json asked = ask(arguments);
    EXPECT_EQ(asked["answers"][0]["tokens"], whole["tokens"]);
    EXPECT_EQ(asked["stats"]["n_prompt"], whole["stats"]["n_prompt"]);
  }
}

}  // namespace
