// Codebook storage inside the cache (SpindleKV, methods.md 2.16 d-f): main entries are references into the
// head's directions.
#include <algorithm>
#include <cstring>

#include "lib/cache/kv_cache.h"

namespace kvc {

const float* KvCache::DirectionOf(const Book& book, int32_t i) const {
  const int32_t id = book.head->book_pages[book.which][static_cast<size_t>(i / config_.page_slots)];
  return reinterpret_cast<const float*>(pools_[static_cast<size_t>(book_pool_)]->Data(id)) +
         int64_t{i % config_.page_slots} * config_.head_dim;
}

DirectionSource KvCache::Directions(const Book& book) const {
  DirectionSource source;
  source.owner = &book;
  source.at = [](const void* owner, int32_t i) {
    const Book& b = *static_cast<const Book*>(owner);
    return b.cache->DirectionOf(b, i);
  };
  source.n = book.head->book_len[book.which];
  return source;
}

CodedVector KvCache::CodeAt(int layer, int head, int which, int32_t rank) const {
  const Head& h = At(layer, head);
  const Slot s = SlotOfRank(h, rank);
  CodedVector code;
  std::memcpy(&code, s.page + (which == 0 ? 0 : h.key_bytes * s.slots) + h.key_bytes * s.index, sizeof code);
  return code;
}

uint32_t KvCache::SeenAt(int layer, int head, int32_t rank) const {
  const Head& h = At(layer, head);
  return config_.seen_masks ? *Seen(h, SlotOfRank(h, rank)) : ~0u;
}

// k, v [n, D]; null: not wanted.
void KvCache::DecodeCodes(const Head& h, const Slot& s, int32_t n, float* k, float* v) const {
  const int32_t d = config_.head_dim;
  for (int which = 0; which < 2; ++which) {
    float* out = which == 0 ? k : v;
    if (out == nullptr) continue;
    const uint8_t* codes = s.page + (which == 0 ? 0 : h.key_bytes * s.slots) + h.key_bytes * s.index;
    for (int32_t i = 0; i < n; ++i) {
      CodedVector code;
      std::memcpy(&code, codes + i * static_cast<int64_t>(sizeof code), sizeof code);
      const float* direction = DirectionOf({this, &BookOwner(h), which}, static_cast<int32_t>(code.ref));
      for (int32_t x = 0; x < d; ++x) out[int64_t{i} * d + x] = code.magnitude * direction[x];
    }
  }
}

// Codes the marked entries of the heads [first, first + n_heads) with one pair of books: out[i] gets the
// codes of head first + i, and out[0] the directions.
void KvCache::CodeHeads(const HeadFormat& format, const LayerKv& kv, int first, int n_heads,
                        const uint8_t* mark, int64_t mark_stride, HeadCodes* out) const {
  const size_t d = static_cast<size_t>(config_.head_dim);
  std::vector<float> kept;
  std::vector<CodedVector> codes;
  CodeScratch scratch;
  for (int which = 0; which < 2; ++which) {
    kept.clear();
    for (int head = first; head < first + n_heads; ++head) {
      const float* x = which == 0 ? kv.Keys(head) : kv.Values(head);
      const size_t before = kept.size();
      for (int32_t i = 0; i < kv.len[static_cast<size_t>(head)]; ++i, x += d) {
        if (mark == nullptr || mark[head * mark_stride + i] != 0) kept.insert(kept.end(), x, x + d);
      }
      out[head - first].codes[which].resize((kept.size() - before) / d);
    }
    codes.resize(kept.size() / d);
    CodeVectors(*kernels_, kept.data(), static_cast<int32_t>(codes.size()), config_.head_dim,
                which == 0 ? format.theta_key : format.theta_value, {}, codes.data(), &out[0].added[which],
                &scratch);
    auto next = codes.begin();
    for (int i = 0; i < n_heads; ++i) {
      std::vector<CodedVector>& own = out[i].codes[which];
      std::copy(next, next + static_cast<std::ptrdiff_t>(own.size()), own.begin());
      next += static_cast<std::ptrdiff_t>(own.size());
    }
  }
}

void KvCache::AddDirections(Head& h, int which, const std::vector<float>& added) {
  PagePool& pool = *pools_[static_cast<size_t>(book_pool_)];
  const int32_t d = config_.head_dim, n = static_cast<int32_t>(added.size()) / d;
  for (int32_t e = 0; e < n; ++e) {
    std::vector<int32_t>& pages = h.book_pages[which];
    const int32_t at = h.book_len[which], index = at / config_.page_slots;
    if (index == static_cast<int32_t>(pages.size())) {
      pages.push_back(TakeSpare(book_pool_));
    } else if (pool.Shared(pages[static_cast<size_t>(index)])) {
      const int32_t copy = TakeSpare(book_pool_);
      std::memcpy(pool.Data(copy), pool.Data(pages[static_cast<size_t>(index)]),
                  static_cast<size_t>(pool.page_bytes()));
      pool.Release(pages[static_cast<size_t>(index)]);
      pages[static_cast<size_t>(index)] = copy;
    }
    std::memcpy(const_cast<float*>(DirectionOf({this, &h, which}, at)), added.data() + int64_t{e} * d,
                static_cast<size_t>(d) * sizeof(float));
    ++h.book_len[which];
  }
}

// So that SettleCodes allocates nothing: a step cannot fail half way.
void KvCache::ReserveCodes() {
  if (book_pool_ < 0) return;
  int32_t settle = 1;
  for (const HeadFormat& format : config_.formats) settle = std::max(settle, format.settle);
  code_scratch_.Reserve(settle, config_.head_dim);
  for (int which = 0; which < 2; ++which) {
    settled_.codes[which].reserve(static_cast<size_t>(settle));
    settled_.added[which].reserve(static_cast<size_t>(settle) * static_cast<size_t>(config_.head_dim));
  }
}

// Codes the oldest `settle` entries of a full tail.
void KvCache::SettleCodes(Head& h, const HeadFormat& format) {
  const int32_t n = format.settle, d = config_.head_dim;
  const int64_t raw_bytes = VectorBytes(config_.raw);
  auto& [codes, added] = settled_;
  for (int which = 0; which < 2; ++which) {
    float* x = scratch_.data() + int64_t{which} * n * d;
    for (int32_t i = 0; i < n; ++i) {
      const Slot s = TailSlot(h, i);
      kernels_->decode_vectors(config_.raw, s.page + raw_bytes * (which * s.slots + s.index), 1,
                               x + int64_t{i} * d);
    }
    codes[which].resize(static_cast<size_t>(n));
    const Book book{this, &BookOwner(h), which};
    CodeVectors(*kernels_, x, n, d, which == 0 ? format.theta_key : format.theta_value, Directions(book),
                codes[which].data(), &added[which], &code_scratch_);
  }
  for (int which = 0; which < 2; ++which) AddDirections(BookOwner(h), which, added[which]);
  for (int32_t i = 0; i < n; ++i) {
    const Slot from = TailSlot(h, i);
    const int32_t slot = h.main_len;
    if (slot / config_.page_slots == static_cast<int32_t>(h.pages.size())) {
      h.pages.push_back(TakeSpare(h.main_pool));
    } else {
      MakeWritable(h, slot / config_.page_slots);
    }
    const Slot to = MainSlot(h, slot);
    std::memcpy(to.page + h.key_bytes * to.index, &codes[0][static_cast<size_t>(i)], sizeof(CodedVector));
    std::memcpy(to.page + h.key_bytes * to.slots + h.value_bytes * to.index,
                &codes[1][static_cast<size_t>(i)], sizeof(CodedVector));
    *Positions(h, to) = *Positions(h, from);
    if (config_.seen_masks) *Seen(h, to) = *Seen(h, from);
    for (int a = 0; a < config_.n_aux; ++a) *Aux(h, to, a) = *Aux(h, from, a);
    if (config_.ordered) h.order.push_back(slot);
    ++h.main_len;
  }
  h.tail_start = (h.tail_start + n) % format.tail_slots;
  h.tail_len -= n;
}

}  // namespace kvc
