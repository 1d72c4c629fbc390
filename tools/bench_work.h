// What the measurements of kvc bench are made of: tokens, steps that never end, seconds, medians.
#pragma once
#include <chrono>
#include <vector>

#include "tools/kvc_handles.h"

namespace kvc::tool {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start);
// The least value that a share of all values, above 0, are not above; of none: 0.
double Quantile(std::vector<double> values, double share);
double Median(std::vector<double> values);  // of none: 0
double Mean(const std::vector<double>& values);

// The same numbers on every machine.
TokenList SyntheticTokens(int32_t n, int32_t vocab_size);

// One token of the answer. A stop token does not end it: another is put in its place.
void StepOn(Session* session, int32_t instead);

}  // namespace kvc::tool
