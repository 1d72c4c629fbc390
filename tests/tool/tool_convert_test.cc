// kvc convert as a doctor: what it says beforehand is what it makes, and a reference tells right from wrong.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/tool/run_program.h"

namespace {

using Json = nlohmann::json;

const std::string kRecallSource = KVC_SOURCE_DIR "/models/recall";
const std::string kReference = KVC_SOURCE_DIR "/tests/data/reference/hf_granite";

TEST(ToolConvert, SaysBeforehandWhatItMakes) {
  const TemporaryFolder folder;
  const ProgramResult dry = RunKvc({"convert", kRecallSource, "--dry-run", "--json", "--weights", "int8"});
  ASSERT_EQ(dry.exit_code, 0) << dry.err;
  const Json plan = dry.Json();
  const std::string out = folder.Path("recall.kvc");
  const ProgramResult made = RunKvc({"convert", kRecallSource, out, "--json", "--weights", "int8"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Json report = made.Json();
  EXPECT_EQ(report["plan"], plan);
  for (const char* same : {"kind", "architecture", "name", "bytes_read", "bytes_written", "warnings"})
    EXPECT_EQ(plan[same], report[same]) << same;
  ASSERT_EQ(plan["types"].size(), report["types"].size());
  for (size_t i = 0; i < plan["types"].size(); ++i) {
    for (const auto& [key, value] : plan["types"][i].items())
      EXPECT_EQ(value, report["types"][i][key]) << key;
  }
  const Json about = RunKvc({"inspect", out, "--json"}).Json();
  EXPECT_EQ(plan["n_layers"], about["config"]["n_layers"]);
  EXPECT_EQ(plan["trained_context"], about["config"]["max_tokens"]);
  EXPECT_EQ(plan["has_turn_format"], false);
  EXPECT_EQ(plan["n_fast"], plan["n_matrices"]);
  for (const Json& cache : plan["caches"]) {
    const std::string n = std::to_string(cache["n_tokens"].get<int>() - 1);  // and a token of the answer
    const Json planned =
        RunKvc({"plan", out, "--context", n, "--max-tokens", "1", "--policy", "full", "--json"}).Json();
    EXPECT_EQ(cache["cache_bytes_full"], planned["cache_bytes_full"]) << n;
  }
}

TEST(ToolConvert, ADryRunWritesNothing) {
  const TemporaryFolder folder;
  const std::string out = folder.Path("out.kvc");
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"convert", kRecallSource, "--dry-run"},
        {"convert", kRecallSource, out, "--dry-run"}}) {
    const ProgramResult dry = RunKvc(arguments);
    ASSERT_EQ(dry.exit_code, 0) << dry.err;
    for (const char* words : {"architecture", "llama", "matrices in", "tokenizer", "turn format", "none",
                              "32,768 tokens", "budget=1024", "fast kernels for all matrices"})
      EXPECT_NE(dry.out.find(words), std::string::npos) << words << "\n" << dry.out;
    EXPECT_FALSE(std::filesystem::exists(out));
  }
  EXPECT_EQ(RunKvc({"convert", kRecallSource}).exit_code, 2);
  EXPECT_EQ(RunKvc({"convert", kRecallSource, "--dry-run", "--check-against", "x"}).exit_code, 2);
}

TEST(ToolConvert, ChecksAgainstTheLogitsOfAnother) {
  const TemporaryFolder folder;
  const Json reference = Json::parse(ReadWholeFile(kReference + "/logits.json"));
  const Json& last = reference["logits"].back();
  const Json ids(reference["ids"].begin(), reference["ids"].begin() + last["n"].get<int>());
  Json document = {{"ids", ids}, {"logits", last["values"]}};
  const std::string out = folder.Path("out.kvc"), file = folder.Write("logits.json", document.dump());
  const ProgramResult good =
      RunKvc({"convert", kReference, out, "--json", "--check-against", file, "--tolerance", "1e-3"});
  ASSERT_EQ(good.exit_code, 0) << good.err << good.out;
  EXPECT_EQ(good.Json()["check"]["n_rows"], 1);
  EXPECT_EQ(good.Json()["check"]["n_same"], 1);
  EXPECT_LT(good.Json()["check"]["distance"].get<double>(), 1e-4);
  // One logit aside: beyond the tolerance; another token the largest: wrong without one.
  document["logits"] = Json::array({last["values"]});
  document["logits"][0][3] = document["logits"][0][3].get<double>() - 0.5;
  const std::string aside = folder.Write("aside.json", document.dump());
  EXPECT_EQ(RunKvc({"convert", kReference, out, "--check-against", aside}).exit_code, 0);
  const ProgramResult far =
      RunKvc({"convert", kReference, out, "--check-against", aside, "--tolerance", "0.1"});
  EXPECT_EQ(far.exit_code, 1);
  EXPECT_NE(far.out.find("differs by 0.5"), std::string::npos) << far.out;
  document["logits"][0][3] = 1e6;
  const std::string other = folder.Write("other.json", document.dump());
  EXPECT_EQ(RunKvc({"convert", kReference, out, "--check-against", other}).exit_code, 1);
  // What is no such document.
  for (const char* text : {"[]", "{\"ids\": [1]}", "{\"ids\": [1], \"logits\": [[1, 2]]}",
                           "{\"ids\": [\"a\"], \"logits\": [1]}", "{\"ids\": [1], \"logits\": [[1], [2]]}"}) {
    const ProgramResult bad =
        RunKvc({"convert", kReference, out, "--check-against", folder.Write("bad.json", text)});
    EXPECT_EQ(bad.exit_code, 1) << text;
    EXPECT_NE(bad.err.find("bad.json"), std::string::npos) << bad.err;
  }
}

}  // namespace
