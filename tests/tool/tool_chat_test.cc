// kvc chat, typed by a script.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/emulated.h"
#include "tests/tool/run_program.h"
#include "tests/tool/talking_model.h"

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

// What `kvc run --chat` is fed and answers is what `kvc chat` is fed and answers. One call of chat says all
// texts, each in a conversation of its own.
void ExpectRunSaysAsChat(const std::string& model, const std::vector<std::string>& texts,
                         std::vector<std::string> options, bool* takes) {
  options.insert(options.end(), {"--max-tokens", "4", "--json", "--context", "2048"});
  std::string lines;
  for (const std::string& text : texts) lines += text + "\n/forget\n";
  const ProgramResult chat = Chat(model, lines, options);
  const std::vector<Json> turns = Turns(chat);
  *takes = chat.exit_code == 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    std::vector<std::string> run = {"run", model, "--chat", "--prompt", texts[i]};
    run.insert(run.end(), options.begin(), options.end());
    const ProgramResult said = RunKvc(run);
    ASSERT_EQ(said.exit_code, chat.exit_code) << said.err << chat.err;
    if (!*takes) continue;  // a system text that its template has not
    EXPECT_EQ(said.Json()["n_prompt"], turns[i]["stats"]["n_prompt"]) << texts[i];
    EXPECT_EQ(said.Json()["tokens"], turns[i]["tokens"]) << texts[i];
    EXPECT_EQ(said.Json()["framing"]["chat"], true);
  }
}

TEST(Chat, RunSaysWhatChatSaysByEveryTemplate) {
  int n_templates = 0, n_compared = 0, n_with_system = 0, n_without_turns = 0;
  for (const auto& entry : std::filesystem::directory_iterator(KVC_SOURCE_DIR "/tests/data/templates")) {
    const std::string name = entry.path().stem().string();
    if (entry.path().extension() != ".jinja" || n_templates++ % kvc::test::EveryNth(7) != 0) continue;
    SCOPED_TRACE(name);
    const TemporaryFolder folder;
    const TalkingModel model = MakeTalkingModel(folder, name, ReadWholeFile(entry.path().string()));
    const ProgramResult about = RunKvc({"inspect", model.path, "--json"});
    if (about.Json()["turn_format"]["user_prefix"] == "" &&
        about.Json()["turn_format"]["user_suffix"] == "") {
      ++n_without_turns;
      const ProgramResult run = RunKvc({"run", model.path, "--chat", "--prompt", "hello"});
      EXPECT_EQ(run.exit_code, 1);
      EXPECT_NE(run.err.find("does not say how turns are marked"), std::string::npos) << run.err;
      continue;
    }
    // White space that a template may trim, and a mark that stays letters.
    const std::vector<std::string> texts = {"hello", "  so " + model.mark + " it is ab "};
    bool takes = false;
    ExpectRunSaysAsChat(model.path, texts, {}, &takes);
    EXPECT_TRUE(takes);
    ++n_compared;
    ExpectRunSaysAsChat(model.path, texts, {"--system", "be kind"}, &takes);
    n_with_system += takes;
  }
  if (kvc::test::kUnderQemu) return;
  EXPECT_GE(n_compared, 30);
  EXPECT_GE(n_with_system, 15);
  EXPECT_GE(n_without_turns, 1);
}

// The document is compressed; the question ends its message and is kept whole.
TEST(Chat, AContextAndItsQuestionAreOneMessage) {
  const TemporaryFolder folder;
  const std::string model = WithTurns(folder), context = "The code of Robin is 386. The code of Ada is 215.",
                    question = " The code of Robin is";
  const std::vector<Json> turns =
      Turns(Chat(model, context + question + "\n", {"--json", "--max-tokens", "6"}));
  ASSERT_EQ(turns.size(), 1u);
  for (const std::string policy : {"full", "snapkv:budget=4096"}) {  // nothing is dropped
    const ProgramResult run = RunKvc({"run", model, "--chat", "--prompt", context, "--ask", question, "--ask",
                                      " No", "--max-tokens", "6", "--json", "--policy", policy});
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(run.Json()["answers"][0]["tokens"], turns[0]["tokens"]);
    EXPECT_EQ(run.Json()["stats"]["n_prompt"], turns[0]["stats"]["n_prompt"]);
    EXPECT_LT(run.Json()["n_prompt"], turns[0]["stats"]["n_prompt"]);
  }
  // Said aloud, question and answer have lines of their own.
  const ProgramResult aloud =
      RunKvc({"run", model, "--chat", "--prompt", context, "--ask", "Who?", "--max-tokens", "1"});
  EXPECT_EQ(aloud.out.substr(0, 5), "Who?\n") << aloud.out;
}

