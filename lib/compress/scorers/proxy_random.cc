// NACL: attention of proxy rows, and a sampled part by Gumbel keys. methods.md 2.17.
#include <algorithm>
#include <cmath>
#include <limits>

#include "lib/base/philox.h"
#include "lib/compress/scorers.h"
#include "lib/compress/scoring.h"
#include "lib/compress/select.h"

namespace kvc {
namespace {

constexpr int32_t kDefaultRecent = 32;
constexpr uint32_t kCounterTag = 0x4E;  // methods.md 3.8

Protected Protect(const Policy& policy, int32_t) {
  const int32_t recent = policy.Int(OptionId::kRecent);
  return {policy.Int(OptionId::kNSink), recent < 0 ? kDefaultRecent : recent};
}

int32_t Rows(const Policy& policy, int32_t n, int32_t) {
  const int32_t rows = policy.Int(OptionId::kProxyRows);
  return rows < 0 ? std::max(32, n / 100) : rows;
}

Status Score(const ScoreInput& in, ScoreOutput& out) {
  RowSums what;
  what.n_rows = in.observed.n_rows;
  SumRows(in, what, in.scratch.per_head);
  for (int32_t g = 0; g < in.kv.n_kv_heads; ++g) {
    ReduceGroup(in, in.scratch.per_head, g, in.kv.len[static_cast<size_t>(g)], out.scores + g * out.stride);
  }
  return {};
}

Status Select(const SelectInput& in) {
  // The random share rounds half up; the fraction is taken as a rational so that every machine rounds alike.
  const int64_t millionths = std::llround(in.policy.Real(OptionId::kRandomFraction) * 1e6);
  const int32_t n_random = static_cast<int32_t>((2 * millionths * in.count + 1000000) / 2000000),
                n_top = in.count - n_random;
  const int32_t first = in.protect.n_sink, n_free = in.n - first - in.protect.n_recent;
  std::fill(in.mark, in.mark + in.n, uint8_t{1});
  MarkTop(in.scores + first, n_free, n_top, in.keys, in.mark + first);
  const uint64_t seed = static_cast<uint64_t>(in.policy.Real(OptionId::kSeed));
  const uint32_t head = static_cast<uint32_t>(in.layer * in.n_kv_heads + in.kv_head);
  constexpr double kNever = -std::numeric_limits<double>::infinity();
  for (int32_t t = 0; t < n_free; ++t) {
    const double u =
        Uniform(Philox(head, static_cast<uint32_t>(in.positions[first + t]), 0, kCounterTag, seed)[0]);
    const double gumbel = u > 0 ? -std::log(-std::log(u)) : kNever;
    // What the first part took goes below everything that is left.
    in.line[t] = in.mark[first + t] != 0 ? -std::numeric_limits<float>::max()
                                         : static_cast<float>(in.scores[first + t] + gumbel);
  }
  // The scratch behind the keys holds the marks of the sampled part.
  uint8_t* drawn = reinterpret_cast<uint8_t*>(in.keys + in.n);
  MarkTop(in.line, n_free, std::min(n_random, n_free - n_top), in.keys, drawn);
  for (int32_t t = 0; t < n_free; ++t) in.mark[first + t] |= drawn[t];
  return {};
}

}  // namespace

extern const Scorer kScorerProxyRandom = {
    /*name=*/"proxy_random",
    /*needs=*/kNeedsWindow,
    /*one_set_per_layer=*/false,
    /*n_aux=*/nullptr,
    /*options=*/
    {OptionId::kNSink, OptionId::kRecent, OptionId::kProxyRows, OptionId::kRandomFraction, OptionId::kSeed},
    /*protect=*/Protect,
    /*window_rows=*/Rows,
    /*score=*/Score,
    /*select=*/Select,
    /*observe=*/nullptr,
    /*rank=*/nullptr,
    /*clear_after_reduce=*/false,
};

}  // namespace kvc
