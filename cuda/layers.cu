// A layer of a cache in and out: between pages and full length, a block an entry where entries are apart,
// a block a head where they follow each other. Bytes: every entry once in each form.
#include "cuda/head_ops.h"

#include "cuda/launch.h"
#include "cuda/layer_params.h"

namespace kvc::cuda {
namespace {

// ---- out of the pages ----

struct LoadParams {
  CacheLayer cache;
  LayerParams to;
  Turn turn;
  bool turns_rotated;
  const int32_t* drop;  // [G]
  int32_t n_sink;
  uint64_t* keys;  // [G, sort_stride]
  int64_t sort_stride;
};

__global__ void __launch_bounds__(kLineThreads) order_entries(const LoadParams p) {
  __shared__ BlockSpace space;
  const int32_t g = static_cast<int32_t>(blockIdx.x);
  BlockOrder(Pages(p.cache, g), p.keys + g * p.sort_stride, &space);
}

__global__ void load_entries(const LoadParams p) {
  KVC_SHARED(float, k);
  const int32_t g = static_cast<int32_t>(blockIdx.y), i = static_cast<int32_t>(blockIdx.x), d = p.to.d;
  const Pages pages(p.cache, g);
  if (i >= pages.len() || (i >= p.n_sink && i < p.n_sink + p.drop[g])) return;
  const int32_t at = i < p.n_sink ? i : i - p.drop[g];
  const Slot s = pages.At(static_cast<int32_t>(p.keys[g * p.sort_stride + i] & 0xffffffffu));
  const int64_t entry = g * p.to.capacity + at;
  for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads()) {
    k[j] = pages.Element(s, 0, j);
    p.to.Value(entry).Set(j, pages.Element(s, 1, j));
  }
  __syncthreads();
  const bool rotated = pages.head().rotated != 0;
  for (int32_t j = ThreadOfBlock(); j < d / 2; j += BlockThreads()) {
    if (rotated && p.turns_rotated) UnturnPairAt(p.turn, s.position(), d, j, k);
    if (!rotated || p.turns_rotated) TurnPairAt(p.turn, p.turn.in_cache ? at : s.position(), d, j, k);
  }
  __syncthreads();
  for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads()) p.to.Key(entry).Set(j, k[j]);
  if (ThreadOfBlock() != 0) return;
  p.to.positions[entry] = s.position();
  for (int x = 0; x < p.to.n_aux; ++x)
    p.to.aux[static_cast<int64_t>(x) * p.to.n_heads * p.to.capacity + entry] =
        x < s.f->n_aux ? s.aux(x) : 0.0f;
  if (p.to.has_seen) p.to.seen[entry] = s.f->seen_masks ? s.seen() : ~0u;
}

// ---- into the pages ----

// The key of entry i as the pages keep it: without rotation where they do. x: for the block.
KVC_DEVICE void StoredKey(const LayerParams& from, const Turn& turn, bool rotated, int32_t g, int32_t i,
                          float* x) {
  const LayerNumbers k = from.Key(g * from.capacity + i);
  for (int32_t j = ThreadOfBlock(); j < from.d; j += BlockThreads()) x[j] = k[j];
  __syncthreads();
  if (rotated) return;
  const int64_t position = turn.in_cache ? i : from.positions[g * from.capacity + i];
  for (int32_t j = ThreadOfBlock(); j < from.d / 2; j += BlockThreads())
    UnturnPairAt(turn, position, from.d, j, x);
  __syncthreads();
}

// What CodeLayer leaves of one head, or of the heads of a layer that share books.
struct Codes {
  CodedVector* codes[2];  // [n]
  float* directions[2];   // [n, d]
  float* x;               // [n, d]
  uint8_t* room;
};
KVC_DEVICE Codes CodesAt(uint8_t* at, int64_t n, int32_t d) {
  Codes c;
  const int64_t code_bytes = n * static_cast<int64_t>(sizeof(CodedVector)), vectors = 4 * n * d;
  c.codes[0] = reinterpret_cast<CodedVector*>(at);
  c.codes[1] = reinterpret_cast<CodedVector*>(at + code_bytes);
  c.directions[0] = reinterpret_cast<float*>(at + 2 * code_bytes);
  c.directions[1] = reinterpret_cast<float*>(at + 2 * code_bytes + vectors);
  c.x = reinterpret_cast<float*>(at + 2 * code_bytes + 2 * vectors);
  c.room = at + 2 * code_bytes + 3 * vectors;
  return c;
}
int64_t CodesBytes(int64_t n, int32_t d) {
  return (2 * n * static_cast<int64_t>(sizeof(CodedVector)) + 12 * n * d + CodeRoomBytes(n, d) + 255) / 256 *
         256;
}

