// JSON of others: what is refused and where, and that no text costs more than its size allows.
#include "models/convert/json.h"

#include <gtest/gtest.h>

#include "models/convert/source_file.h"
#include "tests/support/heap_faults.h"

namespace kvc {
namespace {

template <typename AnyJson>
std::string Problem(const std::string& text) {
  const Result<AnyJson> parsed = ParseJson<AnyJson>(BytesOf(text), "x.json");
  return parsed.ok() ? "" : parsed.status().message();
}

// Both kinds have the same rules.
void ExpectProblem(const std::string& text, const std::string& words) {
  for (const std::string& problem : {Problem<Json>(text), Problem<OrderedJson>(text)}) {
    EXPECT_EQ(problem.find("x.json: not valid JSON: line "), 0u) << problem;
    EXPECT_NE(problem.find(words), std::string::npos) << problem;
    EXPECT_EQ(problem.find("json.exception"), std::string::npos) << problem;
    EXPECT_LT(problem.size(), 400u);
  }
}

TEST(ConvertJson, ProblemsHaveAPlace) {
  ExpectProblem("", "line 1, column 0, byte 1: ");
  ExpectProblem("[1,\n 2,, 3]", "line 2, column 4, byte 8: ");
  ExpectProblem("[1] 2", "line 1, column 5");
  ExpectProblem("[1e400]", "number overflow parsing '1e400'");
  ExpectProblem("[-1e400]", "number overflow");
  ExpectProblem("\"\xff\"", "ill-formed UTF-8");
  ExpectProblem("{\"a\": 1,\n \"a\": 2}", "line 2, column 4, byte 13: the name 'a' stands twice");
  ExpectProblem("{\"x\": {\"a\": 1}, \"y\": {\"a\": 1, \"b\": {}, \"a\": 2}}", "'a' stands twice");
  for (const std::string& text : {std::string("[1\0]", 4), std::string("[1]\0 2", 6)}) {
    EXPECT_NE(Problem<Json>(text).find("is zero"), std::string::npos);
    EXPECT_NE(Problem<OrderedJson>(text).find("is zero"), std::string::npos);
  }
  ExpectProblem("\"" + std::string(100000, 'a'), "missing closing quote");
}

TEST(ConvertJson, DepthIsLimited) {
  const auto nested = [](size_t depth, const std::string& open, const std::string& close) {
    std::string text;
    for (size_t i = 0; i < depth; ++i) text += open;
    text += "0";
    for (size_t i = 0; i < depth; ++i) text += close;
    return text;
  };
  EXPECT_EQ(Problem<Json>(nested(kMaxJsonDepth, "[", "]")), "");
  EXPECT_EQ(Problem<OrderedJson>(nested(kMaxJsonDepth, "{\"a\":", "}")), "");
  ExpectProblem(nested(kMaxJsonDepth + 1, "[", "]"), "nested deeper than 64 levels");
  for (const char* open : {"[", "{\"a\":", "[{\"a\":", "[["}) {
    ExpectProblem(nested(1000000, open, ""), "nested deeper");
  }
}

TEST(ConvertJson, OrderAndValuesSurvive) {
  const std::string text = R"({"z":1,"a":[true,null,-7,0.5,"x\u00e4"],"m":{"q":18446744073709551615}})";
  const Result<OrderedJson> ordered = ParseJson<OrderedJson>(BytesOf(text), "x");
  ASSERT_TRUE(ordered.ok()) << ordered.status().message();
  EXPECT_EQ(ordered.value(), OrderedJson::parse(text));
  EXPECT_EQ(ordered.value().dump(), OrderedJson::parse(text).dump());
  const Result<Json> sorted = ParseJson(BytesOf(text), "x");
  ASSERT_TRUE(sorted.ok());
  EXPECT_EQ(sorted.value(), Json::parse(text));
}

// An ordered object finds a name by looking at all; with a million of them, only a parser that does not ask
// it comes to an end.
TEST(ConvertJson, AMillionNamesAreParsedInOrder) {
  std::string text = "{";
  for (int i = 0; i < 1000000; ++i) text += (i == 0 ? "\"" : ",\"") + std::to_string(i) + "\":0";
  text += "}";
  const Result<OrderedJson> parsed = ParseJson<OrderedJson>(BytesOf(text), "x");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed.value().size(), 1000000u);
  EXPECT_EQ(Problem<OrderedJson>(text.substr(0, text.size() - 1) + ",\"777\":0}").find("stands twice") !=
                std::string::npos,
            true);
}

// The texts that make the most of their bytes: json.h says what a value may take.
TEST(ConvertJson, MemoryIsBoundedByTheValues) {
  constexpr int64_t kBytesOfAValue = 120, kValues = 200000;
  const auto repeated = [](const std::string& part) {
    std::string text = "[" + part;
    for (int64_t i = 1; i < kValues; ++i) text += "," + part;
    return text + "]";
  };
  for (const char* part : {"0", "[]", "{}", "\"\"", "\"sixteen letters.\""}) {
    const std::string text = repeated(part);
    const int64_t before = test::HeapBytes();
    test::ResetHeapPeak();
    EXPECT_EQ(Problem<Json>(text), "");
    const int64_t most = test::HeapPeak() - before;
    EXPECT_LE(most, kBytesOfAValue * kValues + 2 * static_cast<int64_t>(text.size()) + 4096) << part;
  }
}

TEST(ConvertJson, TheNumberOfValuesIsLimited) {
  std::string text = "[0";
  text.reserve(static_cast<size_t>(2 * kMaxJsonValues + 8));
  for (int64_t i = 1; i < kMaxJsonValues - 1; ++i) text += ",0";
  EXPECT_EQ(Problem<Json>(text + "]"), "");
  EXPECT_NE(Problem<Json>(text + ",0]").find("more than 8388608 values"), std::string::npos);
}

}  // namespace
}  // namespace kvc
