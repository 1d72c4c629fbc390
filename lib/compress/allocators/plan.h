// What the plans of all allocators share: how many candidates there are, how many may stay, and the final
// check.
#pragma once
#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/compress/budget.h"
#include "lib/compress/allocate.h"

namespace kvc {

// Entries beyond the protected part: m there are, b may stay on average.
inline int32_t CandidatesOf(const AllocateInput& in) { return std::max(in.n - in.n_protected, 0); }
inline int32_t AverageOf(const AllocateInput& in) {
  return std::clamp(in.budget - in.n_protected, 0, CandidatesOf(in));
}

// The most candidates of every head, [L, G].
inline std::vector<int32_t> RoomOf(const AllocateInput& in) {
  std::vector<int32_t> room(static_cast<size_t>(in.n_layers * in.n_kv_heads), CandidatesOf(in));
  for (size_t i = 0; i < in.room.size(); ++i) room[i] = std::min(room[i], in.room[i]);
  return room;
}

// A head with no protected part and no candidate would have nothing to attend to.
inline Status RejectEmptyHeads(const AllocateInput& in, const int32_t* counts) {
  if (in.n_protected > 0 || in.n <= 0) return {};
  for (int32_t i = 0; i < in.n_layers * in.n_kv_heads; ++i) {
    if (counts[i] > 0) continue;
    return Error(Code::kInvalid,
                 "layer %d, KV head %d would keep nothing: this policy protects no recent entries, so every "
                 "head needs at least 1 slot",
                 in.LayerAt(i / in.n_kv_heads), i % in.n_kv_heads);
  }
  return {};
}

// One count per layer, the same for all its heads.
inline Status FillLayers(const AllocateInput& in, const std::vector<int32_t>& per_layer, int32_t* counts) {
  for (int32_t layer = 0; layer < in.n_layers; ++layer) {
    std::fill_n(counts + int64_t{layer} * in.n_kv_heads, in.n_kv_heads,
                per_layer[static_cast<size_t>(layer)]);
  }
  return RejectEmptyHeads(in, counts);
}

inline Status FillAverage(const AllocateInput& in, int32_t* counts) {
  return FillLayers(in, std::vector<int32_t>(static_cast<size_t>(in.n_layers), AverageOf(in)), counts);
}

// Scores split what there is. sure: candidates that every head gets whatever its scores are.
inline Status CheckSure(const AllocateInput& in, int32_t sure) {
  if (in.n_protected > 0 || in.n <= AverageOf(in) || sure > 0) return {};
  return Error(Code::kInvalid,
               "a head gets what its scores are worth and may be left with nothing: this policy protects no "
               "recent entries, so allocator %s cannot be had with it",
               in.policy.allocator->name);
}

// Of ada's options, with so many candidates a head on the mean (methods.md 2.11).
inline int32_t SureOf(const AllocateInput& in, int32_t average) {
  const int32_t locked = in.policy.Int(OptionId::kAdaLocked);  // in safeguard mode alone
  if (locked > 0) return std::min(locked, average);
  return static_cast<int32_t>(in.policy.Real(OptionId::kAdaFloor) * average * (1 + 1e-12));
}

inline Status FillByScores(const AllocateInput& in, int32_t sure, int32_t* counts) {
  KVC_RETURN_IF_ERROR(CheckSure(in, sure));
  return FillAverage(in, counts);
}

inline Status FillHeads(const AllocateInput& in, const std::vector<int32_t>& per_head, int32_t* counts) {
  std::copy(per_head.begin(), per_head.end(), counts);
  return RejectEmptyHeads(in, counts);
}

// in.candidate_bytes by weight (methods.md 4.4 b).
inline Status ShareBytes(const AllocateInput& in, const std::vector<double>& weights, bool redistribute,
                         int32_t* counts) {
  const std::vector<int32_t> caps(weights.size(), CandidatesOf(in));
  std::vector<int32_t> per_head =
      ByteBudgetCounts(in.candidate_bytes, weights, in.entry_bytes,
                       redistribute ? Span<const int32_t>(caps) : Span<const int32_t>(), nullptr);
  for (int32_t& count : per_head) count = std::min(count, CandidatesOf(in));
  return FillHeads(in, per_head, counts);
}

// Head scores must be there for every head and be numbers. per_layer: numbers a layer of the table has.
inline Status CheckHeadScores(const AllocateInput& in, int32_t per_layer, double least) {
  for (size_t i = 0; i < in.head_scores.size(); ++i) {
    const double score = in.head_scores[i];
    if (std::isfinite(score) && score >= least) continue;
    return Error(
        Code::kInvalid, "head score of layer %d, head %d is %s: %s",
        in.LayerAt(static_cast<int32_t>(i) / per_layer), static_cast<int>(i) % per_layer,
        std::isfinite(score) ? "negative" : "not a number",
        std::isfinite(score) ? "this allocator needs scores of 0 or more" : "the head has no sample");
  }
  return {};
}

}  // namespace kvc