struct StoreParams {
  CacheLayer cache;
  LayerParams from;
  Turn turn;
  const uint8_t* marks;
  const uint32_t* seen;
  int64_t stride;
  int32_t* places;  // [G, places_stride] entries that are stored, by their rank
  int64_t places_stride;
  int32_t* counts;  // [G]
  uint8_t* codes;
  int64_t codes_stride, n_codes;
};

__global__ void __launch_bounds__(kLineThreads) list_marked(const StoreParams p) {
  __shared__ BlockSpace space;
  const int32_t g = static_cast<int32_t>(blockIdx.x);
  int32_t* places = p.places + g * p.places_stride;
  const uint8_t* marks = p.marks == nullptr ? nullptr : p.marks + g * p.stride;
  const int32_t n = BlockCompact(
      p.from.len[g], &space, [&](int32_t i) { return marks == nullptr || marks[i] != 0; },
      [&](int32_t i, int32_t place) { places[place] = i; });
  if (ThreadOfBlock() == 0) p.counts[g] = n;
}

__global__ void store_entries(const StoreParams p) {
  KVC_SHARED(float, k);
  const int32_t g = static_cast<int32_t>(blockIdx.y), rank = static_cast<int32_t>(blockIdx.x), d = p.from.d;
  if (rank >= p.counts[g]) return;
  const Pages pages(p.cache, g);
  const int32_t i = p.places[g * p.places_stride + rank], main = pages.main_len();
  const bool in_main = rank < main, codes = pages.format().coding == EntryCoding::kCodebook,
             channels = pages.format().coding == EntryCoding::kKeyChannels;
  const Slot s = in_main ? pages.Main(rank) : pages.RingSlot(rank - main);
  const int64_t entry = g * p.from.capacity + i;
  if (in_main && codes) {
    int64_t before = 0;  // entries of the heads that share the books, laid behind each other
    for (int32_t h = p.cache.layer_books != 0 ? 0 : g; h < g; ++h) before += p.counts[h];
    const Codes all = CodesAt(p.codes + (p.cache.layer_books != 0 ? 0 : g) * p.codes_stride, p.n_codes, d);
    if (ThreadOfBlock() == 0) {
      s.code(0) = all.codes[0][before + rank];
      s.code(1) = all.codes[1][before + rank];
    }
  } else {
    const LayerNumbers v = p.from.Value(entry);
    for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads()) k[d + j] = v[j];
    StoredKey(p.from, p.turn, pages.head().rotated != 0, g, i, k);
    WriteValue(s, k + d, ThreadOfBlock(), BlockThreads());
    if (!(in_main && channels)) WriteKey(s, k, ThreadOfBlock(), BlockThreads());
  }
  if (ThreadOfBlock() != 0) return;
  const int64_t all = static_cast<int64_t>(p.from.n_heads) * p.from.capacity;
  WriteMeta(s, p.from.positions[entry], rank, p.from.n_aux > 0 ? p.from.aux + entry : nullptr, all,
            p.seen == nullptr ? ~0u : p.seen[g * p.stride + i]);
}

// Block (page, g): what the entries of a page share, scales of keys and bounds; and the first one the
// directions of a codebook's head.
__global__ void __launch_bounds__(kBlock) store_shared(const StoreParams p) {
  const int32_t page = static_cast<int32_t>(blockIdx.x), g = static_cast<int32_t>(blockIdx.y), d = p.from.d;
  const Pages pages(p.cache, g);
  if (page == 0 && pages.format().coding == EntryCoding::kCodebook && pages.head().owner == g) {
    const Codes all = CodesAt(p.codes + g * p.codes_stride, p.n_codes, d);
    for (int which = 0; which < 2; ++which) {
      for (int32_t e = 0; e < pages.book_len(which); ++e) {
        for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads())
          pages.Direction(which, e)[j] = all.directions[which][static_cast<int64_t>(e) * d + j];
      }
    }
  }
  const int32_t slots = pages.format().slots, first = page * slots;
  if (first + slots > pages.main_len()) return;
  if (pages.format().coding == EntryCoding::kKeyChannels) {
    const int32_t* places = p.places + g * p.places_stride + first;
    WriteKeyBlock(
        pages.Main(first),
        [&](int32_t i, int32_t c) { return p.from.Key(g * p.from.capacity + places[i])[c]; }, slots,
        ThreadOfBlock(), BlockThreads());
  }
  if (pages.format().key_bounds) BlockNoteBounds(pages, pages.Main(first + slots - 1));
}

