// The limits of model files stand in one list; models/FORMAT.md tells them to those who write other readers.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <regex>
#include <string>

#include "lib/base/limits.h"
#include "lib/ops/cpu/matmul.h"

namespace kvc {
namespace {

std::map<std::string, int64_t> List() {
  std::map<std::string, int64_t> list;
#define KVC_LIMIT(name, value, what) list[#name] = value;
#include "lib/base/limits.list"
#undef KVC_LIMIT
  return list;
}

// Rows "| `kName` | number | ..." of the page.
std::map<std::string, int64_t> Page() {
  std::map<std::string, int64_t> page;
  std::ifstream file(KVC_SOURCE_DIR "/models/FORMAT.md");
  const std::regex row("^\\| `(k\\w+)` \\| (\\d+) \\|.*");
  std::smatch match;
  for (std::string line; std::getline(file, line);) {
    if (std::regex_match(line, match, row)) page[match[1]] = std::stoll(match[2]);
  }
  return page;
}

TEST(Limits, TheFormatPageHasTheSameList) { EXPECT_EQ(Page(), List()); }

TEST(Limits, KernelsCountOnThem) {
  // The sum of a group of products of two bytes, the largest of which are 255 * -128, fits 32 bits.
  EXPECT_LT(int64_t{kMaxWeightGroup} * 255 * 128, int64_t{INT32_MAX});
  // Scratch of a product has room for the scales of the smallest groups.
  const int64_t codes = 1024, scales = 1024 / kMinWeightGroup * static_cast<int64_t>(sizeof(float));
  EXPECT_GE(MatMulScratchBytes(ReferenceKernels(), 1, 1024), codes + scales);
}

}  // namespace
}  // namespace kvc
