// kvc eval --text where tokenizers put nothing, one token or several before a text. Windows are counted by
// hand.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/tool/run_program.h"
#include "tests/tool/talking_model.h"

namespace {

using Json = nlohmann::json;

// recall with another beginning of texts: its files, changed, and the model that they make.
class OtherBeginning {
 public:
  OtherBeginning() {
    for (const std::string name :
         {"model.safetensors", "tokenizer.json", "tokenizer_config.json", "config.json"})
      folder_.Write(name, ReadWholeFile(KVC_SOURCE_DIR "/models/recall/" + name));
  }
  Json Read(const std::string& name) const { return Json::parse(ReadWholeFile(folder_.Path(name))); }
  void Write(const std::string& name, const Json& content) const { folder_.Write(name, content.dump()); }
  std::string Convert() const {
    const ProgramResult result = RunKvc({"convert", folder_.Path(""), folder_.Path("other.kvc")});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return folder_.Path("other.kvc");
  }

 private:
  TemporaryFolder folder_;
};

void AddNothing(const OtherBeginning& files) {
  Json config = files.Read("tokenizer_config.json");
  config["add_bos_token"] = false;
  files.Write("tokenizer_config.json", config);
}

// The token stays, as one of no meaning.
void HaveNoBos(const OtherBeginning& files) {
  Json config = files.Read("config.json"), about = files.Read("tokenizer_config.json"),
       tokenizer = files.Read("tokenizer.json");
  config.erase("bos_token_id");
  about.erase("bos_token");
  about["add_bos_token"] = false;
  Json& pieces = tokenizer["model"]["vocab"];
  pieces["<|nothing|>"] = pieces["<|bos|>"];
  pieces.erase("<|bos|>");
  tokenizer["added_tokens"][0]["content"] = "<|nothing|>";
  files.Write("config.json", config);
  files.Write("tokenizer_config.json", about);
  files.Write("tokenizer.json", tokenizer);
}

void AddTwo(const OtherBeginning& files) {
  Json tokenizer = files.Read("tokenizer.json"), about = files.Read("tokenizer_config.json");
  tokenizer["post_processor"] = Json::parse(R"({
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}},
               {"SpecialToken": {"id": "<|pad|>", "type_id": 0}},
               {"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [0], "tokens": ["<|bos|>"]},
                       "<|pad|>": {"id": "<|pad|>", "ids": [2], "tokens": ["<|pad|>"]}}})");
  about.erase("add_bos_token");
  files.Write("tokenizer.json", tokenizer);
  files.Write("tokenizer_config.json", about);
}