struct CodeParams {
  LayerParams from;
  Turn turn;
  const uint8_t* marks;
  int64_t stride;
  uint8_t* codes;
  int64_t codes_stride, n_codes;
  bool shared, magnitudes;
  float theta[2];
  int32_t* n_directions;  // [G, 2]
};

__global__ void __launch_bounds__(kBlock) code_layer(const CodeParams p) {
  __shared__ BlockSpace space;
  const int32_t g = static_cast<int32_t>(blockIdx.x), end = p.shared ? p.from.n_heads : g + 1, d = p.from.d;
  const Codes out = CodesAt(p.codes + g * p.codes_stride, p.n_codes, d);
  const CodeRoom room = CodeRoomAt(out.room, p.n_codes, d);
  for (int which = 0; which < 2; ++which) {
    int32_t n = 0;
    for (int32_t h = g; h < end; ++h) {
      const uint8_t* marks = p.marks == nullptr ? nullptr : p.marks + h * p.stride;
      const int32_t base = n;
      n += BlockCompact(
          p.from.len[h], &space, [&](int32_t i) { return marks == nullptr || marks[i] != 0; },
          [&](int32_t i, int32_t place) {
            const int64_t entry = h * p.from.capacity + i;
            const LayerNumbers x = which == 0 ? p.from.Key(entry) : p.from.Value(entry);
            float* to = out.x + static_cast<int64_t>(base + place) * d;
            for (int32_t j = 0; j < d; ++j) to[j] = x[j];
            const int64_t position = p.turn.in_cache ? i : p.from.positions[entry];
            for (int32_t j = 0; which == 0 && j < d / 2; ++j) UnturnPairAt(p.turn, position, d, j, to);
          });
    }
    const int32_t n_added = BlockCodeVectors(
        out.x, n, d, p.theta[which], p.magnitudes, 0, [&](int32_t) -> const float* { return nullptr; },
        out.codes[which], [&](int32_t e) { return out.directions[which] + static_cast<int64_t>(e) * d; },
        room, &space);
    if (ThreadOfBlock() == 0) p.n_directions[2 * g + which] = n_added;
    __syncthreads();
  }
}

struct AppendParams {
  CacheLayer cache;
  LayerParams from;
  Turn turn;
  const int32_t* first;  // [G]
  uint8_t* rooms;
  int64_t room_bytes;
};

// Entries behind what is cached, as steps would. One block for all heads where they add to the same books.
__global__ void __launch_bounds__(kBlock) append_entries(const AppendParams p) {
  KVC_SHARED(float, k);
  __shared__ BlockSpace space;
  const bool shared = p.cache.layer_books != 0;
  const int32_t begin = shared ? 0 : static_cast<int32_t>(blockIdx.x),
                end = shared ? p.from.n_heads : begin + 1, d = p.from.d;
  float* value = k + 3 * d;
  for (int32_t g = begin; g < end; ++g) {
    const Pages pages(p.cache, g);
    HeadRoom room{};
    room.vectors = k + d;
    room.settle = p.rooms + (shared ? 0 : g) * p.room_bytes;
    for (int32_t i = p.first[g]; i < p.from.len[g]; ++i) {
      const int64_t entry = g * p.from.capacity + i;
      const LayerNumbers v = p.from.Value(entry);
      for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads()) value[j] = v[j];
      StoredKey(p.from, p.turn, pages.head().rotated != 0, g, i, k);
      if (ThreadOfBlock() == 0) ++(pages.head().ring >= 0 ? pages.head().ring_len : pages.head().len);
      __syncthreads();
      BlockWriteNewest(pages, k, value, p.from.positions[entry]);
      BlockSettle(pages, room, &space);
    }
  }
}

int32_t Longest(const CacheView& c, int32_t layer) {
  int32_t longest = 0;
  for (int32_t g = 0; g < c.layout->n_kv_heads; ++g)
    longest = std::max(longest, HeadLen(c, layer * c.layout->n_kv_heads + g));
  return longest;
}

// Directions and references of all heads.
int64_t AllCodes(const CacheLayout& layout, int64_t n_codes) {
  if (layout.directions < 0) return 0;
  return (layout.layer_books ? 1 : layout.n_kv_heads) * CodesBytes(n_codes, layout.head_dim);
}

