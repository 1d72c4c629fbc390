#include "tools/bench_work.h"

#include <algorithm>
#include <cmath>

namespace kvc::tool {

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const double n = std::ceil(share * static_cast<double>(values.size()));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::max(n, 1.0)) - 1;
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double Mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return Ratio(sum, static_cast<double>(values.size()));
}

// 32-bit xorshift.
TokenList SyntheticTokens(int32_t n, int32_t vocab_size) {
  TokenList tokens;
  uint32_t state = 2463534242u;
  for (int32_t i = 0; i < n; ++i) {
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    tokens.push_back(static_cast<int32_t>(state % static_cast<uint32_t>(vocab_size)));
  }
  return tokens;
}

void StepOn(Session* session, int32_t instead) {
  if (!session->Step().has_value()) session->Accept(instead);
}

}  // namespace kvc::tool
