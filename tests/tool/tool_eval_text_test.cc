// kvc eval --text where tokenizers put nothing, one token or several before a text. Windows are counted by
// hand.
#include <gtest/gtest.h>

#include <tuple>

#include "tests/tool/run_program.h"

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

}  // namespace
