// kvc convert as a doctor: what it says beforehand is what it makes, and a reference tells right from wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>

#include "tests/tool/run_program.h"

namespace {

using Json = nlohmann::json;

const std::string kRecallSource = KVC_SOURCE_DIR "/models/recall";
const std::string kData = KVC_SOURCE_DIR "/tests/data/reference";
const std::string kReference = kData + "/hf_granite";

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
  // Scores beside a checkpoint are taken when asked for, and not without a word.
  const std::string scores = kRecallSource + "/head_scores.json";
  EXPECT_NE(made.err.find("--head-scores " + scores), std::string::npos) << made.err;
  const ProgramResult with = RunKvc({"convert", kRecallSource, "--dry-run", "--head-scores", scores});
  EXPECT_EQ(with.exit_code, 0);
  EXPECT_EQ(with.err, "");
}

// The rows of a table that kvc printed whose first cell begins so, their cells apart.
std::vector<std::vector<std::string>> Rows(const std::string& text, const std::string& beginning) {
  std::vector<std::vector<std::string>> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    line.erase(0, line.find_first_not_of(' '));
    if (line.compare(0, beginning.size(), beginning) != 0) continue;
    rows.emplace_back();
    for (size_t at = 0; at < line.size();) {
      const size_t end = std::min(line.find("  ", at), line.size());
      rows.back().push_back(line.substr(at, end - at));
      at = std::min(line.find_first_not_of(' ', end), line.size());
    }
  }
  return rows;
}

Json Plan(const std::string& model, const std::string& n, const std::string& policy) {
  const ProgramResult plan =
      RunKvc({"plan", model, "--context", n, "--max-tokens", "1", "--policy", policy, "--json"});
  EXPECT_EQ(plan.exit_code, 0) << plan.err;
  return plan.Json();
}

// What a cache takes is what `kvc plan` says of the finished file, windows and their slack, pages and all.
TEST(ToolConvert, CachesAreThoseOfThePlan) {
  const TemporaryFolder folder;
  const std::string out = folder.Path("out.kvc");
  for (const std::string& source : {kRecallSource, kData + "/hf_gemma3"}) {
    const ProgramResult made = RunKvc({"convert", source, out, "--json"});
    ASSERT_EQ(made.exit_code, 0) << made.err;
    const std::string table = RunKvc({"convert", source, "--dry-run"}).out;
    const Json caches = made.Json()["plan"]["caches"];
    ASSERT_EQ(caches.size(), 3u);
    for (const Json& cache : caches) {
      EXPECT_EQ(cache["policy"], "snapkv:budget=1024");
      const std::string n = std::to_string(cache["n_tokens"].get<int>());
      EXPECT_EQ(cache["cache_bytes_full"], Plan(out, n, "full")["cache_bytes_prompt"]) << source << n;
      EXPECT_EQ(cache["cache_bytes"], Plan(out, n, "snapkv:budget=1024")["cache_bytes_prompt"])
          << source << n;
      EXPECT_LT(cache["cache_bytes"], cache["cache_bytes_full"]);
    }
    const ProgramResult plan =
        RunKvc({"plan", out, "--context", "32768", "--max-tokens", "1", "--policy", "snapkv:budget=1024"});
    const auto planned = Rows(plan.out, "cache after the prompt"), shown = Rows(table, "32,768 tokens");
    ASSERT_EQ(planned.size(), 1u) << plan.out;
    ASSERT_EQ(shown.size(), 1u) << table;
    EXPECT_EQ(shown[0].back(), planned[0][1]);
  }
}

