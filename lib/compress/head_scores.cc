#include "lib/compress/head_scores.h"

#include <string>

#include "lib/compress/method_table.h"
#include "lib/compress/storage_plan.h"

namespace kvc {
namespace {

// The first method that scores, reduces and decodes in the same way, and whose budgets need no head scores.
const Method* NearestWithoutScores(const Policy& policy) {
  for (const Method* m : Methods()) {
    const bool same =
        m->scorer == policy.scorer && m->reducer == policy.reducer && m->decode == policy.decode;
    if (same && m->allocator != nullptr && (m->allocator->needs & (kNeedsHeadScores | kNeedsTable)) == 0)
      return m;
  }
  return nullptr;
}

// Who needs them, and what does without: a method, or the precisions of the heads alone.
Status NoScores(const Policy& policy) {
  const bool method = policy.parts_want_head_scores();
  const Method* nearest = method ? NearestWithoutScores(policy) : nullptr;
  const std::string instead =
      !method ? ", or store all heads alike: kv=int8, kv=int4"
      : nearest == nullptr
          ? ""
          : std::string(", or use a method that needs none: the nearest is ") + nearest->name;
  return Error(
      Code::kNotFound,
      "%s needs head scores, and the model file has none%s%s; convert with --head-scores, give them to "
      "the policy%s",
      method ? policy.method->name : "kv=mixed", policy.scores_name.empty() ? "" : " named ",
      policy.scores_name.c_str(), instead.c_str());
}

}  // namespace

Status CheckHeadScores(const Policy& policy, const ModelShape& shape, const HeadScores& scores) {
  if (!policy.wants_head_scores()) return {};
  if (scores.values.empty()) return NoScores(policy);
  const size_t n = scores.values.size(), per_kv_head = static_cast<size_t>(shape.n_kv_heads_total()),
               per_head = per_kv_head * static_cast<size_t>(shape.group());
  if (n == per_kv_head || n == per_head) return {};
  return Error(Code::kInvalid,
               "the score table has %zu numbers; this model has %d layers x %d KV heads (%d query heads)", n,
               shape.n_layers, shape.n_kv_heads, shape.n_heads);
}

}  // namespace kvc
