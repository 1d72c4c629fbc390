// Scissorhands' counters against a count over all rows that are still remembered.
#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "lib/compress/policy.h"
#include "lib/compress/scorers.h"
#include "lib/compress/scoring.h"

namespace kvc {
namespace {

TEST(Persistence, CountsTheRowsOfTheHistory) {
  constexpr int32_t kTokens = 40, kRows = 150;
  for (const int32_t history : {1, 5, 31, 32, 33, 64, 100}) {
    const Result<Policy> policy =
        ParsePolicy(("scissorhands:budget=64,recent=4,drop=8,history=" + std::to_string(history)).c_str());
    ASSERT_TRUE(policy.ok()) << policy.status().message();
    const int32_t n_aux = kScorerPersistence.n_aux(policy.value());
    std::vector<std::vector<float>> values(static_cast<size_t>(n_aux), std::vector<float>(kTokens, 0.0f));
    std::vector<float*> aux;
    for (std::vector<float>& value : values) aux.push_back(value.data());
    std::mt19937 random(static_cast<uint32_t>(history));
    std::vector<std::vector<bool>> low(kTokens);
    for (int32_t row = 0; row < kRows; ++row) {
      std::vector<float> p(kTokens);
      for (float& x : p) x = static_cast<float>(random() % 1000) / (500.0f * kTokens);
      for (size_t t = 0; t < p.size(); ++t) low[t].push_back(p[t] < 1.0f / kTokens);
      const DecodeInput step{policy.value(), p.data(), aux.data(), nullptr, nullptr, kTokens, 1, 64};
      kScorerPersistence.observe(step);
      for (size_t t = 0; t < p.size(); ++t) {
        const size_t n = low[t].size(), first = n - std::min(n, static_cast<size_t>(history));
        float expected = 0;
        for (size_t r = first; r < n; ++r) expected += low[t][r] ? 1.0f : 0.0f;
        ASSERT_EQ(aux[0][t], expected) << "history " << history << ", row " << row << ", token " << t;
      }
    }
  }
}

}  // namespace
}  // namespace kvc
