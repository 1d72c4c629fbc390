#include "lib/cache/kv_cache.h"

#include <algorithm>
#include <cstring>

namespace kvc {

int64_t KvCache::KeyBytes(const HeadFormat& format) {
  return format.key_channels ? KeyCodeBytes(format.stored.type, format.stored.d) : ValueBytes(format);
}

int64_t KvCache::ValueBytes(const HeadFormat& format) {
  return format.codebook ? static_cast<int64_t>(sizeof(CodedVector)) : VectorBytes(format.stored);
}

int64_t KvCache::SlotBytes(const CacheConfig& config, int64_t key_bytes, int64_t value_bytes) {
  return key_bytes + value_bytes + 4 + 4 * int64_t{config.n_aux} + (config.seen_masks ? 4 : 0);
}

int64_t KvCache::PageBytes(const CacheConfig& config, const HeadFormat& format) {
  const int64_t scales = format.key_channels ? int64_t{2} * config.head_dim : 0;
  return (config.page_slots * SlotBytes(config, KeyBytes(format), ValueBytes(format)) + scales + 63) / 64 *
         64;
}

int64_t KvCache::TailBytes(const CacheConfig& config, const HeadFormat& format) {
  const int64_t vector_bytes = VectorBytes(config.raw);
  return (format.tail_slots * SlotBytes(config, vector_bytes, vector_bytes) + 63) / 64 * 64;
}

int64_t KvCache::HeadBytes(const CacheConfig& config, const HeadFormat& format, int32_t n) {
  const int64_t pages = (int64_t{MainAfterStore(format, n)} + config.page_slots - 1) / config.page_slots;
  int64_t bytes = pages * PageBytes(config, format);
  if (format.tail_slots > 0) bytes += TailBytes(config, format);
  if (format.codebook) bytes += 2 * pages * BookPageBytes(config);
  return bytes;
}

Result<std::unique_ptr<KvCache>> KvCache::Create(const CacheConfig& config, const KernelTable* kernels,
                                                 std::shared_ptr<MemoryMeter> meter) {
  std::unique_ptr<KvCache> cache(new KvCache());
  cache->config_ = config;
  cache->kernels_ = kernels;
  cache->heads_.resize(static_cast<size_t>(config.n_layers * config.n_kv_heads));
  const auto pool_of = [&](int64_t bytes) {
    for (size_t i = 0; i < cache->pools_.size(); ++i) {
      if (cache->pools_[i]->page_bytes() == bytes) return static_cast<int32_t>(i);
    }
    cache->pools_.push_back(std::make_shared<PagePool>(bytes, meter));
    return static_cast<int32_t>(cache->pools_.size() - 1);
  };
  for (size_t i = 0; i < cache->heads_.size(); ++i) {
    Head& head = cache->heads_[i];
    const HeadFormat& format = config.formats[i];
    head.main_pool = pool_of(PageBytes(config, format));
    if (format.tail_slots > 0) head.tail_pool = pool_of(TailBytes(config, format));
    head.key_bytes = KeyBytes(format), head.value_bytes = ValueBytes(format);
    if (format.codebook) cache->book_pool_ = pool_of(BookPageBytes(config));
  }
  cache->spare_.resize(cache->pools_.size());
  int32_t settle = 1;
  for (const HeadFormat& format : config.formats) settle = std::max(settle, format.settle);
  KVC_RETURN_IF_ERROR(
      cache->scratch_.Allocate(meter.get(), 2 * int64_t{settle} * config.head_dim, "the KV cache"));
  cache->ReserveCodes();
  return cache;
}

KvCache::~KvCache() {
  Clear();
  for (size_t p = 0; p < spare_.size(); ++p) {  // shorter than pools_ when Create or Fork ran out of memory
    for (int32_t id : spare_[p]) pools_[p]->Release(id);
  }
}

void KvCache::ReleaseHead(Head* h) {
  for (int32_t id : h->pages) pools_[static_cast<size_t>(h->main_pool)]->Release(id);
  if (h->tail_page >= 0) pools_[static_cast<size_t>(h->tail_pool)]->Release(h->tail_page);
  for (auto& book : h->book_pages) {
    for (int32_t id : book) pools_[static_cast<size_t>(book_pool_)]->Release(id);
    book.clear();
  }
  h->book_len[0] = h->book_len[1] = 0;
  h->pages.clear();
  h->order.clear();
  h->tail_page = -1;
  h->main_len = h->tail_start = h->tail_len = 0;
}

void KvCache::Clear() {
  for (Head& head : heads_) ReleaseHead(&head);
}

Result<std::unique_ptr<KvCache>> KvCache::Fork() {
  std::unique_ptr<KvCache> fork(new KvCache());
  fork->config_ = config_;
  fork->kernels_ = kernels_;
  fork->pools_ = pools_;
  fork->spare_.resize(pools_.size());
  fork->heads_.reserve(heads_.size());
  fork->book_pool_ = book_pool_;
  KVC_RETURN_IF_ERROR(fork->scratch_.Allocate(nullptr, scratch_.size(), "the KV cache"));
  fork->ReserveCodes();
  for (const Head& head : heads_) {
    fork->heads_.push_back(head);
    for (int32_t id : head.pages) pools_[static_cast<size_t>(head.main_pool)]->AddReference(id);
    if (head.tail_page >= 0) pools_[static_cast<size_t>(head.tail_pool)]->AddReference(head.tail_page);
    for (const auto& book : head.book_pages) {
      for (int32_t id : book) pools_[static_cast<size_t>(book_pool_)]->AddReference(id);
    }
  }
  return fork;
}

int64_t KvCache::TotalEntries() const {
  int64_t n = 0;
  for (const Head& head : heads_) n += head.main_len + head.tail_len;
  return n;
}

int32_t KvCache::MaxLen() const {
  int32_t n = 0;
  for (const Head& head : heads_) n = std::max(n, head.main_len + head.tail_len);
  return n;
}

bool KvCache::HasTails() const {
  return std::any_of(heads_.begin(), heads_.end(), [](const Head& h) { return h.tail_pool >= 0; });
}

int64_t KvCache::bytes() const {
  int64_t n = 0;
  for (const auto& pool : pools_) n += pool->bytes_held();
  return n;
}

int64_t KvCache::LayerBytes(int layer) const {
  const auto bytes_of = [&](size_t pages, int32_t pool) {
    return pages == 0 ? 0 : static_cast<int64_t>(pages) * pools_[static_cast<size_t>(pool)]->page_bytes();
  };
  int64_t n = 0;
  for (int g = 0; g < config_.n_kv_heads; ++g) {
    const Head& h = At(layer, g);
    n += bytes_of(h.pages.size(), h.main_pool) + bytes_of(h.tail_page >= 0, h.tail_pool);
    for (const auto& book : h.book_pages) n += bytes_of(book.size(), book_pool_);
  }
  return n;
}

// ---- slots ----

KvCache::Slot KvCache::MainSlot(const Head& h, int32_t slot) const {
  const int32_t id = h.pages[static_cast<size_t>(slot / config_.page_slots)];
  return {pools_[static_cast<size_t>(h.main_pool)]->Data(id), slot % config_.page_slots, config_.page_slots,
          false};
}

KvCache::Slot KvCache::TailSlot(const Head& h, int32_t i) const {
  const HeadFormat& format = config_.formats[static_cast<size_t>(&h - heads_.data())];
  return {pools_[static_cast<size_t>(h.tail_pool)]->Data(h.tail_page), (h.tail_start + i) % format.tail_slots,
          format.tail_slots, true};
}

KvCache::Slot KvCache::SlotOfRank(const Head& h, int32_t rank) const {
  if (rank >= h.main_len) return TailSlot(h, rank - h.main_len);
  return MainSlot(h, config_.ordered ? h.order[static_cast<size_t>(rank)] : rank);
}

int64_t KvCache::MetaOffset(const Head& h, const Slot& s) const {
  return s.raw ? 2 * VectorBytes(config_.raw) * s.slots : (h.key_bytes + h.value_bytes) * s.slots;
}

int32_t* KvCache::Positions(const Head& h, const Slot& s) const {
  return reinterpret_cast<int32_t*>(s.page + MetaOffset(h, s)) + s.index;
}

float* KvCache::Aux(const Head& h, const Slot& s, int a) const {
  return reinterpret_cast<float*>(s.page + MetaOffset(h, s)) + (1 + a) * s.slots + s.index;
}

uint32_t* KvCache::Seen(const Head& h, const Slot& s) const {
  return reinterpret_cast<uint32_t*>(s.page + MetaOffset(h, s)) + (1 + config_.n_aux) * s.slots + s.index;
}

uint16_t* KvCache::KeyScales(const Head& h, const Slot& s) const {
  const int64_t per_slot = 4 * int64_t{1 + config_.n_aux + (config_.seen_masks ? 1 : 0)};
  return reinterpret_cast<uint16_t*>(s.page + MetaOffset(h, s) + per_slot * s.slots);
}

// The stored form of an entry's key (which 0) or value (1).
uint8_t* KvCache::Stored(const Head& h, const Slot& s, int which) const {
  const int64_t kb = s.raw ? VectorBytes(config_.raw) : h.key_bytes,
                vb = s.raw ? VectorBytes(config_.raw) : h.value_bytes;
  return s.page + (which == 0 ? kb * s.index : kb * s.slots + vb * s.index);
}

// Keys or values of n adjacent entries as f32, x [n, D].
void KvCache::DecodeStored(const Head& h, const HeadFormat& format, const Slot& s, int32_t n, int which,
                           float* x) const {
  const uint8_t* stored = Stored(h, s, which);
  if (s.raw) {
    kernels_->decode_vectors(config_.raw, stored, n, x);
  } else if (format.codebook) {
    DecodeCodes(h, s, n, which == 0 ? x : nullptr, which == 1 ? x : nullptr);
  } else if (format.key_channels && which == 0) {
    kernels_->decode_key_block(format.stored.type, stored, KeyScales(h, s), n, config_.head_dim, x);
  } else {
    kernels_->decode_vectors(format.stored, stored, n, x);
  }
}

int32_t KvCache::TakeSpare(int pool) {
  std::vector<int32_t>& spare = spare_[static_cast<size_t>(pool)];
  assert(!spare.empty());
  const int32_t id = spare.back();
  spare.pop_back();
  return id;
}

void KvCache::MakeWritable(Head& h, int32_t page_index) {
  const bool tail = page_index < 0;
  const int pool_index = tail ? h.tail_pool : h.main_pool;
  PagePool& pool = *pools_[static_cast<size_t>(pool_index)];
  int32_t& id = tail ? h.tail_page : h.pages[static_cast<size_t>(page_index)];
  if (!pool.Shared(id)) return;
  const int32_t copy = TakeSpare(pool_index);
  std::memcpy(pool.Data(copy), pool.Data(id), static_cast<size_t>(pool.page_bytes()));
  pool.Release(id);
  id = copy;
}

// ---- one token ----

Status KvCache::ReserveStep() {
  std::vector<int32_t>& need = need_;
  need.assign(pools_.size() * 2, 0);  // pages wanted, heads using the pool
  for (size_t i = 0; i < heads_.size(); ++i) {
    const Head& h = heads_[i];
    const size_t main = static_cast<size_t>(h.main_pool);
    ++need[pools_.size() + main];
    const HeadFormat& format = config_.formats[i];
    // A page of key channels is filled at once, so it is taken when that comes and not before.
    const int32_t more = !format.key_channels                  ? format.settle
                         : h.tail_len + 1 >= format.tail_slots ? format.settle - h.main_len % format.settle
                                                               : 0;
    need[main] += std::max(PagesFor(h.main_len + more) - static_cast<int32_t>(h.pages.size()), 0);
    // Every settled vector may bring a direction of its own; books may be shared by heads that settle at
    // once.
    if (format.codebook && h.tail_len + 1 >= format.tail_slots) {
      const Head& owner = BookOwner(h);
      const size_t book = static_cast<size_t>(book_pool_);
      for (int which = 0; which < 2; ++which) {
        const std::vector<int32_t>& held = owner.book_pages[which];
        need[book] += config_.layer_books ? PagesFor(format.settle)
                                          : PagesFor(owner.book_len[which] + format.settle) -
                                                static_cast<int32_t>(held.size());
        if (!held.empty()) need[book] += pools_[book]->Shared(held.back());
      }
    }
    const bool all_written = config_.n_aux > 0 || config_.ordered;
    const size_t first = all_written || h.pages.empty() ? 0 : h.pages.size() - 1;
    for (size_t p = first; p < h.pages.size(); ++p) need[main] += pools_[main]->Shared(h.pages[p]);
    if (h.tail_pool >= 0) {
      const size_t tail = static_cast<size_t>(h.tail_pool);
      if (h.tail_page < 0 || pools_[tail]->Shared(h.tail_page)) ++need[tail];
    }
  }
  for (size_t p = 0; p < pools_.size(); ++p) {
    const int32_t missing = need[p] - static_cast<int32_t>(spare_[p].size());
    if (missing > 0) KVC_RETURN_IF_ERROR(pools_[p]->Take(missing, need[pools_.size() + p], &spare_[p]));
  }
  ReserveLists();
  return {};
}

// Room in the lists of every head for what a step appends. When one must grow all do, so that steps with an
// allocation are as rare as steps that take pages.
void KvCache::ReserveLists() {
  const size_t sharers = config_.layer_books ? static_cast<size_t>(config_.n_kv_heads) : 1;
  const auto full = [&](size_t i) {
    const Head& h = heads_[i];
    const size_t settle = static_cast<size_t>(config_.formats[i].settle),
                 pages = settle / static_cast<size_t>(config_.page_slots) + 2;
    bool is_full = h.pages.capacity() < h.pages.size() + pages ||
                   (config_.ordered && h.order.capacity() < h.order.size() + settle);
    for (const auto& book : h.book_pages)
      is_full = is_full || (book_pool_ >= 0 && book.capacity() < book.size() + pages * sharers);
    return is_full;
  };
  bool any = false;
  for (size_t i = 0; i < heads_.size() && !any; ++i) any = full(i);
  if (!any) return;
  for (size_t i = 0; i < heads_.size(); ++i) {
    Head& h = heads_[i];
    const size_t settle = static_cast<size_t>(config_.formats[i].settle);
    h.pages.reserve(2 * h.pages.size() + settle + 16);
    if (config_.ordered) h.order.reserve(h.order.size() + h.order.size() / 2 + settle + 256);
    for (auto& book : h.book_pages) {
      if (book_pool_ >= 0) book.reserve(2 * book.size() + (settle + 16) * sharers);
    }
  }
}

void KvCache::Encode(const Head& h, const VectorFormat& format, const Slot& s, const float* k,
                     const float* v) {
  kernels_->encode_vectors(format, k, 1, Stored(h, s, 0));
  kernels_->encode_vectors(format, v, 1, Stored(h, s, 1));
}

void KvCache::PushMain(Head& h, const VectorFormat& format, const float* k, const float* v, int32_t position,
                       const float* aux, uint32_t seen) {
  const int32_t slot = h.main_len;
  if (slot / config_.page_slots == static_cast<int32_t>(h.pages.size())) {
    h.pages.push_back(TakeSpare(h.main_pool));
  } else {
    MakeWritable(h, slot / config_.page_slots);
  }
  const Slot s = MainSlot(h, slot);
  Encode(h, format, s, k, v);
  *Positions(h, s) = position;
  for (int a = 0; a < config_.n_aux; ++a) *Aux(h, s, a) = aux == nullptr ? 0.0f : aux[a];
  if (config_.seen_masks) *Seen(h, s) = seen;
  if (config_.ordered) h.order.push_back(slot);
  ++h.main_len;
}

void KvCache::Append(int layer, int head, const float* k, const float* v, int32_t position) {
  Head& h = At(layer, head);
  if (h.tail_pool < 0) {
    PushMain(h, FormatAt(layer, head).stored, k, v, position, nullptr, ~0u);
    return;
  }
  if (h.tail_page < 0) {
    h.tail_page = TakeSpare(h.tail_pool);
  } else {
    MakeWritable(h, -1);
  }
  assert(h.tail_len < FormatAt(layer, head).tail_slots);
  const Slot s = TailSlot(h, h.tail_len++);
  Encode(h, config_.raw, s, k, v);
  *Positions(h, s) = position;
  for (int a = 0; a < config_.n_aux; ++a) *Aux(h, s, a) = 0.0f;
  if (config_.seen_masks) *Seen(h, s) = ~0u;
}

void KvCache::Settle(int layer, int head) {
  Head& h = At(layer, head);
  const HeadFormat& format = FormatAt(layer, head);
  if (h.tail_pool < 0) return;
  if (format.codebook) {
    if (h.tail_len == format.tail_slots) SettleCodes(h, format);
    return;
  }
  if (format.key_channels) {
    if (h.tail_len == format.tail_slots) SettleBlock(h, format);
    return;
  }
  float aux[kMaxAux];
  while (h.tail_len == format.tail_slots) {
    const Slot s = TailSlot(h, 0);
    DecodeStored(h, format, s, 1, 0, scratch_.data());
    DecodeStored(h, format, s, 1, 1, scratch_.data() + config_.head_dim);
    for (int a = 0; a < config_.n_aux; ++a) aux[a] = *Aux(h, s, a);
    PushMain(h, format.stored, scratch_.data(), scratch_.data() + config_.head_dim, *Positions(h, s), aux,
             config_.seen_masks ? *Seen(h, s) : ~0u);
    h.tail_start = (h.tail_start + 1) % format.tail_slots;
    --h.tail_len;
  }
}

// Fills a page from the tail and codes its keys anew. After a Rewind the page may begin with entries that are
// coded already: they are decoded first, since the new keys change the scales of their channels.
void KvCache::SettleBlock(Head& h, const HeadFormat& format) {
  const int32_t d = config_.head_dim, slots = config_.page_slots, old = h.main_len % slots, n = slots - old,
                page = h.main_len / slots;
  assert(format.settle == slots && !config_.ordered && n <= h.tail_len);
  if (page == static_cast<int32_t>(h.pages.size())) {
    h.pages.push_back(TakeSpare(h.main_pool));
  } else {
    MakeWritable(h, page);
  }
  float *keys = scratch_.data(), *value = keys + int64_t{slots} * d;
  const Slot first = MainSlot(h, page * slots);
  if (old > 0) DecodeStored(h, format, first, old, 0, keys);
  for (int32_t i = 0; i < n; ++i) {
    const Slot from = TailSlot(h, i), to = MainSlot(h, h.main_len + i);
    DecodeStored(h, format, from, 1, 0, keys + int64_t{old + i} * d);
    DecodeStored(h, format, from, 1, 1, value);
    kernels_->encode_vectors(format.stored, value, 1, Stored(h, to, 1));
    *Positions(h, to) = *Positions(h, from);
    for (int a = 0; a < config_.n_aux; ++a) *Aux(h, to, a) = *Aux(h, from, a);
    if (config_.seen_masks) *Seen(h, to) = *Seen(h, from);
  }
  kernels_->encode_key_block(format.stored.type, keys, slots, d, Stored(h, first, 0), KeyScales(h, first));
  h.main_len += n;
  h.tail_start = (h.tail_start + n) % format.tail_slots;
  h.tail_len -= n;
}

void KvCache::CopySlot(const Head& h, const Slot& from, const Slot& to) {
  const int64_t kb = from.raw ? VectorBytes(config_.raw) : h.key_bytes,
                vb = from.raw ? VectorBytes(config_.raw) : h.value_bytes;
  std::memcpy(Stored(h, to, 0), Stored(h, from, 0), static_cast<size_t>(kb));
  std::memcpy(Stored(h, to, 1), Stored(h, from, 1), static_cast<size_t>(vb));
  *Positions(h, to) = *Positions(h, from);
  for (int a = 0; a < config_.n_aux; ++a) *Aux(h, to, a) = *Aux(h, from, a);
  if (config_.seen_masks) *Seen(h, to) = *Seen(h, from);
}

void KvCache::Remove(int layer, int head, int32_t rank) {
  Head& h = At(layer, head);
  assert(config_.ordered && rank < Len(layer, head));
  if (rank >= h.main_len) {  // close the gap in the ring from the newer side
    MakeWritable(h, -1);
    for (int32_t i = rank - h.main_len; i + 1 < h.tail_len; ++i)
      CopySlot(h, TailSlot(h, i + 1), TailSlot(h, i));
    --h.tail_len;
    return;
  }
  RemoveMain(h, rank);
  // Keeps the pages that ReserveStep counted on: those of what comes next.
  while (static_cast<int32_t>(h.pages.size()) > PagesFor(h.main_len + FormatAt(layer, head).settle)) {
    pools_[static_cast<size_t>(h.main_pool)]->Release(h.pages.back());
    h.pages.pop_back();
  }
}

// The entry of the last slot takes the place of the one that goes.
void KvCache::RemoveMain(Head& h, int32_t rank) {
  const int32_t hole = h.order[static_cast<size_t>(rank)], last = h.main_len - 1;
  h.order.erase(h.order.begin() + rank);
  if (hole != last) {
    MakeWritable(h, hole / config_.page_slots);
    CopySlot(h, MainSlot(h, last), MainSlot(h, hole));
    *std::find(h.order.begin(), h.order.end(), last) = hole;
  }
  --h.main_len;
}

// Whether the newest n of main have the highest slots, as long as nothing older was removed since they came.
bool KvCache::NewestLast(const Head& h, int32_t n) const {
  if (!config_.ordered) return true;
  return std::all_of(h.order.end() - n, h.order.end(), [&](int32_t slot) { return slot >= h.main_len - n; });
}

// Entries of `position` and later ones: they are the newest.
int32_t KvCache::CountFrom(const Head& h, int32_t position) const {
  const int32_t len = h.main_len + h.tail_len;
  int32_t n = 0;
  while (n < len && *Positions(h, SlotOfRank(h, len - 1 - n)) >= position) ++n;
  return n;
}

Status KvCache::RewindTo(int32_t n_tokens) {
  // Entries that take the place of removed ones are written: their pages must be this cache's own.
  need_.assign(pools_.size(), 0);
  for (const Head& h : heads_) {
    const int32_t from_main = std::max(CountFrom(h, n_tokens) - h.tail_len, 0);
    if (NewestLast(h, from_main)) continue;
    const size_t pool = static_cast<size_t>(h.main_pool);
    for (int32_t id : h.pages) need_[pool] += pools_[pool]->Shared(id);
  }
  for (size_t p = 0; p < pools_.size(); ++p) {
    const int32_t missing = need_[p] - static_cast<int32_t>(spare_[p].size());
    if (missing > 0) KVC_RETURN_IF_ERROR(pools_[p]->Take(missing, 0, &spare_[p]));
  }
  for (Head& h : heads_) {
    const int32_t n = CountFrom(h, n_tokens), from_tail = std::min(n, h.tail_len);
    h.tail_len -= from_tail;
    DropNewestMain(h, n - from_tail);
    while (static_cast<int32_t>(h.pages.size()) > PagesFor(h.main_len)) {
      pools_[static_cast<size_t>(h.main_pool)]->Release(h.pages.back());
      h.pages.pop_back();
    }
  }
  ReleaseSpare();
  return {};
}

void KvCache::DropNewestMain(Head& h, int32_t n) {
  const bool in_place = NewestLast(h, n);
  if (in_place) h.main_len -= n;
  if (in_place && config_.ordered) h.order.resize(static_cast<size_t>(h.main_len));
  for (int32_t i = 0; i < n && !in_place; ++i) RemoveMain(h, h.main_len - 1);
}

// ---- by rank ----

int32_t KvCache::PositionAt(int layer, int head, int32_t rank) const {
  const Head& h = At(layer, head);
  return *Positions(h, SlotOfRank(h, rank));
}

void KvCache::ReadVector(int layer, int head, int32_t rank, int which, float* x) const {
  const Head& h = At(layer, head);
  DecodeStored(h, FormatAt(layer, head), SlotOfRank(h, rank), 1, which, x);
}

void KvCache::WriteVector(int layer, int head, int32_t rank, int which, const float* x) {
  Head& h = At(layer, head);
  MakeWritable(h, rank >= h.main_len
                      ? -1
                      : (config_.ordered ? h.order[static_cast<size_t>(rank)] : rank) / config_.page_slots);
  const Slot s = SlotOfRank(h, rank);
  assert(s.raw || which == 1 || !FormatAt(layer, head).key_channels);
  kernels_->encode_vectors(s.raw ? config_.raw : FormatAt(layer, head).stored, x, 1, Stored(h, s, which));
}

void KvCache::GetAux(int layer, int head, int a, float* out) const {
  const Head& h = At(layer, head);
  for (int32_t r = 0; r < h.main_len + h.tail_len; ++r) out[r] = *Aux(h, SlotOfRank(h, r), a);
}

void KvCache::SetAux(int layer, int head, int a, const float* in) {
  Head& h = At(layer, head);
  for (size_t p = 0; p < h.pages.size(); ++p) MakeWritable(h, static_cast<int32_t>(p));
  if (h.tail_len > 0) MakeWritable(h, -1);
  for (int32_t r = 0; r < h.main_len + h.tail_len; ++r) *Aux(h, SlotOfRank(h, r), a) = in[r];
}

void KvCache::ToRankOrder(int layer, int head, const float* physical, float* ranked) const {
  const Head& h = At(layer, head);
  for (int32_t r = 0; r < h.main_len; ++r)
    ranked[r] = physical[config_.ordered ? h.order[static_cast<size_t>(r)] : r];
  const int32_t slots = FormatAt(layer, head).tail_slots;
  for (int32_t i = 0; i < h.tail_len; ++i)
    ranked[h.main_len + i] = physical[h.main_len + (h.tail_start + i) % slots];
}

}  // namespace kvc
