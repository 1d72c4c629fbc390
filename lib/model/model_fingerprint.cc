#include "lib/model/model_fingerprint.h"

#include <string>

#include "lib/base/hash.h"
#include "lib/base/heap_sort.h"

namespace kvc {
namespace {

// Feeds values in their little-endian form; vectors and texts behind their count as u64.
class Feed {
 public:
  template <typename... T>
  void Values(const T&... values) {
    (hasher_.Update(&values, sizeof(values)), ...);
  }
  template <typename T>
  void Vector(Span<const T> values) {
    Values(uint64_t{values.size()});
    hasher_.Update(values.data(), values.size() * sizeof(T));
  }
  uint64_t Digest() const { return hasher_.Digest(); }

 private:
  Hasher64 hasher_;
};

void FeedRope(const RopeConfig& r, Feed* feed) {
  feed->Values(r.theta, r.factor, r.low_freq_factor, r.high_freq_factor, r.beta_fast, r.beta_slow,
               r.attention_factor, r.original_max_tokens, r.scaling, r.rotated);
  feed->Vector(Span<const float>(r.divisors.data(), r.divisors.size()));
}

void FeedVersion2(const ModelConfig& c, Feed* feed) {
  feed->Values(c.embedding_scale, c.residual_scale, c.logit_scale, c.attention_scale, c.attention_cap,
               c.logit_cap);
  feed->Values(!c.norms_before, c.norms_after, c.wide_qk_norm, c.activation);
  feed->Values(uint64_t{c.more_ropes.size()} + 1);
  FeedRope(c.rope, feed);
  for (const RopeConfig& rope : c.more_ropes) FeedRope(rope, feed);
  feed->Values(uint64_t{c.layers.size()});
  for (const LayerConfig& layer : c.layers) feed->Values(layer.attention_window, layer.rope);
  if (c.n_experts > 0) feed->Values(c.n_experts, c.n_chosen, c.normalise_experts);
}

void FeedVersion4(const ModelConfig& c, Feed* feed) {
  feed->Values(c.layer_norms, c.own_qk_norms, c.parallel_blocks, c.attention_sinks, c.activation_gain,
               c.activation_limit, c.rope.whole_ramp);
  for (const RopeConfig& rope : c.more_ropes) feed->Values(rope.whole_ramp);
}

}  // namespace

uint64_t Fingerprint(const ModelConfig& c, const TokenizerView& t, const std::vector<TensorEntry>& tensors) {
  Feed feed;
  feed.Values(c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim, c.hidden_size, c.ffn_size, c.vocab_size);
  feed.Values(c.max_tokens, c.sliding_window, c.norm_eps);
  feed.Values(c.rope.theta, c.rope.factor, c.rope.low_freq_factor, c.rope.high_freq_factor, c.rope.beta_fast,
              c.rope.beta_slow, c.rope.attention_factor, c.rope.original_max_tokens, c.rope.scaling);
  feed.Values(c.rope_pairing, c.qk_norm, c.tied_head);
  if (!c.fits_version_1()) FeedVersion2(c, &feed);
  if (!c.fits_version_3()) FeedVersion4(c, &feed);
  const int kind = static_cast<int>(t.kind) + 16 * static_cast<int>(t.space_prefix);
  feed.Values(static_cast<uint8_t>(kind), t.ignore_merges, t.nfc, t.add_space_prefix, t.remove_extra_spaces,
              t.byte_fallback, t.add_bos, t.bos, t.eos, t.unk, t.pad);
  feed.Values(uint64_t{t.n_pieces()});
  for (size_t i = 0; i < t.n_pieces(); ++i) feed.Vector(t.Piece(i));
  feed.Vector(t.piece_kinds);
  feed.Vector(t.scores);
  feed.Vector(t.merges);
  feed.Values(uint64_t{t.patterns.size()});
  for (const std::string_view& pattern : t.patterns)
    feed.Vector(Span<const char>(pattern.data(), pattern.size()));
  feed.Vector(t.stop_tokens);
  if (!t.begin_tokens.empty() || t.n_byte_patterns > 0) feed.Vector(t.begin_tokens);
  if (t.n_byte_patterns > 0) feed.Values(t.n_byte_patterns);
  std::vector<const TensorEntry*> order;
  for (const TensorEntry& tensor : tensors) order.push_back(&tensor);
  HeapSort(order.begin(), order.end(), [](const TensorEntry* a, const TensorEntry* b) {
    return a->layer != b->layer ? a->layer < b->layer : a->role < b->role;
  });
  for (const TensorEntry* tensor : order) {
    const Weight& w = tensor->weight;
    const bool plain = w.layout == WeightLayout::kRowMajor;
    feed.Values(tensor->role, tensor->layer, w.type, WeightLayout::kRowMajor, w.rows, w.cols, w.group,
                plain ? tensor->checksum : tensor->plain_checksum);
  }
  return feed.Digest();
}

}  // namespace kvc
