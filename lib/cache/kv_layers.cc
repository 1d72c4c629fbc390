// Whole layers in and out of the cache: what compaction after a prompt and a second prompt need.
#include <algorithm>
#include <cstring>

#include "lib/cache/kv_cache.h"

namespace kvc {
namespace {

int32_t CountMarked(const uint8_t* mark, int32_t n) {
  if (mark == nullptr) return n;
  int32_t kept = 0;
  for (int32_t i = 0; i < n; ++i) kept += mark[i];
  return kept;
}

// Pages that nobody owns yet: what is left of them is given back, whatever happens. A layer's pages have
// extents of their own: taken from among older ones they would keep those extents, and with them the memory
// of all that a prompt dropped.
class TakenPages {
 public:
  explicit TakenPages(const std::vector<std::shared_ptr<PagePool>>& pools)
      : pools_(pools), ids_(pools.size()) {}
  ~TakenPages() {
    for (size_t p = 0; p < ids_.size(); ++p) {
      for (int32_t id : ids_[p]) pools_[p]->Release(id);
    }
  }
  TakenPages(const TakenPages&) = delete;
  TakenPages& operator=(const TakenPages&) = delete;
  Status Take(size_t pool, int32_t n) {
    if (n > 0) KVC_RETURN_IF_ERROR(pools_[pool]->TakeExtent(n, &ids_[pool]));
    std::reverse(ids_[pool].begin(), ids_[pool].end());
    return {};
  }
  int32_t Next(int pool) {
    std::vector<int32_t>& ids = ids_[static_cast<size_t>(pool)];
    const int32_t id = ids.back();
    ids.pop_back();
    return id;
  }

