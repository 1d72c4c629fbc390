// Layouts of caches for what is below policies, which else make them: tests and benchmarks.
#pragma once
#include <memory>

#include "lib/cache/kv_cache.h"

namespace kvc::test {

// What values become where keys become `keys` and values have so many bits, 0: as many.
inline VectorFormat ValuesBeside(VectorFormat keys, int32_t bits) {
  if (bits > 0) keys.type = bits == 8 ? KvType::kInt8 : bits == 4 ? KvType::kInt4 : KvType::kInt2;
  return keys;
}

// A cache whose heads are all alike.
struct UniformLayout {
  int32_t n_layers = 1, n_kv_heads = 1, group = 1, head_dim = 0, page_slots = 64, n_aux = 0;
  EntryCoding coding = EntryCoding::kVectors;
  KvType type = KvType::kF32;
  int32_t value_bits = 0;  // of pages of main
  int32_t quant_group = 0;
  int32_t ring_slots = 0, settle = 1;
  KvType ring_type = KvType::kF16;
  float theta_key = 0, theta_value = 0;
  bool layer_books = false, seen_masks = false, ranks = false;
  bool may_be_plain = false;  // codes only where they are smaller
  bool key_bounds = false;

  std::shared_ptr<const CacheLayout> Make() const {
    auto layout = std::make_shared<CacheLayout>();
    layout->n_layers = n_layers, layout->n_kv_heads = n_kv_heads, layout->group = group,
    layout->head_dim = head_dim;
    layout->page_slots = page_slots, layout->n_aux = n_aux;
    layout->seen_masks = seen_masks, layout->layer_books = layer_books;
    const auto add = [&](EntryCoding how, KvType as, int32_t of, int32_t slots) {
      PageFormat f;
      f.coding = how, f.type = as, f.d = head_dim, f.group = of, f.slots = slots;
      if (as == type && slots == page_slots) f.value_bits = value_bits;
      if (how != EntryCoding::kDirections) f.n_aux = n_aux, f.seen_masks = seen_masks, f.ranks = ranks;
      f.key_bounds = key_bounds && slots == page_slots, f.packed = page_slots == 4;
      f.Lay();
      layout->formats.push_back(f);
      return static_cast<int32_t>(layout->formats.size()) - 1;
    };
    HeadFormat head;
    head.main = add(coding, type, quant_group, page_slots);
    if (ring_slots > 0) head.ring = add(EntryCoding::kVectors, ring_type, 0, ring_slots);
    head.settle = settle, head.theta_key = theta_key, head.theta_value = theta_value;
    if (may_be_plain) {
      head.plain = add(EntryCoding::kVectors, ring_type, 0, page_slots);
      PageFormat all = layout->formats.back();
      all.seen_masks = false;
      all.Lay();
      layout->formats.push_back(all);
      head.plain_all = head.plain + 1;
    }
    if (coding == EntryCoding::kCodebook)
      layout->directions = add(EntryCoding::kDirections, KvType::kF32, 0, page_slots);
    layout->heads.assign(static_cast<size_t>(n_layers * n_kv_heads), head);
    return layout;
  }
};

}  // namespace kvc::test
