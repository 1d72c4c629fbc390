// docs/models.md against what it is about: a row for every family the converter knows, under the names of its
// sources, with a distance of logits from transformers that holds in this run; and every type of GGUF.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "lib/engine/session.h"
#include "models/convert/convert.h"
#include "models/convert/family.h"
#include "models/convert/gguf.h"
#include "models/convert/gguf_blocks.h"
#include "tests/golden/golden_files.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_session.h"

namespace kvc {
namespace {

constexpr double kMost = 1e-4;
const std::string kReference = std::string(KVC_TEST_DATA) + "/reference/";

Json ReadJson(const std::string& path) {
  std::ifstream in(path);
  return Json::parse(in);
}

std::string ReadDocument(const char* name) {
  std::ifstream in(std::string(KVC_SOURCE_DIR) + "/docs/" + name);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The largest difference of a logit after the longest prompt of a checkpoint.
double DistanceOf(const std::string& folder) {
  const Json reference = ReadJson(folder + "/logits.json");
  const Json& last = reference["logits"].back();
  const std::vector<int32_t> ids = reference["ids"];
  test::TempFolder scratch;
  ConvertOptions options;
  options.context = reference.value("context", 0), options.weights = WeightChoice::kF32;
  EXPECT_TRUE(Convert(folder, scratch / "m.kvc", options, nullptr).ok()) << folder;
  const auto model = Model::Open(scratch / "m.kvc", {});
  EXPECT_TRUE(model.ok()) << folder;
  if (!model.ok()) return INFINITY;
  const auto policy = ParsePolicy("full:kv=f32");
  auto session = Session::Create(model.value(), &policy.value(), {});
  const size_t n = last["n"];
  EXPECT_TRUE(session.ok() && session.value()->Prefill({ids.data(), n}, true).ok()) << folder;
  const std::vector<float> logits = test::LogitsOf(*session.value());
  double worst = 0;
  for (size_t i = 0; i < logits.size(); ++i)
    worst = std::max(worst, std::fabs(logits[i] - last["values"][i].get<double>()));
  return worst;
}

struct Measured {
  int n = 0;  // checkpoints
  double distance = 0;
};

std::map<std::string, Measured> MeasureAll() {
  std::map<std::string, Measured> by_architecture;
  for (const auto& entry : std::filesystem::directory_iterator(kReference)) {
    if (!entry.is_directory()) continue;
    const std::string folder = entry.path().string();
    Measured& m = by_architecture[ReadJson(folder + "/config.json")["architectures"][0].get<std::string>()];
    ++m.n;
    m.distance = std::max(m.distance, DistanceOf(folder));
  }
  return by_architecture;
}

// "| name | `Architecture` | `gguf` | "
std::string RowStart(const Family& family) {
  return std::string("| ") + family.name + " | `" + family.hf + "` | " +
         (family.gguf == nullptr ? std::string("-") : std::string("`") + family.gguf + "`") + " | ";
}

TEST(ModelsDocument, EveryFamilyHasItsRowAndKeepsItsDistance) {
  const std::string document = ReadDocument("models.md");
  const std::map<std::string, Measured> measured = MeasureAll();
  for (const Family* family : Families()) {
    const std::string start = RowStart(*family);
    const size_t row = document.find("\n" + start);
    ASSERT_NE(row, std::string::npos) << start;
    const std::string rest = document.substr(row + 1 + start.size());
    const auto found = measured.find(family->hf);
    if (found == measured.end()) {
      EXPECT_EQ(rest.compare(0, 8, "0 | - | "), 0) << start << " has no checkpoint to be compared with";
      continue;
    }
    int n = 0;
    double stated = 0;
    ASSERT_EQ(std::sscanf(rest.c_str(), "%d | %lg | ", &n, &stated), 2) << start;
    EXPECT_EQ(n, found->second.n) << start;
    EXPECT_LE(stated, kMost) << start;
    EXPECT_LE(found->second.distance, stated) << start;
  }
  constexpr char kCell[] = "ForCausalLM` |";
  size_t n_rows = 0;
  for (size_t at = document.find(kCell); at != std::string::npos; at = document.find(kCell, at + 1)) ++n_rows;
  EXPECT_EQ(n_rows, Families().size());
}

TEST(ModelsDocument, EveryTypeOfGgufIsNamed) {
  const std::string document = ReadDocument("model-file.md");
  for (const BlockFormat& format : BlockFormats())
    EXPECT_NE(document.find(GgmlTypeName(format.number)), std::string::npos) << GgmlTypeName(format.number);
}

}  // namespace
}  // namespace kvc
