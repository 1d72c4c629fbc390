// At max_tokens (on_full = evict, slide): every head holds what it holds, and an old entry leaves for each
// that comes, at steps and in prompts.
#include <algorithm>
#include <cstring>

#include "lib/compress/compressor.h"

namespace kvc {

void Compressor::KeepLengths(const KvCache& cache, bool in_cache, int32_t n_tokens) {
  if (in_cache && !in_cache_ && Reobserves()) UnrotateRing(n_tokens);
  keep_lengths_ = true;
  in_cache_ = in_cache_ || in_cache;
  HoldLengths(cache);
}

void Compressor::HoldLengths(const KvCache& cache) {
  for (size_t i = 0; i < held_.size(); ++i) {
    held_[i] = std::max(
        2, cache.Len(static_cast<int>(i) / shape_.n_kv_heads, static_cast<int>(i) % shape_.n_kv_heads));
  }
}

void Compressor::EvictOldest(int layer, int32_t g, KvCache* cache) {
  DropRotation(layer, cache);
  while (cache->Len(layer, g) > Held(layer, g))
    cache->Remove(layer, g, std::min(kSinks, cache->Len(layer, g) - 2));
  changed_ = true;
}

void Compressor::MakeRoom(int layer, int32_t n_new, LayerKv* kv) {
  if (in_cache_ &&
      KeysRotated(layer)) {  // loaded keys carry their original position; what follows counts in slots
    for (int32_t g = 0; g < shape_.n_kv_heads; ++g) {
      for (int32_t i = 0; i < kv->len[static_cast<size_t>(g)]; ++i)
        Unrotate(kv->Positions(g)[i], kv->Keys(g) + int64_t{i} * shape_.head_dim, 1);
    }
    keys_rotated_[static_cast<size_t>(layer)] = 0;
  }
  for (int32_t g = 0; g < shape_.n_kv_heads; ++g) {
    int32_t& len = kv->len[static_cast<size_t>(g)];
    const int32_t drop = std::min(len + n_new - Held(layer, g), len - kSinks);
    if (drop <= 0) continue;
    const int32_t rest = len - kSinks - drop;
    const auto close = [&](auto* line, int64_t width) {  // the gap behind the first four
      std::memmove(line + kSinks * width, line + (kSinks + drop) * width,
                   static_cast<size_t>(rest * width) * sizeof *line);
    };
    close(kv->Keys(g), shape_.head_dim);
    close(kv->Values(g), shape_.head_dim);
    close(kv->Positions(g), 1);
    for (int32_t a = 0; a < kv->n_aux; ++a) close(kv->Aux(a, g), 1);
    if (kv->has_seen) close(kv->Seen(g), 1);
    len -= drop;
    changed_ = true;
  }
}

// Of the marked entries of a layer at most so many of each head stay marked as it holds: behind the first
// four the oldest go. Whether any went.
bool Compressor::UnmarkOldest(int layer, const LayerKv& kv) {
  bool any = false;
  for (int32_t g = 0; g < shape_.n_kv_heads; ++g) {
    uint8_t* mark = marks_.data() + g * scratch_stride_;
    const int32_t n = kv.len[static_cast<size_t>(g)];
    int32_t over = static_cast<int32_t>(std::count(mark, mark + n, uint8_t{1})) - Held(layer, g),
            first = std::min(kSinks, Held(layer, g) - 1);
    any = any || over > 0;
    for (int32_t i = 0, seen = 0; i < n && over > 0; ++i) {
      if (mark[i] == 0 || seen++ < first) continue;
      mark[i] = 0;
      --over;
    }
  }
  return any;
}

}  // namespace kvc
