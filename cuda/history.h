// Rows below average, remembered by an entry (HistoryRule); as PushHistory of lib/ops/cpu/line_ops.cc.
#pragma once
#include "cuda/gpu.h"
#include "lib/ops/score_ops.h"

namespace kvc::cuda {

// aux(a): side value a of the entry. An entry that is alone in its row has all that a sink leaves of it;
// where there is none (`sinks`), not less than all by the rounding of a probability.
template <typename Aux>
KVC_DEVICE void PushHistory(const HistoryRule& rule, Aux aux, float p, float average, bool sinks) {
  if (rule.sums) {
    aux(0) += p;
    return;
  }
  const int32_t oldest = rule.length - 1, words = rule.words();
  const bool low = p < average && (average < 1.0f || sinks);
  uint32_t carry = low ? 1 : 0, leaving = 0;
  for (int32_t i = 0; i < words; ++i) {
    const uint32_t word = __float_as_uint(aux(1 + i));
    if (i == oldest / 32) leaving = word >> oldest % 32 & 1;
    aux(1 + i) = __uint_as_float(word << 1 | carry);
    carry = word >> 31;
  }
  aux(0) += static_cast<float>(low ? 1 : 0) - static_cast<float>(leaving);
}

}  // namespace kvc::cuda
