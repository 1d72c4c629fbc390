// Measures what docs/models.md says of every family and writes its tables, and the distances that it states
// into tests/data/reference/distances.json. ./dev docs --models starts it; models_document_test.cc holds them
// to it.
#include "tests/golden/models_document.h"

namespace kvc {
namespace {

void Write(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  ASSERT_TRUE(out.good()) << path;
}

TEST(ModelsDocument, Write) {
  const ModelsResults results = MeasureModels();
  OrderedJson distances;
  for (const Family* family : Families())
    distances[family->name] = Stated(results.families.at(family->name).distance);
  ASSERT_EQ(results.device, "cpu") << "distances are those of the processor";
  const std::string page = WithTables(ReadTestFile(kModelsPage), results, distances);
  ASSERT_FALSE(HasFailure());
  Write(kDistances, distances.dump(1) + "\n");
  Write(kModelsPage, page);
}

}  // namespace
}  // namespace kvc
