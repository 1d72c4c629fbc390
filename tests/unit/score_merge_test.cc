// Merging records that others wrote: what is no item of the measurement is refused, and nothing costs more
// than its size is worth.
#include "tools/score/merge.h"

#include <gtest/gtest.h>

#include <functional>

#include "tests/support/heap_faults.h"
#include "tools/failure.h"
#include "tools/files.h"

namespace kvc::tool {
namespace {

Json Header() {
  ScorePlan plan;
  plan.n_layers = 2, plan.n_kv_heads = 3, plan.sizes = {1, 3};
  MeasuredWhat what;
  what.method = "ssv", what.utility = "nll", what.protocol = "ask", what.n_examples = 4;
  what.data = Json::array();
  return LogHeader(plan, what);
}

std::string Record(uint32_t run, uint32_t size, uint32_t sample, double in = 0.5, double out = 0.25,
                   int n_examples = 4) {
  return CheckedLine(kvc::tool::Format("%u %u %u %d %a %a", run, size, sample, n_examples, in, out));
}

std::string Log(const Json& header, const std::string& records) {
  return CheckedLine(header.dump()) + records;
}

// Enough samples of all runs and sizes for every head.
std::string Complete(uint32_t n_samples = 20) {
  std::string records;
  for (uint32_t sample = 0; sample < n_samples; ++sample) {
    for (const uint32_t run : {0u, 1u}) {
      for (const uint32_t size : {1u, 3u}) records += Record(run, size, sample, 0.5 / (1 + sample), 0.25);
    }
  }
  return records;
}

Json Merged(const std::vector<std::string>& logs, Variant variant = Variant::kBoth) {
  LogMerger merger;
  for (const std::string& log : logs) merger.Add("x.log", ParseWorkLog(log, "x.log"));
  const EstimateOptions options{variant, true, false};
  return ScoreJson(merger.plan(), merger.what(), options,
                   MakeReport(merger.plan(), merger.results(), options), "name");
}

void ExpectRefused(const std::string& log, const std::string& words) {
  try {
    Merged({log});
    ADD_FAILURE() << "taken, though: " << words;
  } catch (const Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find(words), std::string::npos) << failure.what();
    EXPECT_EQ(std::string(failure.what()).find("json.exception"), std::string::npos) << failure.what();
  }
}

TEST(ScoreMerge, PartsGiveWhatTheWholeGives) {
  const std::string records = Complete();
  const Json whole = Merged({Log(Header(), records)});
  EXPECT_EQ(whole["samples"], 20 * 2 * 2);
  std::string parts[3];
  size_t begin = 0;
  for (int i = 0; begin < records.size(); ++i) {
    const size_t end = records.find('\n', begin) + 1;
    parts[i % 3] += records.substr(begin, end - begin);
    begin = end;
  }
  EXPECT_EQ(Merged({Log(Header(), parts[2]), Log(Header(), parts[0]), Log(Header(), parts[1])}), whole);
}

TEST(ScoreMerge, ItemsOfNoMeasurementAreRefused) {
  const std::string good = Complete();
  const char* const no_item = "is no item of this measurement";
  ExpectRefused(Log(Header(), good + Record(0, 1, 4294967294u)), no_item);
  ExpectRefused(Log(Header(), good + Record(0, 1, 4294967295u)), no_item);
  ExpectRefused(Log(Header(), good + Record(0, 1, kMostSamples)), no_item);
  ExpectRefused(Log(Header(), good + Record(2, 1, 0)), no_item);
  ExpectRefused(Log(Header(), good + Record(0, 2, 0)), no_item);
  ExpectRefused(Log(Header(), good + Record(0, 0, 0)), no_item);
  ExpectRefused(Log(Header(), good + Record(0, 4294967295u, 0)), no_item);
  ExpectRefused(Log(Header(), good + Record(0, 1, 50, 0.5, 0.5, 3)), no_item);
  ExpectRefused(Log(Header(), good + Record(0, 1, 50, 0.5, 0.5, -4)), no_item);
  ExpectRefused(Log(Header(), good + Record(0, 1, 50, 1.5)), "a utility outside 0 .. 1");
  ExpectRefused(Log(Header(), good + Record(0, 1, 50, -0.5)), "a utility outside 0 .. 1");
  ExpectRefused(Log(Header(), good + Record(0, 1, 50, NAN)), "a utility outside 0 .. 1");
  ExpectRefused(Log(Header(), good + Record(0, 1, 50, INFINITY)), "a utility outside 0 .. 1");
  ExpectRefused(Log(Header(), good + Record(0, 1, 3, 0.75)), "is there twice with different utilities");
  for (const char* odd : {"0 1 4294967296 4 0x1p-1 0x1p-2", "0 1 -1 4 0x1p-1 0x1p-2", "0 1 5 4 0.5 0.25",
                          " 0 1 5 4 0x1p-1 0x1p-2", "0 1 5 4 0x1p-1 0x1p-2 7", "0 1 5 4 0x1p-1", ""})
    ExpectRefused(Log(Header(), good + CheckedLine(odd) + good), "no record of head scoring");
  ExpectRefused(Log(Header(), ""), "not enough samples: there is none of size 1 in run 0");
  ExpectRefused(Log(Header(), Record(0, 1, 0) + Record(0, 3, 0)), "not enough samples");
  // Samples far apart are few, whatever their numbers.
  EXPECT_EQ(Merged({Log(Header(), good + Record(0, 1, kMostSamples - 1))})["samples"], 20 * 2 * 2);
}

TEST(ScoreMerge, HeadersThatMakeNoSenseAreRefused) {
  const auto with = [](const char* key, const Json& value) {
    Json header = Header();
    header[key] = value;
    return Log(header, Complete());
  };
  ExpectRefused(with("shape", {1024, 1024}), "at most 16384");
  ExpectRefused(with("shape", {2147483647, 2147483647}), "shape");
  ExpectRefused(with("shape", {0, 3}), "shape");
  ExpectRefused(with("shape", {-2, -3}), "shape");
  ExpectRefused(with("shape", {2.5, 3}), "shape");
  ExpectRefused(with("shape", {2, 3, 1}), "shape must be [layers, heads]");
  ExpectRefused(with("shape", "2x3"), "shape");
  for (const Json& layers : {Json::array(), Json{0, 0}, Json{1, 0}})
    ExpectRefused(with("layers", layers), "layers must be numbers of layers, ascending");
  ExpectRefused(with("layers", {2}), "outside 0 .. 1");
  ExpectRefused(with("layers", {-1}), "outside 0 .. 1");
  ExpectRefused(with("layers", {1}), "coalitions have 1 to 2 of the 3 heads");
  ExpectRefused(with("sizes", Json::array()), "0 sizes");
  ExpectRefused(with("sizes", {1, 1}), "1 stands twice");
  ExpectRefused(with("sizes", {6}), "coalitions have 1 to 5 of the 6 heads");
  ExpectRefused(with("sizes", {1, {2}}), "sizes");
  ExpectRefused(with("runs", 0), "runs is 0, outside 1 .. 1024");
  ExpectRefused(with("runs", 1025), "runs is 1025");
  ExpectRefused(with("runs", 1e300), "runs");
  ExpectRefused(with("n_examples", 0), "n_examples");
  ExpectRefused(with("n_examples", 99999999999), "n_examples");
  ExpectRefused(with("draw_examples", -1), "draw_examples");
  ExpectRefused(with("seed", "one"), "seed must be a whole number");
  ExpectRefused(with("balanced", 1), "balanced must be true or false");
  ExpectRefused(with("model", 7), "model must be text");
  ExpectRefused(with("format", 7), "format must be text");
  ExpectRefused(with("format", "kvc-score-log/9"), "another version");
  ExpectRefused(with("method", "exact"), "no exact measurement");
  Json header = Header();
  header.erase("window");
  ExpectRefused(Log(header, Complete()), "incomplete: no window");
  ExpectRefused(CheckedLine(std::string(100000, '[')) + Complete(), "nested deeper");
  ExpectRefused(CheckedLine("[]") + Complete(), "no log of head scoring");
}

// A coalition's number is its bit mask, which the values of all coalitions are stored by.
TEST(ScoreMerge, CoalitionsOfAnExactMeasurementAreThoseOfItsHeads) {
  Json header = Header();
  header["method"] = "exact", header["sizes"] = Json::array(), header["runs"] = 1;
  std::string all;
  for (uint32_t set = 0; set < 32; ++set)
    all += Record(0, static_cast<uint32_t>(__builtin_popcount(set)), set);
  EXPECT_EQ(Merged({Log(header, all)})["samples"], 64);
  ExpectRefused(Log(header, all + Record(0, 1, 32)), "no item");
  ExpectRefused(Log(header, all + Record(0, 1, 0x80000000u)), "no item");
  ExpectRefused(Log(header, all + Record(0, 32, 4294967295u)), "no item");
  ExpectRefused(Log(header, Record(0, 2, 1)), "no item");
  ExpectRefused(Log(header, Record(1, 1, 1)), "no item");
  ExpectRefused(Log(header, Record(0, 1, 1)), "not enough samples: 1 of 32");
}

// The largest claims with the fewest items: memory follows the items.
TEST(ScoreMerge, ClaimsOfAHeaderTakeNothing) {
  Json header = Header();
  header["shape"] = {128, 128}, header["runs"] = kMostRuns, header["sizes"] = Json::array();
  for (int size = 1; size <= kMostSizes; ++size) header["sizes"].push_back(size);
  const std::string log = Log(header, Record(0, 1, 0) + Record(0, 2, 0));
  for (const Variant variant : {Variant::kLeft, Variant::kBoth, Variant::kRegression}) {
    const int64_t before = test::HeapBytes();
    test::ResetHeapPeak();
    EXPECT_THROW(Merged({log}, variant), Failure);
    EXPECT_LE(test::HeapPeak() - before, 1 << 20);
  }
}

// Shapley values count by their differences, retrieval scores by their ratios: these keep their offset.
TEST(ScoreMerge, RetrievalScoresStayWhatTheyAre) {
  const auto average = [](const char* estimator) {
    const Json one{{"estimator", estimator}, {"scores", {{1, 2}, {3, 6}}}},
        other{{"estimator", estimator}, {"scores", {{3, 2}, {1, 0}}}};
    return AverageScores({{"a", one}, {"b", other}}, "")["scores"];
  };
  EXPECT_EQ(average("headkv-r2"), Json({{2.0, 2.0}, {2.0, 3.0}}));
  EXPECT_EQ(average("ssv"), Json({{-0.25, -0.25}, {-0.25, 0.75}}));
}

TEST(ScoreMerge, ScoreFilesAreCheckedToo) {
  const Json good = ParseJsonText(R"({"estimator":"ssv","samples":3,"scores":[[1,2],[3,6]]})", "x");
  EXPECT_EQ(AverageScores({{"a", good}, {"b", good}}, "")["samples"], 6);
  const auto expect = [&](const char* key, const Json& value, const std::string& words) {
    Json bad = good;
    bad[key] = value;
    try {
      AverageScores({{"a", good}, {"b.json", bad}}, "");
      ADD_FAILURE() << words;
    } catch (const Failure& failure) {
      EXPECT_NE(std::string(failure.what()).find(words), std::string::npos) << failure.what();
    }
  };
  expect("utility", "nll", "utilities of another kind");
  expect("samples", -1, "b.json: samples is -1");
  expect("samples", "three", "b.json: samples must be a whole number");
  expect("samples", 1e300, "b.json: samples");
  expect("dataset", 7, "b.json: dataset must be text");
  expect("estimator", Json::array(), "b.json: estimator must be text");
  expect("scores", {{1, 2}, {3}}, "rows of equal length");
  expect("scores", {{1, 1e39}, {3, 4}}, "too large for a score");
  expect("scores", {{1, nullptr}, {3, 4}}, "a score is no number");
  expect("scores_by_run", 7, "no scores in it");
  Json rows = Json::array();
  for (int i = 0; i < 70000; ++i) rows.push_back({1});
  expect("scores", rows, "70000 x 1 scores, at most 65536");
}

}  // namespace
}  // namespace kvc::tool