// The fewest slots of pages whose entries share something; 0: those of no format do.
int32_t FewestSharedSlots(const CacheLayout& layout) {
  int32_t slots = 0;
  for (const PageFormat& f : layout.formats) {
    const bool shares = f.coding == EntryCoding::kKeyChannels || f.key_bounds;
    if (shares && (slots == 0 || f.slots < slots)) slots = f.slots;
  }
  return slots;
}

}  // namespace

void AddLayersKernels(KernelLoader* loader) {
  KVC_ADD(loader, order_entries, 0);
  KVC_ADD(loader, load_entries, 0);
  KVC_ADD(loader, list_marked, 0);
  KVC_ADD(loader, store_entries, 0);
  KVC_ADD(loader, store_shared, 0);
  KVC_ADD(loader, code_layer, 0);
  KVC_ADD(loader, append_entries, 0);
}

int64_t CudaDevice::LoadScratchBytes(int32_t n_kv_heads, int64_t entries) const {
  return Packet::Size<uint64_t>(n_kv_heads * PowerOfTwoFrom(entries));
}

Status CudaDevice::LoadLayer(Stream* s, const LoadArgs& a) {
  KVC_ENTER();
  const int32_t heads = a.to.n_kv_heads, longest = Longest(*a.cache, a.layer);
  for (int32_t g = 0; g < heads; ++g)
    a.to.len[g] = HeadLen(*a.cache, a.layer * heads + g) - (a.drop == nullptr ? 0 : a.drop[g]);
  if (longest == 0) return {};
  const int64_t sort_stride = PowerOfTwoFrom(longest);
  CacheRecords records(*a.cache, a.layer * heads, heads, 0);
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(
      s, records.Bytes() + LayerBytes(a.to) + TurnBytes(a.turning.rope) + Packet::Size<int32_t>(heads)));
  LoadParams p{};
  p.cache = records.Write(&packet);
  p.to = LayerOf(a.to, &packet);
  p.turn = TurnOf(a.turning, &packet);
  p.turns_rotated = a.turns_rotated, p.n_sink = a.n_sink;
  int32_t* drop = packet.Add<int32_t>(heads, &p.drop);
  for (int32_t g = 0; g < heads; ++g) drop[g] = a.drop == nullptr ? 0 : a.drop[g];
  Scratch scratch(At(a.scratch), LoadScratchBytes(heads, a.scratch_entries));
  p.keys = scratch.Take<uint64_t>(heads * sort_stride), p.sort_stride = sort_stride;
  KVC_RETURN_IF_ERROR(scratch.Check());
  KVC_RETURN_IF_ERROR(packet.Send());
  CudaStream& stream = StreamOf(s);
  KVC_RETURN_IF_ERROR(Check(
      KVC_LAUNCH(order_entries, dim3(static_cast<unsigned>(heads)), dim3(LineThreads(longest)), 0, stream, p),
      "loading entries"));
  return Check(KVC_LAUNCH(load_entries, dim3(static_cast<unsigned>(longest), static_cast<unsigned>(heads)),
                          dim3(64), static_cast<size_t>(a.to.head_dim) * sizeof(float), stream, p),
               "loading entries");
}

int64_t CudaDevice::StoreScratchBytes(const CacheLayout& layout, int64_t entries, int64_t n_codes) const {
  const int64_t heads = layout.n_kv_heads;
  return AllCodes(layout, n_codes) + Packet::Size<int32_t>(heads * entries) + Packet::Size<int32_t>(heads);
}

Status CudaDevice::StoreLayer(Stream* s, const StoreArgs& a) {
  KVC_ENTER();
  const int32_t heads = a.from.n_kv_heads, d = a.from.head_dim;
  const int64_t longest = LongestOf(a.from);
  if (longest == 0) return {};
  CacheRecords records(*a.cache, a.layer * heads, heads, 0);
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, records.Bytes() + LayerBytes(a.from) + TurnBytes(a.turning.rope)));
  StoreParams p{};
  p.cache = records.Write(&packet);
  p.from = LayerOf(a.from, &packet);
  p.turn = TurnOf(a.turning, &packet);
  p.marks = At(a.marks), p.seen = At(a.seen), p.stride = a.stride;
  p.codes = At(a.codes), p.codes_stride = CodesBytes(a.n_codes, d), p.n_codes = a.n_codes;
  const int64_t coded = AllCodes(*a.cache->layout, a.n_codes);
  Scratch scratch(At(a.codes) + coded, StoreScratchBytes(*a.cache->layout, longest, a.n_codes) - coded);
  p.places = scratch.Take<int32_t>(heads * longest), p.places_stride = longest;
  p.counts = scratch.Take<int32_t>(heads);
  KVC_RETURN_IF_ERROR(scratch.Check());
  KVC_RETURN_IF_ERROR(packet.Send());
  CudaStream& stream = StreamOf(s);
  const dim3 grid(static_cast<unsigned>(heads));
  KVC_RETURN_IF_ERROR(Check(KVC_LAUNCH(list_marked, grid, BlockOf(a.from), 0, stream, p), "storing entries"));
  // As many as the records say that there will be: of a long prompt few stay.
  const int32_t stored = std::max(Longest(*a.cache, a.layer), 1);
  KVC_RETURN_IF_ERROR(
      Check(KVC_LAUNCH(store_entries, dim3(static_cast<unsigned>(stored), static_cast<unsigned>(heads)),
                       dim3(64), 2 * static_cast<size_t>(d) * sizeof(float), stream, p),
            "storing entries"));
  const int32_t slots = FewestSharedSlots(*a.cache->layout);
  if (slots == 0 && a.cache->layout->directions < 0) return {};
  const dim3 pages(slots == 0 ? 1u : static_cast<unsigned>((stored + slots - 1) / slots),
                   static_cast<unsigned>(heads));
  return Check(KVC_LAUNCH(store_shared, pages, dim3(kBlock), 0, stream, p), "storing entries");
}

