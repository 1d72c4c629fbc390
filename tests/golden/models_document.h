// What docs/models.md says of every family: measured here, and written as its tables. models_document_test.cc
// holds the page to it, write_models_document.cc writes it.
#pragma once
#include <cmath>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "models/convert/family.h"
#include "tests/golden/reference_vectors.h"
#include "tests/support/chat_templates.h"
#include "tests/support/environment.h"
#include "tests/support/tokenizer_families.h"

namespace kvc {

// Compared with another program, and how many differ.
struct Agreement {
  int64_t compared = 0, differ = 0;
  void Add(const Agreement& other) { compared += other.compared, differ += other.differ; }
};

struct FamilyResult {
  int64_t checkpoints = 0, gguf_files = 0;
  double distance = 0;  // of a logit from transformers, the largest of all
};

struct ModelsResults {
  std::string device;                            // that distances were measured on
  std::map<std::string, FamilyResult> families;  // by name
  std::map<std::string, Agreement> tokenizers, templates;
};

inline const std::string kModelsPage = std::string(KVC_SOURCE_DIR) + "/docs/models.md";
inline const std::string kDistances = std::string(KVC_TEST_DATA) + "/reference/distances.json";

inline OrderedJson ReadOrderedJson(const std::string& path) { return OrderedJson::parse(ReadTestFile(path)); }
// What no test measures: which tokenizers and templates a family's members have, and what is said of it.
inline OrderedJson ModelsFacts() {
  return ReadOrderedJson(std::string(KVC_TEST_DATA) + "/models_document.json");
}

// The largest difference of a logit after the prompts of a checkpoint, weights in f32.
inline double DistanceOf(const std::string& folder, std::string* device) {
  const Json reference = Json::parse(ReadTestFile(folder + "/logits.json"));
  const Tokens ids = reference["ids"];
  const auto model = Converted(folder, WeightChoice::kF32, reference.value("context", 0));
  if (model == nullptr) return INFINITY;
  *device = model->device().info().name;
  double worst = 0;
  for (const Json& at : reference["logits"]) {
    const auto session = FullSession(model);
    Prefill(*session, ids, 0, at["n"].get<size_t>());
    const std::vector<float> logits = test::LogitsOf(*session);
    for (size_t i = 0; i < logits.size(); ++i)
      worst = std::max(worst, std::fabs(logits[i] - at["values"][i].get<double>()));
  }
  return worst;
}

// The family of a checkpoint of tests/data/reference, by what its config.json says; null where there is none.
inline const Family* FamilyOfCheckpoint(const std::string& folder) {
  const Json config = Json::parse(ReadTestFile(folder + "/config.json"));
  return FindHfFamily(config["architectures"][0].get<std::string>());
}

// By the reference kernels, which add in the same order on every processor.
inline std::map<std::string, FamilyResult> MeasureFamilies(std::string* device) {
  std::map<std::string, FamilyResult> results;
  test::SetVariable("KVC_ISA", "ref");
  const std::string data = KVC_TEST_DATA;
  for (const auto& entry : std::filesystem::directory_iterator(data + "/reference")) {
    if (!entry.is_directory()) continue;
    const Family* family = FamilyOfCheckpoint(entry.path().string());
    EXPECT_NE(family, nullptr) << entry.path();
    if (family == nullptr) continue;
    FamilyResult& result = results[family->name];
    ++result.checkpoints;
    result.distance = std::max(result.distance, DistanceOf(entry.path().string(), device));
  }
  for (const auto& entry : std::filesystem::directory_iterator(data + "/reference_gguf")) {
    const std::string name = entry.path().stem().string();
    const Family* family = FamilyOfCheckpoint(data + "/reference/hf_" + name.substr(0, name.find("_fused")));
    if (family != nullptr) ++results[family->name].gguf_files;
  }
  const Json by_llamacpp = ReadReference("gguf_llamacpp.json");
  for (const auto& [name, reference] : by_llamacpp.items()) {
    std::string family = name.substr(0, name.find('_'));
    if (family == "llama3") family = "llama";
    ++results[family].gguf_files;
  }
  return results;
}

// Of a tokenizer of tests/data/tokenizers/families, or of one of its older vectors.
inline Agreement CompareTokenizer(const std::string& name) {
  static const std::vector<std::string> strings = FamilyStrings();
  const bool older = !std::filesystem::exists(kFamilies + name + ".sums");
  const std::vector<std::string> expected =
      Lines(older ? TokenizerData(name + ".ids") : kFamilies + name + ".sums");
  const auto spec = older ? ReadTestSpec(name) : ReadHfTokenizer(ReadTestFile(kFamilies + name + ".json"));
  EXPECT_TRUE(spec.ok()) << name;
  const auto tokenizer = spec.ok() ? MakeTokenizer(spec.value()) : nullptr;
  if (tokenizer == nullptr) return {};
  Agreement result;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == "-") continue;
    ++result.compared;
    std::string got;
    if (older) {
      for (const int32_t id : Encode(*tokenizer, strings[i]))
        got += (got.empty() ? "" : " ") + std::to_string(id);
    }
    const bool equal = older ? got == expected[i].substr(0, expected[i].find('\t'))
                             : SumsOf(*tokenizer, strings[i]) == expected[i];
    result.differ += equal ? 0 : 1;
  }
  return result;
}