// Windows of 64 tokens of a text: [nats, tokens] each, or how it failed.
Json Windows(const std::string& model, const std::string& text) {
  const ProgramResult result = RunKvc({"eval", model, "--text", text, "--window", "64", "--json"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? result.Json()["results"][0]["nll_by_window"] : Json();
}

TEST(ToolEvalText, AWindowHasWhatTheModelWantsBeforeAText) {
  const TemporaryFolder folder;
  // A digit is a token.
  const auto digits = [&](size_t n) {
    std::string text;
    for (size_t i = 0; i < n; ++i) text += std::to_string(i * i % 7);
    const std::string path = folder.Write(std::to_string(n) + ".txt", text);
    EXPECT_EQ(RunKvc({"tokenize", KVC_RECALL, "--text", text, "--json"}).Json()["n_tokens"], n);
    return path;
  };
  const OtherBeginning nothing, none, two;
  AddNothing(nothing);
  HaveNoBos(none);
  AddTwo(two);
  const std::string without = nothing.Convert(), no_bos = none.Convert(), with_two = two.Convert();
  ASSERT_EQ(RunKvc({"inspect", no_bos, "--json"}).Json()["tokenizer"]["bos"], -1);
  ASSERT_EQ(RunKvc({"tokenize", with_two, "--text", "", "--bos", "--json"}).Json()["tokens"], Json({0, 2}));
  // Two windows overlap by 32 of 64: 64 + 32 tokens less what is added to each.
  struct Case {
    size_t n, of_two, of_one, of_none;
  };
  for (const Case& c : {Case{93, 1, 1, 1}, Case{94, 2, 1, 1}, Case{95, 2, 2, 1}, Case{96, 2, 2, 2}}) {
    const std::string text = digits(c.n);
    const Json plain = Windows(KVC_RECALL, text), bare = Windows(without, text);
    EXPECT_EQ(Windows(with_two, text).size(), c.of_two) << c.n;
    EXPECT_EQ(plain.size(), c.of_one) << c.n;
    EXPECT_EQ(bare.size(), c.of_none) << c.n;
    EXPECT_EQ(bare[0][1], 32) << "the second half is scored";
    EXPECT_NE(bare[0][0], plain[0][0]) << "BOS makes a difference";
    EXPECT_EQ(Windows(no_bos, text), bare) << "a token that is not used does not";
  }
  EXPECT_EQ(RunKvc({"eval", without, "--text", digits(63), "--window", "64"}).exit_code, 1);
}

TEST(ToolEvalText, TheShortestWindowHasTextInItsSecondHalf) {
  const TemporaryFolder folder;
  const std::string text = folder.Write("text.txt", "The code of Robin is 386.");
  const OtherBeginning none, two;
  HaveNoBos(none);
  AddTwo(two);
  const std::string with_two = two.Convert();
  for (const auto& [model, window, code] :
       std::vector<std::tuple<std::string, std::string, int>>{{none.Convert(), "1", 2},
                                                              {none.Convert(), "2", 0},
                                                              {KVC_RECALL, "1", 2},
                                                              {KVC_RECALL, "2", 0},
                                                              {with_two, "3", 2},
                                                              {with_two, "4", 0}}) {
    for (const char* protocol : {"stream", "prefix"}) {
      const ProgramResult result = RunKvc({"eval", model, "--text", text, "--window", window, "--limit", "1",
                                           "--text-protocol", protocol, "--json"});
      EXPECT_EQ(result.exit_code, code) << window << result.err;
      if (code == 0) {
        EXPECT_EQ(result.Json()["results"][0]["n"], std::stoi(window) / 2);
      }
    }
  }
}

// What two results say of the same prompts but how long they took.
Json Untimed(Json rows) {
  for (Json& row : rows) {
    for (const char* other : {"file", "prefill_seconds", "step_seconds"}) row.erase(other);
  }
  return rows;
}

// Tasks by themselves, and with the turns written around them.
struct TurnTasks {
  TurnTasks() {
    std::string plain, written;
    for (const std::string name : {"Ada", "Robin", "Ann", "Bo", "Cy", "Di", "Ed", "Flo"}) {
      const std::string context = "It is said that " + name + " is here. And more.", question = " Who is it?";
      const auto line = [&](const std::string& before, const std::string& behind) {
        return Json{{"context", before + context},
                    {"questions", {{{"question", question + behind}, {"answer", name}}}}}
                   .dump() +
               "\n";
      };
      plain += line("", "");
      written += line("<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n");
    }
    tasks = folder.Write("tasks.jsonl", plain), turns = folder.Write("turns.jsonl", written);
    model = MakeTalkingModel(folder, "talks", ChatmlBehindBos()).path;
  }
  ProgramResult Run(const std::string& command, const std::string& data,
                    const std::vector<std::string>& more) const {
    std::vector<std::string> words = {command, model, "--data", data};
    words.insert(words.end(), more.begin(), more.end());
    return RunKvc(words);
  }
  TemporaryFolder folder;
  std::string tasks, turns, model;
};

// Said by the turn format is what is written by hand with --special.
TEST(ToolEvalTurns, EvalAndTuneAskAsTheModelWasTrained) {
  const TurnTasks files;
  const std::vector<std::vector<std::string>> calls = {
      {"eval", "--policy", "full", "--policy", "snapkv:budget=16,window=4", "--json"},
      {"eval", "--policy", "snapkv:budget=16,window=4", "--protocol", "prompt", "--json"},
      {"tune", "--policy", "snapkv:window=4", "--budgets", "16,8", "--max-loss", "90%", "--confidence", "60%",
       "--held-out", "0", "--metric", "kl", "--max-kl", "1000", "--json"}};
  for (const std::vector<std::string>& call : calls) {
    const std::vector<std::string> more(call.begin() + 1, call.end());
    const auto with = [&](const std::string& data, const std::string& flag) {
      std::vector<std::string> words = more;
      if (!flag.empty()) words.push_back(flag);
      const ProgramResult result = files.Run(call[0], data, words);
      EXPECT_EQ(result.exit_code, 0) << result.err;
      return result.Json();
    };
    const Json said = with(files.tasks, "--chat"), special = with(files.turns, "--special"),
               letters = with(files.turns, "");
    const char* rows = call[0] == "eval" ? "results" : "candidates";
    EXPECT_EQ(Untimed(said[rows]), Untimed(special[rows]));
    EXPECT_NE(Untimed(letters[rows]), Untimed(special[rows]));
    EXPECT_EQ(said["framing"], (Json{{"special", false}, {"chat", true}}));
    EXPECT_EQ(special["framing"], (Json{{"special", true}, {"chat", false}}));
    EXPECT_EQ(letters["framing"], (Json{{"special", false}, {"chat", false}}));
  }
}

TEST(ToolEvalTurns, ScoresAreMeasuredInTurnsToo) {
  const TurnTasks files;
  const auto score = [&](const std::string& data, const std::string& flag, const std::string& name) {
    std::vector<std::string> words = {"--method", "exact",   "--utility", "nll",   "--window",
                                      "4",        "--limit", "2",         "--out", files.folder.Path(name)};
    if (!flag.empty()) words.push_back(flag);
    const ProgramResult result = files.Run("score", data, words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return Json::parse(ReadWholeFile(files.folder.Path(name)));
  };
  const Json said = score(files.tasks, "--chat", "said.json"),
             special = score(files.turns, "--special", "special.json"),
             letters = score(files.turns, "", "letters.json");
  EXPECT_EQ(said["scores"], special["scores"]);
  EXPECT_NE(said["scores"], letters["scores"]);
  EXPECT_EQ(said["framing"], (Json{{"special", false}, {"chat", true}}));
  EXPECT_FALSE(letters.contains("framing"));
  // A record holds for its framing alone.
  const ProgramResult other = files.Run("score", files.tasks,
                                        {"--method", "exact", "--utility", "nll", "--window", "4", "--limit",
                                         "2", "--resume", "--out", files.folder.Path("said.json")});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_NE(other.err.find("framing"), std::string::npos) << other.err;
  const ProgramResult merged =
      RunKvc({"score-merge", files.folder.Path("said.json.log"), "--out", files.folder.Path("merged.json")});
  ASSERT_EQ(merged.exit_code, 0) << merged.err;
  const Json again = Json::parse(ReadWholeFile(files.folder.Path("merged.json")));
  EXPECT_EQ(again["scores"], said["scores"]);
  EXPECT_EQ(again["framing"], said["framing"]);
}

TEST(ToolEvalTurns, SuitesAreAskedInTurns) {
  const TemporaryFolder folder;  // recall, whose marks are letters
  const ProgramResult convert = RunShell(
      "mkdir \"$3/hf\" && cp \"$2\"/models/recall/*.json \"$2\"/models/recall/*.safetensors \"$3/hf\" && "
      "cp \"$2\"/tests/data/templates/chatml.jinja \"$3/hf/chat_template.jinja\" && "
      "\"$1\" convert \"$3/hf\" \"$3/turns.kvc\"",
      {KVC_SOURCE_DIR, folder.Path("")});
  ASSERT_EQ(convert.exit_code, 0) << convert.err;
  const auto slots = [&](const std::vector<std::string>& more) {
    std::vector<std::string> words = {"eval",     folder.Path("turns.kvc"),
                                      "--suite",  "ruler",
                                      "--tasks",  "niah_single_1",
                                      "--items",  "1",
                                      "--length", "512",
                                      "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const ProgramResult result = RunKvc(words);
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.Json()["results"][0]["slots_per_head"].get<double>();
  };
  // The length counts the marks; before a question that is asked later, only those of the beginning.
  const double plain = slots({}), said = slots({"--chat"}), asked = slots({"--chat", "--protocol", "ask"});
  EXPECT_LE(said, 512);
  EXPECT_LE(plain, 512);
  EXPECT_LT(asked, said);
}

TEST(ToolEvalTurns, ResultsSayWhereTheyWereMade) {
  const TurnTasks files;
  const ProgramResult eval = files.Run("eval", files.tasks, {"--device", "cpu", "--json"});
  const ProgramResult bench = RunKvc(
      {"bench", files.model, "--device", "cpu", "--prompt", "9", "--gen", "1", "--repeat", "1", "--json"});
  for (const ProgramResult& result : {eval, bench}) {
    ASSERT_EQ(result.exit_code, 0) << result.err;
    const Json made_on = result.Json()["made_on"];
    EXPECT_EQ(made_on["name"], "cpu");
    EXPECT_NE(made_on["description"].get<std::string>().find("threads"), std::string::npos);
  }
  EXPECT_EQ(bench.Json()["device"], "cpu");
  const std::string page = files.folder.Path("page.html");
  const ProgramResult report =
      files.Run("report", files.tasks,
                {"--device", "cpu", "--policy", "snapkv:window=4", "--budgets", "16", "--chat", "-o", page});
  ASSERT_EQ(report.exit_code, 0) << report.err;
  const std::string html = ReadWholeFile(page);
  for (const std::string& words :
       {"<dd>cpu, " + eval.Json()["made_on"]["description"].get<std::string>() + "</dd>",
        std::string("said as a user's message"), std::string("--chat")})
    EXPECT_NE(html.find(words), std::string::npos) << words;
}

}  // namespace