 private:
  const std::vector<std::shared_ptr<PagePool>>& pools_;
  std::vector<std::vector<int32_t>> ids_;
};

}  // namespace

void KvCache::Load(int layer, LayerKv* kv) const {
  for (int g = 0; g < config_.n_kv_heads; ++g) {
    const Head& h = At(layer, g);
    const int32_t n = h.main_len + h.tail_len, d = config_.head_dim;
    for (int32_t r = 0; r < n; ++r) {
      const Slot s = SlotOfRank(h, r);
      DecodeStored(h, FormatAt(layer, g), s, 1, 0, kv->Keys(g) + int64_t{r} * d);
      DecodeStored(h, FormatAt(layer, g), s, 1, 1, kv->Values(g) + int64_t{r} * d);
      kv->Positions(g)[r] = *Positions(h, s);
      for (int a = 0; a < std::min(config_.n_aux, kv->n_aux); ++a) kv->Aux(a, g)[r] = *Aux(h, s, a);
      if (kv->has_seen) kv->Seen(g)[r] = config_.seen_masks ? *Seen(h, s) : ~0u;
    }
    kv->len[static_cast<size_t>(g)] = n;
  }
}

void KvCache::FillHead(Head* fresh, int layer, int head, const LayerKv& kv, const uint8_t* mark,
                       const uint32_t* seen, int32_t kept, const HeadCodes& codes) {
  const HeadFormat& format = FormatAt(layer, head);
  // `fresh` is not in heads_, so tail slots are addressed here and not by TailSlot.
  const int32_t main = MainAfterStore(format, kept), tail = kept - main, d = config_.head_dim;
  float aux[kMaxAux];
  int32_t rank = 0;
  for (int32_t i = 0; i < kv.len[static_cast<size_t>(head)]; ++i) {
    if (mark != nullptr && mark[i] == 0) continue;
    const float *k = kv.Keys(head) + int64_t{i} * d, *v = kv.Values(head) + int64_t{i} * d;
    for (int a = 0; a < config_.n_aux; ++a) aux[a] = a < kv.n_aux ? kv.Aux(a, head)[i] : 0.0f;
    Slot s = rank < main ? MainSlot(*fresh, rank)
                         : Slot{pools_[static_cast<size_t>(fresh->tail_pool)]->Data(fresh->tail_page),
                                rank - main, format.tail_slots, true};
    if (format.codebook) {
      std::memcpy(s.page + fresh->key_bytes * s.index, &codes.codes[0][static_cast<size_t>(rank)],
                  sizeof(CodedVector));
      std::memcpy(s.page + fresh->key_bytes * s.slots + fresh->value_bytes * s.index,
                  &codes.codes[1][static_cast<size_t>(rank)], sizeof(CodedVector));
    } else if (format.key_channels && !s.raw) {
      std::copy(k, k + d, scratch_.data() + int64_t{s.index} * d);
      kernels_->encode_vectors(format.stored, v, 1, Stored(*fresh, s, 1));
      if (s.index + 1 == s.slots) {  // main has whole pages only
        const Slot page{s.page, 0, s.slots, false};
        kernels_->encode_key_block(format.stored.type, scratch_.data(), s.slots, d, Stored(*fresh, page, 0),
                                   KeyScales(*fresh, page));
      }
    } else {
      Encode(*fresh, s.raw ? config_.raw : format.stored, s, k, v);
    }
    *Positions(*fresh, s) = kv.Positions(head)[i];
    for (int a = 0; a < config_.n_aux; ++a) *Aux(*fresh, s, a) = aux[a];
    if (config_.seen_masks) *Seen(*fresh, s) = seen == nullptr ? ~0u : seen[i];
    ++rank;
  }
  fresh->main_len = main;
  fresh->tail_len = tail;
  if (config_.ordered) {
    for (int32_t r = 0; r < main; ++r) fresh->order[static_cast<size_t>(r)] = r;
  }
}

Status KvCache::Store(int layer, const LayerKv& kv, const uint8_t* mark, int64_t mark_stride,
                      const uint32_t* seen) {
  const int n_heads = config_.n_kv_heads;
  std::vector<Head> fresh(static_cast<size_t>(n_heads));
  std::vector<int32_t> kept(static_cast<size_t>(n_heads));
  TakenPages taken(pools_);
  std::vector<int32_t> need(pools_.size(), 0);
  std::vector<HeadCodes> codes(static_cast<size_t>(n_heads));
  for (int g = 0; g < n_heads; ++g) {
    const size_t i = static_cast<size_t>(g);
    const HeadFormat& format = FormatAt(layer, g);
    if (format.codebook) {
      if (!config_.layer_books || g == 0)
        CodeHeads(format, kv, g, config_.layer_books ? n_heads : 1, mark, mark_stride, &codes[i]);
      for (int which = 0; which < 2; ++which) {
        fresh[i].book_len[which] = static_cast<int32_t>(codes[i].added[which].size()) / config_.head_dim;
        fresh[i].book_pages[which].resize(static_cast<size_t>(PagesFor(fresh[i].book_len[which])));
        need[static_cast<size_t>(book_pool_)] += PagesFor(fresh[i].book_len[which]);
      }
    }
    const Head& old = At(layer, g);
    fresh[i].main_pool = old.main_pool, fresh[i].tail_pool = old.tail_pool;
    fresh[i].key_bytes = old.key_bytes, fresh[i].value_bytes = old.value_bytes;
    kept[i] = CountMarked(mark == nullptr ? nullptr : mark + g * mark_stride, kv.len[i]);
    const int32_t main = MainAfterStore(format, kept[i]);
    fresh[i].pages.resize(static_cast<size_t>(PagesFor(main)));
    if (config_.ordered) fresh[i].order.resize(static_cast<size_t>(main));
    need[static_cast<size_t>(old.main_pool)] += PagesFor(main);
    if (old.tail_pool >= 0) ++need[static_cast<size_t>(old.tail_pool)];
  }
  for (size_t p = 0; p < pools_.size(); ++p) KVC_RETURN_IF_ERROR(taken.Take(p, need[p]));
  // From here on nothing fails and nothing is allocated.
  for (int g = 0; g < n_heads; ++g) {
    Head& head = fresh[static_cast<size_t>(g)];
    for (int32_t& id : head.pages) id = taken.Next(head.main_pool);
    if (head.tail_pool >= 0) head.tail_page = taken.Next(head.tail_pool);
    for (int which = 0; which < 2; ++which) {
      for (int32_t& id : head.book_pages[which]) id = taken.Next(book_pool_);
      for (int32_t e = 0; e < head.book_len[which]; ++e) {
        std::memcpy(const_cast<float*>(DirectionOf({this, &head, which}, e)),
                    codes[static_cast<size_t>(g)].added[which].data() + int64_t{e} * config_.head_dim,
                    static_cast<size_t>(config_.head_dim) * sizeof(float));
      }
    }
    FillHead(&head, layer, g, kv, mark == nullptr ? nullptr : mark + g * mark_stride,
             seen == nullptr ? nullptr : seen + g * mark_stride, kept[static_cast<size_t>(g)],
             codes[static_cast<size_t>(g)]);
    ReleaseHead(&At(layer, g));
    At(layer, g) = std::move(head);
  }
  return {};
}

Status KvCache::KeepNewest(int layer, int head, int32_t n) {
  Head& h = At(layer, head);
  if (h.tail_pool >= 0 || config_.ordered || book_pool_ >= 0)
    return Error(Code::kUnsupported, "this cache stores entries late or evicts them one by one");
  if (h.main_len <= n) return {};
  Head fresh;
  fresh.main_pool = h.main_pool, fresh.key_bytes = h.key_bytes, fresh.value_bytes = h.value_bytes;
  KVC_RETURN_IF_ERROR(pools_[static_cast<size_t>(h.main_pool)]->Take(PagesFor(n), 0, &fresh.pages));
  for (int32_t i = 0; i < n; ++i) CopySlot(h, MainSlot(h, h.main_len - n + i), MainSlot(fresh, i));
  fresh.main_len = n;
  ReleaseHead(&h);
  h = std::move(fresh);
  return {};
}

Status KvCache::AppendFrom(int layer, const LayerKv& kv, const int32_t* first) {
  // Every page a head may take or copy is taken before the first write.
  std::vector<int32_t> need(pools_.size(), 0);
  for (int g = 0; g < config_.n_kv_heads; ++g) {
    const Head& h = At(layer, g);
    const size_t main = static_cast<size_t>(h.main_pool);
    const int32_t n_new = kv.len[static_cast<size_t>(g)] - first[g];
    const int32_t wanted = PagesFor(h.main_len + h.tail_len + n_new);
    need[main] += std::max(wanted - static_cast<int32_t>(h.pages.size()), 0);
    if (FormatAt(layer, g).codebook) {
      for (int which = 0; which < 2; ++which) need[static_cast<size_t>(book_pool_)] += wanted + 1;
    }
    need[main] += !h.pages.empty() && pools_[main]->Shared(h.pages.back());
    if (h.tail_pool >= 0) {
      const size_t tail = static_cast<size_t>(h.tail_pool);
      need[tail] += h.tail_page < 0 || pools_[tail]->Shared(h.tail_page);
    }
  }
  for (size_t p = 0; p < pools_.size(); ++p) {
    const int32_t missing = need[p] - static_cast<int32_t>(spare_[p].size());
    if (missing > 0) KVC_RETURN_IF_ERROR(pools_[p]->Take(missing, 0, &spare_[p]));
  }
  for (int g = 0; g < config_.n_kv_heads; ++g) {
    for (int32_t i = first[g]; i < kv.len[static_cast<size_t>(g)]; ++i) {
      const int64_t at = int64_t{i} * config_.head_dim;
      Append(layer, g, kv.Keys(g) + at, kv.Values(g) + at, kv.Positions(g)[i]);
      Settle(layer, g);
    }
  }
  ReleaseSpare();
  return {};
}

void KvCache::ReleaseSpare() {
  for (size_t p = 0; p < pools_.size(); ++p) {
    for (int32_t id : spare_[p]) pools_[p]->Release(id);
    spare_[p].clear();
  }
}

Status KvCache::Pack() {
  ReleaseSpare();
  std::vector<int32_t> need(pools_.size());
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    TakenPages taken(pools_);
    const auto for_pages = [&](auto&& f) {
      for (int g = 0; g < config_.n_kv_heads; ++g) {
        Head& h = At(layer, g);
        for (int32_t& id : h.pages) f(h.main_pool, id);
        if (h.tail_page >= 0) f(h.tail_pool, h.tail_page);
        for (auto& book : h.book_pages) {
          for (int32_t& id : book) f(book_pool_, id);
        }
      }
    };
    for (int g = 0; g < config_.n_kv_heads; ++g) {
      Head& h = At(layer, g);
      for (; static_cast<int32_t>(h.pages.size()) > PagesFor(h.main_len); h.pages.pop_back())
        pools_[static_cast<size_t>(h.main_pool)]->Release(h.pages.back());
    }
    std::fill(need.begin(), need.end(), 0);
    for_pages([&](int pool, int32_t&) { ++need[static_cast<size_t>(pool)]; });
    for (size_t p = 0; p < pools_.size(); ++p) KVC_RETURN_IF_ERROR(taken.Take(p, need[p]));
    for_pages([&](int pool_index, int32_t& id) {
      PagePool& pool = *pools_[static_cast<size_t>(pool_index)];
      const int32_t packed = taken.Next(pool_index);
      std::memcpy(pool.Data(packed), pool.Data(id), static_cast<size_t>(pool.page_bytes()));
      pool.Release(id);
      id = packed;
    });
  }
  return {};
}