TEST(Chat, SpecialTokensThatAreWrittenBecomeTheirIds) {
  const TemporaryFolder folder;
  const TalkingModel model = MakeTalkingModel(folder, "chatml", ChatmlBehindBos());
  const auto run = [](const std::string& file, const std::vector<std::string>& more) {
    std::vector<std::string> words = {"run", file, "--max-tokens", "4", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = RunKvc(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.Json();
  };
  const std::string written = "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n";
  const Json said = run(model.path, {"--chat", "--prompt", "hello"}),
             special = run(model.path, {"--special", "--prompt", written}),
             letters = run(model.path, {"--prompt", written});
  EXPECT_EQ(special["tokens"], said["tokens"]);
  EXPECT_EQ(special["n_prompt"], said["n_prompt"]);
  EXPECT_GT(letters["n_prompt"], said["n_prompt"]);
  // A prompt that begins with BOS has no second one.
  const Json with = run(KVC_RECALL, {"--special", "--prompt", "<|bos|>The code of Ada is"}),
             without = run(KVC_RECALL, {"--prompt", "The code of Ada is"});
  EXPECT_EQ(with["n_prompt"], without["n_prompt"]);
  EXPECT_EQ(with["tokens"], without["tokens"]);
  const std::vector<std::string> kept = {"kept", KVC_RECALL, "--policy", "full", "--json", "--prompt"};
  const auto n_kept = [&](const std::string& text, const std::vector<std::string>& more) {
    std::vector<std::string> words = kept;
    words.push_back(text);
    words.insert(words.end(), more.begin(), more.end());
    return RunKvc(words).Json()["n_prompt"];
  };
  EXPECT_EQ(n_kept("<|bos|>x<|eos|>", {"--special"}), 3);
  EXPECT_GT(n_kept("<|bos|>x<|eos|>", {}), 3);
}

TEST(Chat, FramingsThatCannotBeMeantAreRefused) {
  const TemporaryFolder folder;
  const std::string ids = folder.Write("ids.json", "[1, 2]");
  for (const auto& [words, why] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"run", KVC_RECALL, "--prompt", "x", "--system", "s"}, "--chat"},
           {{"run", KVC_RECALL, "--tokens", ids, "--chat"}, "--tokens"},
           {{"run", KVC_RECALL, "--tokens", ids, "--special"}, "--tokens"},
           {{"eval", KVC_RECALL, "--text", ids, "--chat"}, "--chat is for --data or --suite"}}) {
    const ProgramResult result = RunKvc(words);
    EXPECT_EQ(result.exit_code, 2) << why << result.err;
    EXPECT_NE(result.err.find(why), std::string::npos) << result.err;
  }
}