TEST(ToolConvert, WhereEveryLayerHasAWindowNothingIsCompressed) {
  const TemporaryFolder folder;
  const std::string source = kData + "/hf_mistral_window", out = folder.Path("out.kvc");
  const ProgramResult made = RunKvc({"convert", source, out, "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.err;
  const Json document = made.Json();
  for (const Json& cache : document["plan"]["caches"]) {
    const std::string n = std::to_string(cache["n_tokens"].get<int>());
    EXPECT_EQ(cache["cache_bytes_full"], Plan(out, n, "full")["cache_bytes_prompt"]) << n;
    EXPECT_TRUE(cache["cache_bytes"].is_null());
    const ProgramResult refused =
        RunKvc({"plan", out, "--context", n, "--max-tokens", "1", "--policy", "snapkv:budget=1024"});
    EXPECT_EQ(refused.exit_code, 1);
    EXPECT_NE(refused.err.find(cache["refusal"].get<std::string>()), std::string::npos) << refused.err;
  }
  const ProgramResult dry = RunKvc({"convert", source, "--dry-run"});
  EXPECT_EQ(Rows(dry.out, "32,768 tokens")[0].back(), "refused") << dry.out;
  EXPECT_NE(dry.out.find("every layer of this model attends to its newest 24 tokens only"), std::string::npos)
      << dry.out;
}

// Parameters, counted from the source's own header; experts are all of them.
TEST(ToolConvert, CountsParameters) {
  for (const auto& [name, shown] :
       std::map<std::string, std::string>{{"hf_granite", "32.2 K"}, {"hf_qwen3moe", "66.8 K"}}) {
    const std::string source = kData + "/" + name, file = ReadWholeFile(source + "/model.safetensors");
    uint64_t n_header = 0;
    std::memcpy(&n_header, file.data(), sizeof n_header);
    int64_t n = 0;
    const Json header = Json::parse(file.substr(8, n_header));
    for (const auto& [tensor, about] : header.items()) {
      if (tensor == "__metadata__") continue;
      int64_t elements = 1;
      for (const Json& size : about["shape"]) elements *= size.get<int64_t>();
      n += elements;
    }
    const ProgramResult json = RunKvc({"convert", source, "--dry-run", "--json"});
    ASSERT_EQ(json.exit_code, 0) << json.err;
    EXPECT_EQ(json.Json()["n_parameters"], n) << name;
    const ProgramResult table = RunKvc({"convert", source, "--dry-run"});
    EXPECT_NE(table.out.find(", " + shown + " parameters\n"), std::string::npos) << table.out;
  }
}

// What is lost, by the types of the source: the table says what the document says, and types that are kept or
// held exactly lose nothing. (That the numbers are right: unit test GgufBlocks.)
TEST(ToolConvert, TellsWhatIsLost) {
  const TemporaryFolder folder;
  const std::string source = KVC_SOURCE_DIR "/tests/data/convert/mixed.gguf", out = folder.Path("out.kvc");
  const ProgramResult printed = RunKvc({"convert", source, out}),
                      json = RunKvc({"convert", source, out, "--json"});
  ASSERT_EQ(printed.exit_code, 0) << printed.err;
  ASSERT_EQ(json.exit_code, 0) << json.err;
  const Json types = json.Json()["types"];
  ASSERT_GE(types.size(), 10u);
  const std::string table = printed.out.substr(printed.out.find("in the source"));
  int n_lossy = 0;
  for (const Json& type : types) {
    const std::string name = type["source"];
    const auto rows = Rows(table, name + " ");
    ASSERT_EQ(rows.size(), 1u) << name << "\n" << table;
    const int group = type["group"];
    std::vector<std::string> wanted = {
        name, std::to_string(type["n_tensors"].get<int>()),
        type["type"].get<std::string>() + (group > 0 ? ", groups of " + std::to_string(group) : ""),
        rows[0][3], "none"};
    const double loss = type["loss"];
    EXPECT_EQ(type["exact"], loss == 0) << name;
    if (loss > 0) {
      char percent[32];
      std::snprintf(percent, sizeof percent, "%.3f %%", 100 * loss);
      wanted.back() = percent;
      ++n_lossy;
    }
    EXPECT_EQ(rows[0], wanted);
    EXPECT_LT(loss, 0.008);
  }
  const auto loss_of = [&](const char* name) {
    for (const Json& type : types) {
      if (type["source"] == name) return type["loss"].get<double>();
    }
    return -1.0;
  };
  for (const char* kept : {"Q4_K", "Q6_K", "Q4_0", "Q5_0"}) EXPECT_EQ(loss_of(kept), 0) << kept;
  for (const char* changed : {"Q2_K", "Q4_1", "Q5_K"}) EXPECT_GT(loss_of(changed), 0) << changed;
  EXPECT_GT(n_lossy, 2);
  EXPECT_LT(n_lossy, static_cast<int>(types.size()));
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
