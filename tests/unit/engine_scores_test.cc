// Which table of head scores a policy gets that names none.
#include <gtest/gtest.h>

#include "lib/engine/model.h"
#include "tests/support/tiny_model.h"

namespace kvc {
namespace {

HeadScoreTable Table(const char* estimator, int32_t n_columns, float value) {
  HeadScoreTable table;
  table.name = Format("%s %.0f", estimator, value), table.estimator = estimator;
  table.n_layers = 2, table.n_columns = n_columns, table.n_samples = 1;
  table.scores.assign(static_cast<size_t>(2 * n_columns), value);
  return table;
}

// The number that fills the chosen table; 0: none fits.
float Chosen(int32_t n_kv_heads, const std::vector<HeadScoreTable>& tables, const char* spec) {
  test::TinyModelOptions options;
  options.n_kv_heads = n_kv_heads;
  ModelFileContent content = test::TinyModelContent(options);
  content.head_scores = tables;
  const test::AlignedBytes bytes = test::TinyModelBytes(options, content);
  const Result<std::shared_ptr<const Model>> model =
      Model::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), {});
  EXPECT_TRUE(model.ok()) << model.status().message();
  const Result<Policy> policy = ParsePolicy(spec);
  EXPECT_TRUE(policy.ok()) << policy.status().message();
  const Result<HeadScores> scores = model.value()->ScoresFor(policy.value());
  EXPECT_TRUE(scores.ok()) << scores.status().message();
  return scores.value().values.empty() ? 0 : static_cast<float>(scores.value().values[0]);
}

constexpr const char *kCokv = "cokv:budget=64", *kHeadKv = "headkv-r2:budget=64";

TEST(ScoresFor, NumbersOfQueryHeadsGoToMethodsThatReadThem) {
  const std::vector<HeadScoreTable> tables = {Table("ssv", 2, 1), Table("headkv-r2", 4, 2),
                                              Table("ssv", 2, 3)};
  EXPECT_EQ(Chosen(2, tables, kCokv), 1);
  EXPECT_EQ(Chosen(2, tables, kHeadKv), 2);
  EXPECT_EQ(Chosen(2, {tables[1]}, kCokv), 0);
  EXPECT_EQ(Chosen(2, {tables[0]}, kHeadKv), 1);
}

// Where every KV head has one query head, shapes do not tell the tables apart.
TEST(ScoresFor, EstimatorsTellWhereShapesDoNot) {
  const std::vector<HeadScoreTable> tables = {Table("ssv", 4, 1), Table("headkv-r2", 4, 2)};
  EXPECT_EQ(Chosen(4, tables, kCokv), 1);
  EXPECT_EQ(Chosen(4, tables, kHeadKv), 2);
  EXPECT_EQ(Chosen(4, {tables[1], tables[0]}, kCokv), 1);
  EXPECT_EQ(Chosen(4, {tables[1], tables[0]}, kHeadKv), 2);
  EXPECT_EQ(Chosen(4, {tables[1]}, kCokv), 2) << "the only one there is";
  EXPECT_EQ(Chosen(4, {tables[0]}, kHeadKv), 1);
}

TEST(ScoresFor, NamesComeFirst) {
  const std::vector<HeadScoreTable> tables = {Table("ssv", 4, 1), Table("headkv-r2", 4, 2)};
  EXPECT_EQ(Chosen(4, tables, "headkv-r2:budget=64,scores=ssv 1"), 1);
  EXPECT_EQ(Chosen(4, tables, "cokv:budget=64,scores=nobody"), 0);
}

}  // namespace
}  // namespace kvc
