// Plans, to be compared.
#pragma once
#include <tuple>

#include "lib/engine/session.h"

namespace kvc::test {

// Everything that a plan says.
inline auto NumbersOf(const SessionPlan& p) {
  return std::make_tuple(p.weight_bytes, p.workspace_bytes, p.cache_bytes_peak, p.cache_bytes_prompt,
                         p.cache_bytes_end, p.cache_bytes_full, p.total_bytes_peak, p.slots);
}

}  // namespace kvc::test
