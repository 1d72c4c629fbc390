// docs/models.md against what it is about: its tables are what the converter's list of families and this
// run's measurements give, to the letter; and every type of GGUF is named.
#include "tests/golden/models_document.h"

#include "models/convert/gguf.h"
#include "models/convert/gguf_blocks.h"

namespace kvc {
namespace {

// A stated distance holds, and is no more than this times the measured one: the margin, twice, and a digit's
// rounding.
constexpr double kMost = 2 * kMargin * kMargin;

TEST(ModelsDocument, ItsTablesAreWhatIsMeasured) {
  const ModelsResults results = MeasureModels();
  const OrderedJson distances = ReadOrderedJson(kDistances);
  ASSERT_EQ(distances.size(), Families().size());
  ASSERT_EQ(results.families.size(), Families().size()) << "checkpoints of families that are not in the list";
  for (const Family* family : Families()) {
    const double stated = std::stod(distances.at(family->name).get<std::string>());
    const double measured = results.families.at(family->name).distance;
    RecordProperty(family->name, Format("%.2g", measured));
    EXPECT_LE(stated, kTolerance) << family->name;
    if (results.device != "cpu")
      continue;  // another device adds in another order; kTolerance holds there as well
    EXPECT_LE(measured, stated) << family->name << ": ./dev docs --models";
    EXPECT_LE(stated, kMost * measured) << family->name << ": ./dev docs --models";
  }
  for (const auto* agreements : {&results.tokenizers, &results.templates}) {
    for (const auto& [name, agreement] : *agreements) {
      EXPECT_EQ(agreement.differ, 0) << name;
      EXPECT_GT(agreement.compared, 0) << name;
    }
  }
  const std::string page = ReadTestFile(kModelsPage);
  EXPECT_EQ(WithTables(page, results, distances), page) << "./dev docs --models writes them";
}

// Nothing is said of what is not there.
TEST(ModelsDocument, ItsFactsAreOfTheListsEntries) {
  const OrderedJson facts = ModelsFacts();
  EXPECT_EQ(facts["families"].size(), Families().size());
  EXPECT_EQ(facts["tokenizers"].size(), TokenizerFamilyNames().size());
  EXPECT_EQ(Stated(1.2e-5), "2e-05");
  EXPECT_EQ(Stated(8.2e-6), "2e-05");
  EXPECT_EQ(Stated(7.9e-6), "1e-05");
  EXPECT_EQ(Stated(2.4e-5), "3e-05");
}

TEST(ModelsDocument, EveryTypeOfGgufIsNamed) {
  const std::string document = ReadTestFile(std::string(KVC_SOURCE_DIR) + "/docs/model-file.md");
  for (const BlockFormat& format : BlockFormats())
    EXPECT_NE(document.find(GgmlTypeName(format.number)), std::string::npos) << GgmlTypeName(format.number);
}

}  // namespace
}  // namespace kvc
