// Layers that share one budget: their scores are compared (methods.md 2.18).
#include <algorithm>
#include <functional>

#include "lib/base/ordered_bits.h"
#include "lib/compress/compressor.h"

namespace kvc {

// ---- scores that wait ----

Status WaitingScores::Reserve(MemoryMeter* meter, int64_t n_heads, int64_t longest) {
  if (longest <= longest_ && n_heads * longest_ <= scores_.size()) return {};
  Free();
  KVC_RETURN_IF_ERROR(scores_.Allocate(meter, n_heads * longest, "scores of all layers"));
  n_.assign(static_cast<size_t>(n_heads), 0);
  longest_ = longest;
  return {};
}

Status WaitingScores::ReserveRoom(MemoryMeter* meter, int64_t each) {
  return room_.Reserve(meter, each * scores_.size(), "scores of all layers");
}

void WaitingScores::Free() {
  scores_.Free(), room_.Free();
  n_.clear();
  longest_ = 0;
}

Status Compressor::ReserveLines(MemoryMeter* meter, int64_t longest) {
  const int64_t n_layers = static_cast<int64_t>(plan_.sharing_layers().size());
  return waiting_.Reserve(meter, n_layers * plan_.shape().n_kv_heads, longest);
}

Status Compressor::ReserveWaiting(MemoryMeter* meter, int64_t longest) {
  return keeps_scores_waiting() ? ReserveLines(meter, longest) : Status();
}

Status Compressor::ReserveComparison(MemoryMeter* meter, int64_t longest) {
  if (!waits_for_all_layers()) return {};
  KVC_RETURN_IF_ERROR(ReserveLines(meter, longest));
  return waiting_.ReserveRoom(meter, plan_.fills_bytes() ? sizeof(StoragePlan::Candidate) : sizeof(uint32_t));
}

namespace {

// Of head g, where Score leaves them.
DevicePtr<float> ScoresOf(const ChoiceBuffers& b, size_t g) {
  return b.scores.at() + static_cast<int64_t>(g) * b.stride;
}

// What may stay of a head, but for one that has its slot.
struct Compared {
  Span<const float> scores;
  const float* stands_in;
  // Calls f(OrderedBits of a score) for each.
  template <typename F>
  void For(F&& f) const {
    for (const float& score : scores) {
      if (&score != stands_in) f(OrderedBits(score));
    }
  }
};

}  // namespace

Status Compressor::LetWait(const LayerChoice& c) {
  KVC_RETURN_IF_ERROR(ReservePrompt(c.work.memory(), c.kv.Longest(), c.observed.n_rows, c.work.choice));
  KVC_RETURN_IF_ERROR(Score(c));
  for (size_t g = 0; g < c.kv.len().size(); ++g) {
    const int32_t n = c.kv.len()[g];
    float* to = waiting_.Begin(WaitingLine(c.layer, static_cast<int32_t>(g)), n);
    KVC_RETURN_IF_ERROR(c.work.device->Read(c.work.stream, ScoresOf(*c.work.choice, g).As<const uint8_t>(),
                                            to, 4 * int64_t{n}));
  }
  return {};
}

Status Compressor::TakeWaiting(const LayerChoice& c) const {
  for (size_t g = 0; g < c.kv.len().size(); ++g) {
    const Span<const float> scores = waiting_.Of(WaitingLine(c.layer, static_cast<int32_t>(g)));
    KVC_RETURN_IF_ERROR(c.work.device->Write(c.work.stream, ScoresOf(*c.work.choice, g).As<uint8_t>(),
                                             scores.data(), static_cast<int64_t>(4 * scores.size())));
  }
  return {};
}

Status Compressor::AddScores(const LayerWork& work, int32_t layer, const LayerBuffers& kv,
                             const ObservedBuffers& observed) {
  std::fill(layer_all_see_.begin(), layer_all_see_.end(), uint8_t{1});
  return LetWait({work, layer, kv, observed, layer_counts_, layer_kept_, layer_all_see_});
}

// ---- comparing them ----

// The scores of what may stay of a head.
Span<const float> Compressor::CandidatesOf(size_t head) const {
  const int32_t g = plan_.shape().n_kv_heads, layer = static_cast<int32_t>(head) / g;
  if (slides(layer)) return {};
  const Span<const float> scores = waiting_.Of(WaitingLine(layer, static_cast<int32_t>(head) % g));
  const int32_t n = static_cast<int32_t>(scores.size());
  return scores.subspan(static_cast<size_t>(std::min(protect_.n_sink, n)),
                        static_cast<size_t>(Candidates(n)));
}

// The best of all: score descending, then layer, head and position ascending.
void Compressor::ChooseAcrossLayers() {
  int64_t budget = 0, n_all = 0;
  uint32_t* all = static_cast<uint32_t*>(waiting_.room());
  std::vector<Compared> heads;
  for (size_t i = 0; i < counts_.size(); ++i) {
    budget += counts_[i];
    const Span<const float> scores = CandidatesOf(i);
    // The entry for the rest has a slot already: alone, the worst is it.
    const bool rest = policy().n_rest() > 0 && !scores.empty();
    heads.push_back({scores, rest ? std::min_element(scores.begin(), scores.end()) : nullptr});
    heads[i].For([&](uint32_t bits) { all[n_all++] = bits; });
  }
  const bool everything = budget >= n_all;
  uint32_t worst = UINT32_MAX;  // of those that stay; no score is that much
  if (!everything && budget > 0) {
    std::nth_element(all, all + (budget - 1), all + n_all, std::greater<uint32_t>());
    worst = all[budget - 1];
  }
  int64_t ties = budget - std::count_if(all, all + n_all, [&](uint32_t bits) { return bits > worst; });
  const bool fills = !everything && plan_.fills_bytes();
  // Of those that do not stay, in the place of `all`.
  auto* next = static_cast<StoragePlan::Candidate*>(waiting_.room());
  int64_t n_next = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    if (slides(static_cast<int32_t>(i) / plan_.shape().n_kv_heads)) continue;
    int32_t n = 0, count = 0, tied = 0;
    heads[i].For([&](uint32_t bits) { ++n, count += bits > worst, tied += bits == worst; });
    const int32_t taken = static_cast<int32_t>(std::clamp<int64_t>(ties, 0, tied));
    ties -= taken;
    counts_[i] = everything ? n : count + taken;
    if (!everything) caps_[i] = counts_[i] + n_protected();
    if (!fills) continue;
    for (int32_t left = tied - taken; left > 0; --left) next[n_next++] = {worst, static_cast<int32_t>(i)};
    heads[i].For([&](uint32_t bits) {
      if (bits < worst) next[n_next++] = {bits, static_cast<int32_t>(i)};
    });
  }
  if (fills) plan_.FillBytes(n_tokens_, next, n_next, &caps_);
  for (size_t i = 0; fills && i < caps_.size(); ++i) {
    if (!slides(static_cast<int32_t>(i) / plan_.shape().n_kv_heads)) counts_[i] = caps_[i] - n_protected();
  }
  step_stale_ = reduces_all_ = true;
}

}  // namespace kvc