Status CudaDevice::CodeLayer(Stream* s, const CodeArgs& a) {
  KVC_ENTER();
  const int32_t heads = a.from.n_kv_heads;
  const HeadFormat& format = a.layout->heads[static_cast<size_t>(a.layer) * static_cast<size_t>(heads)];
  Packet packet;
  KVC_RETURN_IF_ERROR(
      packet.Begin(s, LayerBytes(a.from) + TurnBytes(a.turning.rope), Packet::Size<int32_t>(2 * heads)));
  CodeParams p{};
  p.from = LayerOf(a.from, &packet);
  p.turn = TurnOf(a.turning, &packet);
  p.marks = At(a.marks), p.stride = a.stride;
  p.codes = At(a.codes), p.codes_stride = CodesBytes(a.n_codes, a.from.head_dim), p.n_codes = a.n_codes;
  p.shared = a.layout->layer_books, p.magnitudes = format.magnitudes;
  p.theta[0] = format.theta_key, p.theta[1] = format.theta_value;
  p.n_directions = packet.Room<int32_t>(2 * heads);
  KVC_RETURN_IF_ERROR(packet.Send());
  KVC_RETURN_IF_ERROR(StreamOf(s).Clear(p.n_directions, int64_t{8} * heads, "coding entries"));
  KVC_RETURN_IF_ERROR(Check(KVC_LAUNCH(code_layer, dim3(p.shared ? 1u : static_cast<unsigned>(heads)),
                                       dim3(kBlock), 0, StreamOf(s), p),
                            "coding entries"));
  return StreamOf(s).Fetch(p.n_directions, a.n_directions, int64_t{8} * heads);
}

int64_t CudaDevice::AppendScratchBytes(const CacheLayout& layout) const {
  return layout.n_kv_heads * SettleBytes(layout, layout.heads);
}

Status CudaDevice::AppendLayer(Stream* s, const AppendArgs& a) {
  KVC_ENTER();
  const int32_t heads = a.from.n_kv_heads;
  const CacheLayout& layout = *a.cache->layout;
  int32_t most = 0;
  for (int32_t g = 0; g < heads; ++g) most = std::max(most, a.from.len[g] - a.first[g]);
  if (most <= 0) return {};
  const int32_t more = most + RingSlots(layout, layout.heads);
  CacheRecords records(*a.cache, a.layer * heads, heads, more);
  const int64_t room = SettleBytes(layout, layout.heads);
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(
      s, records.Bytes() + LayerBytes(a.from) + TurnBytes(a.turning.rope) + Packet::Size<int32_t>(heads)));
  AppendParams p{};
  p.cache = records.Write(&packet);
  p.from = LayerOf(a.from, &packet);
  p.turn = TurnOf(a.turning, &packet);
  p.first = packet.Copy(a.first, heads);
  p.rooms = At(a.scratch), p.room_bytes = room;
  KVC_RETURN_IF_ERROR(packet.Send());
  KVC_RETURN_IF_ERROR(Check(
      KVC_LAUNCH(append_entries, dim3(layout.layer_books ? 1u : static_cast<unsigned>(heads)), dim3(kBlock),
                 4 * static_cast<size_t>(layout.head_dim) * sizeof(float), StreamOf(s), p),
      "appending entries"));
  return records.ReadBack(&StreamOf(s), p.cache.heads);
}

}  // namespace kvc::cuda
