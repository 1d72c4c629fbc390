// Scissorhands' counters against a count over all rows that are still remembered.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"
#include "tests/support/test_device.h"

namespace kvc {
namespace {

// Every step is a row that looks at all entries there are.
TEST(Persistence, CountsTheRowsOfTheHistory) {
  constexpr int32_t kRows = 150, kDim = 8;
  for (const int32_t history : {1, 5, 31, 32, 33, 64, 100}) {
    const Result<Policy> policy =
        ParsePolicy(("scissorhands:budget=64,recent=4,drop=8,history=" + std::to_string(history)).c_str());
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    test::TestDevice memory(1);
    test::TokenStep step(&memory);
    const Rope none = Rope::None(kDim);
    test::UniformLayout layout;
    layout.head_dim = kDim, layout.n_aux = kScorerPersistence.n_aux(policy.value());
    auto cache = KvCache::Create(layout.Make(), memory.arenas());
    ASSERT_TRUE(cache.ok());
    StepScoring scoring;
    kScorerPersistence.step(policy.value(), &scoring);
    StepPlan plan;
    std::copy_n(scoring.instrs, scoring.n_instrs, plan.instrs);
    plan.n_instrs = scoring.n_instrs, plan.needs_attention = scoring.needs_attention;
    kScorerPersistence.history(policy.value(), &plan.history);
    const DeviceBuffer<float> attention = memory.Upload(std::vector<float>(kRows));
    plan.attention = attention.at(), plan.attention_stride = kRows;
    std::mt19937 random(static_cast<uint32_t>(history));
    const auto vector = [&random] {
      std::vector<float> x(kDim);
      for (float& f : x) f = std::normal_distribution<float>()(random);
      return x;
    };
    std::vector<std::vector<bool>> low;
    for (int32_t row = 0; row < kRows; ++row) {
      ASSERT_TRUE(step.Ensure(cache.value().get(), true).ok());
      step.Run(*cache.value(), plan, {0, row, vector(), vector(), vector(), &none});
      step.Done(cache.value().get());
      const std::vector<float> p = memory.Read(attention.at(), row + 1);
      test::HostLayer got = memory.Load(*cache.value(), 0);
      low.emplace_back();
      for (size_t t = 0; t < p.size(); ++t) {
        low[t].push_back(p[t] < 1.0f / static_cast<float>(p.size()));
        const size_t n = low[t].size(), first = n - std::min(n, static_cast<size_t>(history));
        float expected = 0;
        for (size_t r = first; r < n; ++r) expected += low[t][r] ? 1.0f : 0.0f;
        ASSERT_EQ(got.Aux(0, 0, static_cast<int64_t>(t)), expected)
            << "history " << history << ", row " << row << ", token " << t;
      }
    }
  }
}

}  // namespace
}  // namespace kvc