TEST(Chat, ScoresBesideACheckpointAreNamedWhereAPolicyWantsSome) {
  const TemporaryFolder folder;
  const std::string source = KVC_SOURCE_DIR "/models/recall";
  for (const char* command : {"run \"$2\" --prompt x", "plan \"$2\" --context 300"}) {
    const ProgramResult result =
        RunShell(std::string("KVC_CACHE=\"$3\" \"$1\" ") + command + " --policy cokv:budget=64",
                 {source, folder.Path("c")});
    EXPECT_EQ(result.exit_code, 1) << result.err;
    EXPECT_NE(result.err.find("--head-scores " + source + "/head_scores.json"), std::string::npos)
        << result.err;
  }
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
  // A file that was damaged is made again.
  ASSERT_EQ(
      RunShell("for f in \"$2\"/*.kvc; do printf damage | dd of=\"$f\" bs=1 seek=9000 conv=notrunc; done",
               {folder.Path("deep/cache")})
          .exit_code,
      0);
  const ProgramResult mended = RunWithCache(folder, source, "deep/cache");
  ASSERT_EQ(mended.exit_code, 0) << mended.err;
  EXPECT_NE(mended.err.find("made again"), std::string::npos) << mended.err;
  EXPECT_EQ(mended.Json()["tokens"], file.Json()["tokens"]);
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

// Whatever takes a model takes what is none yet, and the same as `run`.
TEST(Chat, EveryCommandTakesAFolder) {
  const TemporaryFolder folder;
  const std::string source = KVC_SOURCE_DIR "/models/recall", cache = folder.Path("cache"),
                    tasks = KVC_SOURCE_DIR "/samples/data/recall_demo.jsonl",
                    scores = source + "/head_scores.json", picture = folder.Path("scores.svg");
  bool first = true;
  for (const char* command :
       {"inspect \"$2\"", "plan \"$2\" --context 300", "tokenize \"$2\" --text hello",
        "kept \"$2\" --prompt hello --policy full", "bench \"$2\" --prompt 9 --gen 1 --repeat 1",
        "eval \"$2\" --data \"$4\" --limit 1", "score-plot \"$5\" --out \"$6\" --model \"$2\" --budget 16"}) {
    const ProgramResult result =
        RunShell(std::string("KVC_CACHE=\"$3\" \"$1\" ") + command, {source, cache, tasks, scores, picture});
    EXPECT_EQ(result.exit_code, 0) << command << result.err;
    EXPECT_EQ(result.err.find("converting") != std::string::npos, first) << command << result.err;
    first = false;
  }
  EXPECT_EQ(RunShell("ls \"$2\" | wc -l", {cache}).out, "1\n");
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

// Of a model in several GGUF files any may change.
TEST(Chat, AChangeInAnyPartOfAModelInSeveralFilesIsSeen) {
  const TemporaryFolder folder;
  const std::string first =
                        folder.Write("m-00001-of-00003.gguf",
                                     ReadWholeFile(KVC_SOURCE_DIR "/tests/data/reference_gguf/smollm3.gguf")),
                    second = folder.Write("m-00002-of-00003.gguf", "2"),
                    third = folder.Write("m-00003-of-00003.gguf", "3"),
                    ids = folder.Write("ids.json", "[1, 2, 3]");
  const auto converts = [&](const std::string& model) {
    const ProgramResult run = RunShell("KVC_CACHE=\"$3\" \"$1\" run \"$2\" --tokens \"$4\" --max-tokens 2",
                                       {model, folder.Path("cache"), ids});
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.err.find("converting") != std::string::npos;
  };
  EXPECT_TRUE(converts(first));
  EXPECT_FALSE(converts(first));
  for (const std::string& part : {second, third}) {
    RunShell("touch -d '2001-01-01' \"$2\"", {part});
    EXPECT_TRUE(converts(first)) << part;
    EXPECT_FALSE(converts(first)) << part;
  }
  // Where all are links, the others are found by the names of the links.
  RunShell(
      "mkdir \"$2/links\"; for i in 1 2 3; do mv \"$2/m-0000$i-of-00003.gguf\" \"$2/blob$i\"; "
      "ln -s \"../blob$i\" \"$2/links/m-0000$i-of-00003.gguf\"; done",
      {folder.Path("")});
  const std::string link = folder.Path("links/m-00001-of-00003.gguf");
  EXPECT_TRUE(converts(link));
  RunShell("touch -d '2002-01-01' \"$2\"", {folder.Path("blob2")});
  EXPECT_TRUE(converts(link));
  EXPECT_FALSE(converts(link));
}

// Gigabytes of which nobody would know.
TEST(Chat, WhatAKilledConversionLeftIsRemovedBeforeTheNext) {
  const TemporaryFolder folder;
  const std::string source = KVC_SOURCE_DIR "/tests/data/reference_gguf/smollm3.gguf";
  std::filesystem::create_directory(folder.Path("cache"));
  folder.Write("cache/.kvc-7-0123456789abcdef-0.tmp", "of a process that was killed");
  folder.Write("cache/.kvc-8-0123456789abcdef-0.tmp", "of one at work");
  folder.Write("cache/mine.tmp", "of the user's");
  RunShell("touch -d '2 days ago' \"$2/mine.tmp\" \"$2\"/.kvc-7-*", {folder.Path("cache")});
  const ProgramResult run = RunShell("KVC_CACHE=\"$3\" \"$1\" run \"$2\" --tokens \"$4\" --max-tokens 2",
                                     {source, folder.Path("cache"), folder.Write("ids.json", "[1, 2, 3]")});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(RunShell("ls -A \"$2\" | grep tmp", {folder.Path("cache")}).out,
            ".kvc-8-0123456789abcdef-0.tmp\nmine.tmp\n");
}

// A GGUF file with one more entry in its metadata. Its tensors stay at their places from the end of the
// header: the entry takes a multiple of their alignment.
std::string WithChatTemplate(const std::string& gguf, std::string text) {
  constexpr size_t kCount = 16, kEntries = 24, kAlignment = 32;
  const std::string key = "tokenizer.chat_template";
  text += "{#";  // a comment fills up
  while ((8 + key.size() + 4 + 8 + text.size() + 2) % kAlignment != 0) text += ".";
  text += "#}";
  const auto number = [](uint64_t n, size_t size) {
    return std::string(reinterpret_cast<const char*>(&n), size);
  };
  uint64_t count = 0;
  std::memcpy(&count, gguf.data() + kCount, sizeof count);
  const std::string entry = number(key.size(), 8) + key + number(8, 4) + number(text.size(), 8) + text;
  return gguf.substr(0, kCount) + number(count + 1, 8) + entry + gguf.substr(kEntries);
}

// The same model twice, as GGUF and as a Hugging Face folder, both with a chat template.
constexpr const char* kTemplate =
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|eos|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

std::string GgufWithTurns(const TemporaryFolder& folder) {
  const std::string file = ReadWholeFile(KVC_SOURCE_DIR "/tests/data/reference_gguf/smollm3.gguf");
  return folder.Write("talks.gguf", WithChatTemplate(file, kTemplate));
}

std::string ItsTwin(const TemporaryFolder& folder) {
  RunShell("mkdir \"$3\" && cp \"$2\"/* \"$3\"",
           {KVC_SOURCE_DIR "/tests/data/reference/hf_smollm3", folder.Path("twin")});
  // The last token of the GGUF file is a merge.
  Json tokenizer = Json::parse(ReadWholeFile(folder.Path("twin/tokenizer.json")));
  tokenizer["added_tokens"].erase(3);
  tokenizer["model"]["vocab"]["ab"] = 259, tokenizer["model"]["merges"] = {"a b"};
  folder.Write("twin/tokenizer.json", tokenizer.dump());
  folder.Write("twin/tokenizer_config.json", "{}");
  folder.Write("twin/chat_template.jinja", kTemplate);
  return folder.Path("twin");
}

TEST(Chat, AGgufFileTalksAsItsTemplateSays) {
  const TemporaryFolder folder;
  const std::string gguf = GgufWithTurns(folder), twin = ItsTwin(folder);
  const auto chat = [&](const std::string& model, const std::string& cache) {
    return RunShell(
        "printf 'hello\\nmore\\n' | KVC_CACHE=\"$3\" \"$1\" chat \"$2\" --json --max-tokens 9 --system 'be "
        "kind'",
        {model, folder.Path(cache)});
  };
  // Which file it is, and since when.
  const auto converted = [&] {
    std::vector<int64_t> states;
    for (const auto& entry : std::filesystem::directory_iterator(folder.Path("cache"))) {
      struct stat state = {};
      EXPECT_EQ(stat(entry.path().c_str(), &state), 0);
      states.push_back(static_cast<int64_t>(state.st_ino));
      states.push_back(entry.last_write_time().time_since_epoch().count());
    }
    return states;
  };
  const ProgramResult first = chat(gguf, "cache");
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_NE(first.err.find("converting"), std::string::npos) << first.err;
  EXPECT_EQ(first.err.find("not made for conversations"), std::string::npos) << first.err;
  const std::vector<int64_t> state = converted();
  ASSERT_EQ(state.size(), 2u) << "one file";
  const ProgramResult again = chat(gguf, "cache"), other = chat(twin, "another");
  ASSERT_EQ(again.exit_code, 0) << again.err;
  ASSERT_EQ(other.exit_code, 0) << other.err;
  EXPECT_EQ(again.err.find("converting"), std::string::npos) << again.err;
  EXPECT_EQ(converted(), state);
  const std::vector<Json> turns = Turns(first), same = Turns(again), of_twin = Turns(other);
  ASSERT_EQ(turns.size(), 2u);
  ASSERT_EQ(same.size(), 2u);
  ASSERT_EQ(of_twin.size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_FALSE(turns[i]["tokens"].empty());
    for (const std::vector<Json>& others : {same, of_twin}) {
      EXPECT_EQ(turns[i]["tokens"], others[i]["tokens"]) << i;
      EXPECT_EQ(turns[i]["text"], others[i]["text"]) << i;
      EXPECT_EQ(turns[i]["stats"]["n_prompt"], others[i]["stats"]["n_prompt"]) << i;
    }
  }
  // The first turn is what the template writes: marks are tokens, texts are bytes.
  Json ids = Json::array();
  for (const auto& [mark, text] : std::vector<std::pair<int, std::string>>{
           {258, "system\nbe kind"}, {257, "\n"}, {258, "user\nhello"}, {257, "\n"}, {258, "assistant\n"}}) {
    ids.push_back(mark);
    for (const char byte : text) ids.push_back(static_cast<int>(byte));
  }
  const ProgramResult run =
      RunShell("KVC_CACHE=\"$3\" \"$1\" run \"$2\" --json --max-tokens 9 --tokens \"$4\"",
               {gguf, folder.Path("cache"), folder.Write("ids.json", ids.dump())});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.Json()["n_prompt"], turns[0]["stats"]["n_prompt"]);
  EXPECT_EQ(run.Json()["tokens"], turns[0]["tokens"]);
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
  // The words of a loaded system text are not known, and those of before are another conversation's.
  const ProgramResult anew =
      Chat(KVC_RECALL, "/load " + file + "\n/forget\n/forget\n", {"--system", "Facts."});
  ASSERT_EQ(anew.exit_code, 0) << anew.err;
  EXPECT_NE(anew.err.find("begun anew, without the loaded file's system text [0 tokens"), std::string::npos)
      << anew.err;
  EXPECT_NE(anew.err.rfind("begun anew [0 tokens"), std::string::npos) << anew.err;
  const ProgramResult lost =
      Chat(KVC_RECALL, "/policy snapkv:budget=24,window=4\n", {"--load", file, "--max-tokens", "6"});
  EXPECT_EQ(lost.exit_code, 1);
  EXPECT_NE(lost.err.find("what was said before a loaded file is not known"), std::string::npos) << lost.err;
}

// The file has them, and would win.
TEST(Chat, ALoadedFileHasItsOwnOptions) {
  const TemporaryFolder folder;
  const std::string file = folder.Path("talk.kvcs");
  ASSERT_EQ(Chat(KVC_RECALL, "The code of Ada is\n/save " + file + "\n", {"--max-tokens", "2"}).exit_code, 0);
  const std::vector<std::vector<std::string>> cases = {{"--system", "s"},
                                                       {"--policy", "full"},
                                                       {"--context", "300"},
                                                       {"--on-full", "evict"},
                                                       {"--head-scores", "scores.json"},
                                                       {"--table", "slots.json"}};
  for (const std::vector<std::string>& given : cases) {
    const ProgramResult chat = Chat(KVC_RECALL, "", {"--load", file, given[0], given[1]});
    EXPECT_EQ(chat.exit_code, 2) << given[0];
    for (const std::string& name : {std::string("--load"), given[0]})
      EXPECT_NE(chat.err.find(name), std::string::npos) << chat.err;
  }
  const ProgramResult chat = Chat(KVC_RECALL, "/policy\n/stats\n", {"--load", file, "--max-tokens", "2"});
  ASSERT_EQ(chat.exit_code, 0) << chat.err;
  const size_t asked = chat.err.find("policy of the loaded file ["),
               counted = chat.err.rfind("of the loaded file");
  EXPECT_NE(asked, std::string::npos) << chat.err;
  EXPECT_GT(counted, asked + 20) << chat.err;
}

// A loaded conversation is sampled as it was saved, or as the options say where there are some.
TEST(Chat, ALoadedConversationIsSampledAsItWas) {
  const TemporaryFolder folder;
  const std::string file = folder.Path("talk.kvcs"), text = "The code of Ada is\n";
  const std::vector<std::string> json = {"--json", "--max-tokens", "12"};
  const auto chat = [&](const std::string& lines, std::vector<std::string> options) {
    options.insert(options.end(), json.begin(), json.end());
    const ProgramResult result = Chat(KVC_RECALL, lines, options);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Turns(result);
  };
  const std::vector<std::string> sampled = {"--temperature", "1.5", "--seed", "5"};
  const std::vector<Json> whole = chat(text + " and\n", sampled);
  ASSERT_EQ(chat(text + "/save " + file + "\n", sampled).size(), 1u);
  const auto loaded = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"--load", file});
    const std::vector<Json> turns = chat(" and\n", options);
    return turns.size() == 1 ? turns[0]["tokens"] : Json();
  };
  ASSERT_EQ(whole.size(), 2u);
  const Json as_saved = loaded({}), greedy = loaded({"--temperature", "0"}),
             otherwise = loaded({"--temperature", "1.5", "--seed", "6"});
  EXPECT_EQ(as_saved, whole[1]["tokens"]);
  EXPECT_NE(greedy, as_saved);
  EXPECT_NE(otherwise, as_saved);
  EXPECT_NE(otherwise, greedy);
  EXPECT_EQ(loaded({"--top-k", "1"}), greedy);
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
  const ProgramResult unreadable = RunShell("\"$1\" chat \"$2\" < /", {KVC_RECALL});
  EXPECT_EQ(unreadable.exit_code, 1);
  EXPECT_NE(unreadable.err.find("standard input cannot be read"), std::string::npos) << unreadable.err;
  // What failed in the middle of an answer is said on a line of its own.
  const ProgramResult full =
      Chat(KVC_RECALL, "The\n", {"--context", "6", "--on-full", "error", "--max-tokens", "50"});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_GT(full.out.size(), 1u);
  EXPECT_EQ(full.out.back(), '\n');
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