inline Agreement CompareTemplate(const std::string& name) {
  const TurnFormat format = FormatOf(name);
  Agreement result;
  for (const TemplateConversation& talk : ConversationsOf(name, format)) {
    ++result.compared;
    result.differ += WriteTurns(format, talk.messages) == talk.text ? 0 : 1;
  }
  return result;
}

inline ModelsResults MeasureModels() {
  ModelsResults results;
  results.families = MeasureFamilies(&results.device);
  for (const std::string& name : TokenizerFamilyNames()) results.tokenizers[name] = CompareTokenizer(name);
  const OrderedJson facts = ModelsFacts();
  for (const auto& [family, fact] : facts["families"].items()) {
    for (const std::string name : fact["tokenizers"]) {
      if (results.tokenizers.count(name) == 0) results.tokenizers[name] = CompareTokenizer(name);
    }
    for (const std::string name : fact["templates"]) {
      if (results.templates.count(name) == 0) results.templates[name] = CompareTemplate(name);
    }
  }
  return results;
}

// A distance as the page states it: a quarter more than was measured, for functions of another C library, up
// to the next of 1, 2, 3 .. 9 times a power of ten.
constexpr double kMargin = 1.25;
inline std::string Stated(double measured) {
  const double distance = kMargin * measured;
  const double power = std::pow(10, std::floor(std::log10(distance)));
  return Format("%.0e", std::ceil(distance / power * (1 - 1e-12)) * power);
}

// "`a`, `b`", or "-".
inline std::string Quoted(const OrderedJson& names) {
  std::string out;
  for (const std::string name : names) out += (out.empty() ? "`" : ", `") + name + "`";
  return out.empty() ? "-" : out;
}

// "`a`, `b` | 12, 0": which ones, how many compared, how many differ.
inline std::string AgreementCells(const OrderedJson& names, const std::map<std::string, Agreement>& results) {
  Agreement sum;
  for (const std::string name : names) sum.Add(results.at(name));
  if (names.empty()) return "- | -";
  return Quoted(names) + " | " + std::to_string(sum.compared) + ", " + std::to_string(sum.differ);
}

// distances: as they are stated, by family.
inline std::string FamiliesTable(const ModelsResults& results, const OrderedJson& distances) {
  const OrderedJson facts = ModelsFacts()["families"];
  std::string out =
      "| family | config.json | GGUF | checked | distance | GGUF checked | tokenizers | strings, differ | "
      "templates | "
      "conversations, differ | in it |\n|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const Family* family : Families()) {
    const FamilyResult& result = results.families.at(family->name);
    const OrderedJson& fact = facts.at(family->name);
    const auto number = [](int64_t n) { return n == 0 ? std::string("-") : std::to_string(n); };
    out += std::string("| ") + family->name + " | `" + family->hf + "` | ";
    out += family->gguf == nullptr ? "- | " : std::string("`") + family->gguf + "` | ";
    out += number(result.checkpoints) + " | " + distances.at(family->name).get<std::string>() + " | ";
    out += number(result.gguf_files) + " | " + AgreementCells(fact["tokenizers"], results.tokenizers) + " | ";
    out += AgreementCells(fact["templates"], results.templates) + " | " + fact["members"].get<std::string>() +
           " |\n";
  }
  return out;
}

inline std::string TokenizersTable(const ModelsResults& results) {
  const OrderedJson families = ReadOrderedJson(kFamilies + "families.json"), of = ModelsFacts()["tokenizers"];
  std::string out = "| tokenizer | strings | differ | names in GGUF | of |\n|---|---|---|---|---|\n";
  for (const auto& [name, pre] : families.items()) {
    const Agreement& a = results.tokenizers.at(name);
    out += "| " + name + " | " + std::to_string(a.compared) + " | " + std::to_string(a.differ) + " | " +
           Quoted(pre) + " | " + of.at(name).get<std::string>() + " |\n";
  }
  return out;
}

// The page with `table` between the marks of its name; unchanged where they are not there.
inline std::string WithTable(const std::string& page, const std::string& name, const std::string& table) {
  const std::string begin = "<!-- " + name + ": written by ./dev docs --models -->\n",
                    end = "<!-- " + name + ": end -->\n";
  const size_t from = page.find(begin), to = page.find(end);
  EXPECT_TRUE(from != std::string::npos && to != std::string::npos && from < to) << name;
  if (from == std::string::npos || to == std::string::npos || from > to) return page;
  return page.substr(0, from + begin.size()) + table + page.substr(to);
}

inline std::string WithTables(std::string page, const ModelsResults& results, const OrderedJson& distances) {
  page = WithTable(page, "families", FamiliesTable(results, distances));
  return WithTable(page, "tokenizers", TokenizersTable(results));
}

}  // namespace kvc
