// Vectors of other engines (tests/data/reference) beside sessions.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "lib/engine/session.h"
#include "models/convert/convert.h"
#include "tests/golden/golden_files.h"
#include "tests/support/exact_kernels.h"
#include "tests/support/tiny_model.h"
#include "tests/support/tiny_session.h"

namespace kvc {

constexpr double kTolerance = 1e-4;
// Two tokens whose logits are closer than this may change places.
constexpr double kSmallestGap = 5 * kTolerance;

using Tokens = std::vector<int32_t>;

inline Json ReadReference(const std::string& name) {
  std::ifstream in(std::string(KVC_TEST_DATA) + "/reference/" + name);
  return Json::parse(in);
}

inline std::shared_ptr<const Model> Converted(const std::string& source, WeightChoice weights,
                                              int32_t context = 0) {
  test::TempFolder folder;
  ConvertOptions options;
  options.weights = weights, options.context = context;
  const Status status = Convert(source, folder / "model.kvc", options, nullptr);
  EXPECT_TRUE(status.ok()) << status.message();
  if (!status.ok()) return nullptr;
  const test::ExactKernels exact;
  auto opened = Model::Open(folder / "model.kvc", {});
  EXPECT_TRUE(opened.ok()) << opened.status().message();
  return opened.ok() ? opened.value() : nullptr;
}

inline std::unique_ptr<Session> FullSession(std::shared_ptr<const Model> model) {
  const Result<Policy> policy = ParsePolicy("full:kv=f32");
  EXPECT_TRUE(policy.ok());
  auto session = Session::Create(std::move(model), &policy.value(), {});
  EXPECT_TRUE(session.ok()) << session.status().message();
  return std::move(session.value());
}

inline void Prefill(Session& session, const Tokens& ids, size_t begin, size_t end) {
  const Status status = session.Prefill({ids.data() + begin, end - begin}, true);
  ASSERT_TRUE(status.ok()) << status.message();
}

// Collects the largest difference to the reference; every one above the tolerance is a failure.
class Comparison {
 public:
  explicit Comparison(std::string name, double tolerance = kTolerance)
      : name_(std::move(name)), tolerance_(tolerance) {}
  ~Comparison() {
    testing::Test::RecordProperty(name_, Format("%.2g", worst_));
    EXPECT_GT(n_, 0) << name_;
    EXPECT_LE(worst_, tolerance_) << name_ << ", of " << n_ << " logits";
  }
  void One(const std::vector<float>& logits, size_t id, double expected) {
    const double difference = std::fabs(logits[id] - expected);
    worst_ = std::isfinite(difference) ? std::max(worst_, difference) : INFINITY;
    ++n_;
  }
  void All(Session& session, const Json& values) {
    const std::vector<float> logits = test::LogitsOf(session);
    ASSERT_EQ(logits.size(), values.size());
    for (size_t i = 0; i < values.size(); ++i) One(logits, i, values[i].get<double>());
  }
  void Pairs(Session& session, const Json& pairs) {
    const std::vector<float> logits = test::LogitsOf(session);
    for (const Json& pair : pairs) One(logits, pair[0].get<size_t>(), pair[1].get<double>());
  }
  void At(Session& session, const Json& ids, const Json& values) {
    const std::vector<float> logits = test::LogitsOf(session);
    ASSERT_EQ(ids.size(), values.size());
    for (size_t i = 0; i < ids.size(); ++i) One(logits, ids[i].get<size_t>(), values[i].get<double>());
  }

 private:
  std::string name_;
  double tolerance_, worst_ = 0;
  size_t n_ = 0;
};

// True when all of the continuation could be compared: no stop token, no two tokens too close to tell apart.
inline bool CheckContinuation(Session& session, const Json& reference) {
  const Tokens expected = reference["continuation"];
  for (size_t i = 0; i < expected.size(); ++i) {
    if (reference["gap"][i].get<double>() < kSmallestGap) return false;
    int32_t token = -1;
    const Status status = session.Step(&token);
    EXPECT_TRUE(status.ok()) << status.message();
    const bool stop = session.model().tokenizer().IsStop(expected[i]);
    EXPECT_EQ(token, stop ? -1 : expected[i]) << "token " << i;
    if (stop || token != expected[i]) return false;
  }
  const Status status = session.FeedPending();
  EXPECT_TRUE(status.ok()) << status.message();
  return true;
}

}  // namespace kvc
