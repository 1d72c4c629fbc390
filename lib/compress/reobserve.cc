// decode=reobserve (methods.md 1.6): the queries of the newest tokens are kept in a ring, and when a head is
// over its budget they score it again.
#include <algorithm>
#include <cassert>
#include <cstring>

#include "lib/compress/compressor.h"

namespace kvc {

bool Compressor::Reobserves() const {
  return !policy_.keeps_all() && policy_.decode == DecodeMode::kReobserve;
}

float* Compressor::RingRow(int layer, int32_t i) {
  const int32_t w = policy_.Int(OptionId::kWindow);
  return ring_.data() + (int64_t{layer} * w + i % w) * shape_.n_heads * shape_.head_dim;
}

// All layers push once per token, so their starts and counts agree.
float* Compressor::PushRow(int layer, const float* q) {
  const int32_t w = policy_.Int(OptionId::kWindow);
  int32_t& n = ring_count_[static_cast<size_t>(layer)];
  float* row = RingRow(layer, n);
  std::memcpy(row, q, static_cast<size_t>(shape_.n_heads) * shape_.head_dim * sizeof(float));
  n = n + 1 >= 2 * w ? n + 1 - w : n + 1;
  return row;
}

// Sessions that count in slots keep queries without rotation: their slot changes with every dropped entry.
void Compressor::PushPromptQueries(int layer, const LayerKv& kv, const Observation& observed) {
  if (!Reobserves()) return;
  const int32_t d = shape_.head_dim, group = shape_.n_heads / shape_.n_kv_heads, n = observed.n_rows;
  for (int32_t i = std::max(0, n - policy_.Int(OptionId::kWindow)); i < n; ++i) {
    float* row = PushRow(layer, observed.queries.data() + int64_t{i} * shape_.n_heads * d);
    for (int32_t g = 0; in_cache_ && g < shape_.n_kv_heads; ++g)
      Unrotate(kv.len[static_cast<size_t>(g)] - n + i, row + int64_t{g} * group * d, group);
  }
}

void Compressor::PushStepQueries(int layer, const float* q, const KvCache& cache) {
  float* row = PushRow(layer, q);
  if (!in_cache_ || !KeysRotated(layer)) return;
  Unrotate(cache.PositionAt(layer, 0, cache.Len(layer, 0) - 1), row, shape_.n_heads);
}

// A session of n_tokens starts to count in slots.
void Compressor::UnrotateRing(int32_t n_tokens) {
  for (int layer = 0; layer < shape_.n_layers; ++layer) {
    const int32_t n = ring_count_[static_cast<size_t>(layer)],
                  rows = std::min(n, policy_.Int(OptionId::kWindow));
    for (int32_t i = 0; i < rows; ++i) Unrotate(n_tokens - 1 - i, RingRow(layer, n - 1 - i), shape_.n_heads);
  }
}

void Compressor::Rewind(int32_t n) {
  if (!Reobserves()) return;
  const int32_t w = policy_.Int(OptionId::kWindow);
  const int64_t width = int64_t{shape_.n_heads} * shape_.head_dim;
  for (int layer = 0; layer < shape_.n_layers; ++layer) {
    int32_t& count = ring_count_[static_cast<size_t>(layer)];
    float* first = ring_.data() + int64_t{layer} * w * width;
    if (count > w)
      std::rotate(first, first + count % w * width, first + w * width);  // the oldest to the front
    count = std::max(std::min(count, w) - n, 0);
  }
}

// The newest query rows for head scores of a layer, as they stand before the entries there are.
void Compressor::ViewRing(int layer) {
  const std::vector<int32_t>& len = reobserved_.len;
  const int32_t n = ring_count_[static_cast<size_t>(layer)], d = shape_.head_dim,
                group = shape_.n_heads / shape_.n_kv_heads,
                rows =
                    std::min({n, policy_.Int(OptionId::kWindow), *std::min_element(len.begin(), len.end())});
  const int64_t width = int64_t{shape_.n_heads} * d;
  for (int32_t i = 0; i < rows; ++i) {
    float* row = ring_view_.queries.data() + i * width;
    std::memcpy(row, RingRow(layer, n - rows + i), static_cast<size_t>(width) * sizeof(float));
    for (int32_t g = 0; in_cache_ && g < shape_.n_kv_heads; ++g)
      Rotate(len[static_cast<size_t>(g)] - rows + i, row + int64_t{g} * group * d, group);
  }
  ring_view_.n_rows = rows;
}

// Window scores of the entries there are, with the stored rows; heads above budget + slack go back to their
// budget.
void Compressor::Reobserve(int layer, KvCache* cache) {
  const int32_t slack = policy_.Int(OptionId::kSlack);
  bool over = false;
  for (int32_t g = 0; g < shape_.n_kv_heads; ++g) over = over || cache->Len(layer, g) > Cap(layer, g) + slack;
  if (!over) return;
  DropRotation(layer, cache);
  cache->Load(layer, &reobserved_);
  RotateLoaded(layer, &reobserved_);
  ViewRing(layer);
  const ScoreInput in{policy_, ops_,           reobserved_, ring_view_, scratch_,
                      layer,   shape_.n_heads, budget_,     protect_,   shape_.scale};
  ScoreOutput out{scores_.data(), scratch_stride_, &reobserved_};
  const Status status = policy_.scorer->score(in, out);
  assert(status.ok());
  (void)status;
  for (int32_t g = 0; g < shape_.n_kv_heads; ++g) {
    const int32_t len = cache->Len(layer, g);
    if (len <= Cap(layer, g) + slack) continue;
    MarkBest(layer, g, len, scores_.data() + g * scratch_stride_, reobserved_.Positions(g), lines_.data());
    RemoveUnmarked(layer, g, cache);
  }
}

}  // namespace kvc