KvCache::Run KvCache::GetRun(int layer, int head, int32_t first, float* scratch) const {
  const Head& h = At(layer, head);
  Run run{};
  run.first = first;
  Slot s{};
  const HeadFormat& format = FormatAt(layer, head);
  if (first < h.main_len) {
    s = MainSlot(h, first);
    run.n = std::min(s.slots - s.index, h.main_len - first);
  } else {
    // The ring's physical order is its slots in order, occupied ones only.
    const int32_t slots = format.tail_slots, index = first - h.main_len, end = h.tail_start + h.tail_len;
    s = {pools_[static_cast<size_t>(h.tail_pool)]->Data(h.tail_page), index, slots, true};
    const bool wrapped = end > slots && index < end - slots;
    run.n = (wrapped ? end - slots : std::min(end, slots)) - index;
  }
  run.k = Stored(h, s, 0);
  run.v = Stored(h, s, 1);
  run.type = s.raw ? config_.raw.type : format.stored.type;
  if (!s.raw && (format.codebook || run.type == KvType::kInt8 || run.type == KvType::kInt4)) {
    float* values = scratch + int64_t{run.n} * config_.head_dim;
    DecodeStored(h, format, s, run.n, 0, scratch);
    DecodeStored(h, format, s, run.n, 1, values);
    run.k = reinterpret_cast<const uint8_t*>(scratch);
    run.v = reinterpret_cast<const uint8_t*>(values);
    run.type = KvType::kF32;
  }
  run.positions = Positions(h, s);
  run.seen = config_.seen_masks ? Seen(h, s) : nullptr;
  return run;
}

}  // namespace kvc
