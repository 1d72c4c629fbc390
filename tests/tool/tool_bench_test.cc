// kvc bench: what it measures, in which form it says it.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/tool/run_program.h"

namespace {

using Json = nlohmann::json;

Json KvcJson(const std::vector<std::string>& arguments) {
  const ProgramResult result = RunKvc(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? result.Json() : Json::object();
}

bool StartsWith(const std::string& text, const std::string& start) { return text.rfind(start, 0) == 0; }

TEST(ToolBench, HasTheKeys) {
  const Json result = KvcJson({"bench", KVC_RECALL, "--policy", "snapkv-w8:budget=32", "--prompt", "64",
                               "--gen", "8", "--depth", "64", "--repeat", "1", "--json"});
  for (const char* key : {"prefill_tokens_per_second", "decode_tokens_per_second", "first_token_seconds",
                          "bandwidth_fraction"}) {
    EXPECT_GT(result[key].get<double>(), 0) << key;
  }
  EXPECT_GT(result["cache_bytes"], 0);
  EXPECT_GE(result["compress_seconds"].get<double>(), 0);
}

// Of eight stretches the slowest is what a tenth is not below: no faster than all of them.
TEST(ToolBench, SlowStretchesAreNoFasterThanTheRest) {
  const Json result =
      KvcJson({"bench", KVC_RECALL, "--prompt", "8", "--gen", "64", "--repeat", "1", "--json"});
  for (const std::string key : {"decode_tokens_per_second", "bandwidth_fraction"}) {
    EXPECT_GT(result[key + "_p10"].get<double>(), 0) << key;
    EXPECT_LE(result[key + "_p10"].get<double>(), result[key].get<double>() * (1 + 1e-9)) << key;
  }
  const Json no_step =
      KvcJson({"bench", KVC_RECALL, "--prompt", "8", "--gen", "0", "--repeat", "1", "--json"});
  EXPECT_TRUE(no_step["decode_tokens_per_second_p10"].is_null());
}

// Several prompts: the document of each on a line of its own, in the order they were named.
TEST(ToolBench, OfSeveralPrompts) {
  std::vector<std::string> arguments = {"bench", KVC_RECALL, "--prompt", "64,8",
                                        "--gen", "4",        "--repeat", "1"};
  const ProgramResult text = RunKvc(arguments);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  EXPECT_TRUE(StartsWith(text.out, "full:kv=f16\ngenerated 4, depth 0, ")) << text.out;
  EXPECT_EQ(std::count(text.out.begin(), text.out.end(), '\n'), 6) << text.out;
  arguments.push_back("--json");
  const ProgramResult json = RunKvc(arguments);
  ASSERT_EQ(std::count(json.out.begin(), json.out.end(), '\n'), 2) << json.out;
  const size_t end = json.out.find('\n');
  const Json one = KvcJson({"bench", KVC_RECALL, "--prompt", "8", "--gen", "4", "--repeat", "1", "--json"});
  int32_t prompt = 64;
  for (const std::string& line : {json.out.substr(0, end), json.out.substr(end)}) {
    const Json result = Json::parse(line);
    EXPECT_EQ(result["n_prompt"], prompt);
    EXPECT_EQ(result.size(), one.size());
    prompt = 8;
  }
  EXPECT_EQ(Json::parse(json.out.substr(end))["cache_bytes"], one["cache_bytes"]);
  const ProgramResult batch = RunKvc({"bench", KVC_RECALL, "--prompt", "8,16", "--batch", "2"});
  EXPECT_EQ(batch.exit_code, 2);
  EXPECT_NE(batch.err.find("--batch and --draft are of one prompt"), std::string::npos) << batch.err;
  const ProgramResult model_behind = RunKvc({"bench", "--prompt", "4,8", KVC_RECALL, "--repeat", "1"});
  EXPECT_EQ(model_behind.exit_code, 0) << model_behind.err;
}

// A token generated after the first is one pass of the network: as many cached tokens as a prompt of that
// length.
TEST(ToolBench, TimesAsManyPassesAsItSays) {
  const auto cache = [](int prompt, int gen) {
    const Json result = KvcJson({"bench", KVC_RECALL, "--prompt", std::to_string(prompt), "--gen",
                                 std::to_string(gen), "--repeat", "1", "--json"});
    EXPECT_EQ(result["decode_passes"], gen);
    return result["cache_bytes"].get<int64_t>();
  };
  EXPECT_EQ(cache(1, 64), cache(65, 0));  // a page holds 64
  EXPECT_LT(cache(1, 63), cache(65, 0));
}

// Quantiles are of steps behind other steps: between stretches of at least 8 the device is measured. A
// stretch of one step counts, for want of another.
TEST(ToolBench, LeavesStepsBehindPausesOutOfQuantiles) {
  const auto timed = [](const char* gen, const char* repeat) {
    return KvcJson(
        {"bench", KVC_RECALL, "--prompt", "4", "--gen", gen, "--repeat", repeat, "--json"})["steps_timed"];
  };
  EXPECT_EQ(timed("0", "1"), 0);
  EXPECT_EQ(timed("1", "1"), 1);
  EXPECT_EQ(timed("8", "1"), 7);
  EXPECT_EQ(timed("17", "2"), 2 * (7 + 7 + 1));
  EXPECT_EQ(timed("128", "1"), 120);
}

// Where the likely tokens are stop tokens, the steps still go through the network.
TEST(ToolBench, GoesOnBehindStopTokens) {
  const TemporaryFolder folder;
  Json config = Json::parse(ReadWholeFile(KVC_SOURCE_DIR "/models/recall/config.json"));
  config["eos_token_id"] = Json::array();
  for (int id = 0; id < 1024; ++id) config["eos_token_id"].push_back(id);  // as many as a model may have
  folder.Write("config.json", config.dump());
  for (const std::string name : {"model.safetensors", "tokenizer.json", "tokenizer_config.json"})
    folder.Write(name, ReadWholeFile(KVC_SOURCE_DIR "/models/recall/" + name));
  const std::string model = folder.Path("stops.kvc");
  const ProgramResult converted = RunKvc({"convert", folder.Path(""), model});
  ASSERT_EQ(converted.exit_code, 0) << converted.err;
  EXPECT_EQ(KvcJson({"run", model, "--prompt", "It was", "--json"})["tokens"], Json::array());
  const Json prompt = KvcJson({"tokenize", model, "--text", "It was", "--bos", "--json"})["tokens"];
  const Json result =
      KvcJson({"bench", model, "--tokens", folder.Write("prompt.json", prompt.dump()), "--gen", "64",
               "--repeat", "1", "--batch", "2", "--arrive", "9", "--draft", "2,8", "--json"});
  EXPECT_EQ(result["decode_passes"], 64);
  EXPECT_EQ(result["batches"].size(), 1u);
  EXPECT_EQ(result["arrivals"].size(), 1u);
  ASSERT_EQ(result["drafts"].size(), 2u);
  for (const Json& draft : result["drafts"]) EXPECT_GT(draft["pass_seconds"].get<double>(), 0);
}

// A step reads about 256 tokens of a prompt that waits.
TEST(ToolBench, OfBatchesAndOfAPromptThatArrives) {
  const std::vector<std::string> arguments = {"bench",    KVC_RECALL, "--policy", "snapkv-w8:budget=32",
                                              "--prompt", "40",       "--gen",    "3",
                                              "--repeat", "1",        "--batch",  "1,5",
                                              "--arrive", "600"};
  std::vector<std::string> json = arguments;
  json.push_back("--json");
  const Json result = KvcJson(json);
  ASSERT_EQ(result["batches"].size(), 2u);
  ASSERT_EQ(result["arrivals"].size(), 2u);
  EXPECT_EQ(result["n_arriving"], 600);
  for (const size_t i : {0, 1}) {
    const Json &batch = result["batches"][i], &arrival = result["arrivals"][i];
    EXPECT_EQ(batch["n_sessions"], i == 0 ? 1 : 5);
    EXPECT_EQ(arrival["n_sessions"], batch["n_sessions"]);
    EXPECT_EQ(arrival["n_steps"], 3);
    const auto number = [](const Json& from, const char* key) { return from[key].get<double>(); };
    EXPECT_NEAR(number(batch, "times_alone"),
                number(batch, "tokens_per_second") / number(batch, "alone_tokens_per_second"), 1e-9);
    EXPECT_GT(number(batch, "times_alone"), 0);
    EXPECT_GT(number(arrival, "chunk_seconds_median"), 0);
    EXPECT_LE(number(arrival, "chunk_seconds_median"), number(arrival, "chunk_seconds_longest"));
    EXPECT_LE(number(arrival, "reading_step_seconds_median"),
              number(arrival, "reading_step_seconds_longest"));
    EXPECT_NEAR(number(arrival, "delay_chunks_longest") * number(arrival, "chunk_seconds_median"),
                number(arrival, "reading_step_seconds_longest") - number(arrival, "step_seconds_median"),
                1e-9);
  }
  const ProgramResult text = RunKvc(arguments);
  EXPECT_EQ(text.exit_code, 0) << text.err;
  for (const char* words : {"times one alone", "a prompt of 600 tokens arrives, read in 3 steps"})
    EXPECT_NE(text.out.find(words), std::string::npos) << text.out;
  const Json without =
      KvcJson({"bench", KVC_RECALL, "--prompt", "4", "--gen", "1", "--repeat", "1", "--json"});
  EXPECT_EQ(without["batches"], Json::array());
  EXPECT_EQ(without["arrivals"], Json::array());
}

}  // namespace
