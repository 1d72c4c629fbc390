// Entries that leave without a step, and what is asked about those that stay: a block a head.
#include <algorithm>

#include "cuda/head_ops.h"
#include "cuda/launch.h"
#include "cuda/layer_params.h"

namespace kvc::cuda {
namespace {

struct LeaveParams {
  CacheLayer cache;
  Turn turn;
  bool drops_rotation;
  int32_t n_tokens;      // Rewind: entries from this position on go
  const uint8_t* marks;  // Evict: [G, marks_stride] by ascending position; null: Rewind
  int64_t marks_stride;
  const int32_t* heads;  // [G] which, null: all
  int32_t* lists;        // [G, 3, stride]
  uint64_t* keys;        // [G, sort_stride]
  uint8_t* gone;         // [G, stride]
  int64_t stride, sort_stride;
};

__global__ void __launch_bounds__(kBlock) leave(const LeaveParams p) {
  KVC_SHARED(float, vectors);
  __shared__ BlockSpace space;
  const int32_t g = static_cast<int32_t>(blockIdx.x);
  if (p.heads != nullptr && p.heads[g] == 0) return;
  const Pages pages(p.cache, g);
  int32_t* lists = p.lists + g * 3 * p.stride;
  uint8_t* gone = p.gone + g * p.stride;
  HeadRoom room{};
  room.holes = lists, room.movers = lists + p.stride, room.gone_ranks = lists + 2 * p.stride,
  room.vectors = vectors;
  if (p.drops_rotation) BlockDropRotation(pages, p.turn, vectors);
  const int32_t len = pages.len();
  if (p.marks != nullptr) {
    uint64_t* keys = p.keys + g * p.sort_stride;
    BlockOrder(pages, keys, &space);
    for (int32_t i = ThreadOfBlock(); i < len; i += BlockThreads())
      gone[static_cast<int32_t>(keys[i] & 0xffffffffu)] = p.marks[g * p.marks_stride + i] == 0 ? 1 : 0;
  } else {
    for (int32_t i = ThreadOfBlock(); i < len; i += BlockThreads()) {
      const int32_t x = pages.Physical(i);
      gone[x] = pages.At(x).position() >= p.n_tokens ? 1 : 0;
    }
  }
  __syncthreads();
  BlockRemove(
      pages, [&](int32_t x) { return gone[x] != 0; }, room, &space);
}

int64_t LongestOf(const CacheView& c, int32_t first, int32_t n) {
  int64_t longest = 1;
  for (int32_t h = first; h < first + n; ++h)
    longest = std::max<int64_t>(longest, c.len[h] + c.layout->ring_slots(h));
  return longest;
}

struct LeaveBytes {
  int64_t n, stride, sort_stride;
  // marks: by which the entries go.
  LeaveBytes(int64_t heads, int64_t longest, bool marks)
      : n(heads), stride((longest + 15) / 16 * 16), sort_stride(marks ? PowerOfTwoFrom(stride) : 0) {}
  int64_t all() const {
    return Packet::Size<int32_t>(3 * n * stride) + Packet::Size<uint64_t>(n * sort_stride) +
           Packet::Size<uint8_t>(n * stride);
  }
};

// scratch: LeaveBytes for at least as many entries.
Status Leave(Stream* s, const CacheView& cache, int32_t first, int32_t n, LeaveParams p,
             const KeyTurning* turning, const bool* heads, uint8_t* scratch, int64_t scratch_bytes) {
  const LeaveBytes bytes(n, LongestOf(cache, first, n), p.marks != nullptr);
  CacheRecords records(cache, first, n, 0);
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(
      s, records.Bytes() + (turning == nullptr ? 0 : TurnBytes(turning->rope)) + Packet::Size<int32_t>(n)));
  p.cache = records.Write(&packet);
  if (turning != nullptr) p.turn = TurnOf(*turning, &packet), p.drops_rotation = turning->in_cache;
  if (heads != nullptr) {
    int32_t* which = packet.Add<int32_t>(n, &p.heads);
    for (int32_t i = 0; i < n; ++i) which[i] = heads[i] ? 1 : 0;
  }
  p.stride = bytes.stride, p.sort_stride = bytes.sort_stride;
  Scratch parts(scratch, scratch_bytes);
  p.lists = parts.Take<int32_t>(3 * n * p.stride);
  p.keys = parts.Take<uint64_t>(n * p.sort_stride);
  p.gone = parts.Take<uint8_t>(n * p.stride);
  KVC_RETURN_IF_ERROR(parts.Check());
  KVC_RETURN_IF_ERROR(packet.Send());
  KVC_RETURN_IF_ERROR(
      Check(KVC_LAUNCH(leave, dim3(static_cast<unsigned>(n)), dim3(kBlock),
                       2 * static_cast<size_t>(cache.layout->head_dim) * sizeof(float), StreamOf(s), p),
            "removing entries"));
  return records.ReadBack(&StreamOf(s), p.cache.heads);
}

struct KeepParams {
  CacheLayer cache;
  const int32_t* to;  // page ids
  int32_t n;
};

__global__ void keep_newest(const KeepParams p) {
  const Pages pages(p.cache, 0);
  const PageFormat& f = pages.format();
  const int32_t i = static_cast<int32_t>(blockIdx.x);
  const Slot to{p.cache.formats[pages.head().main].base + static_cast<int64_t>(p.to[i / f.slots]) * f.bytes,
                &f, i % f.slots};
  CopyEntry(pages.Main(pages.main_len() - p.n + i), to, ThreadOfBlock(), BlockThreads());
  __syncthreads();
  if (f.ranks && ThreadOfBlock() == 0) to.rank() = i;
}

// Block i: the i-th page that keep_newest has filled.
__global__ void keep_bounds(const KeepParams p) {
  const Pages pages(p.cache, 0);
  const PageFormat& f = pages.format();
  BlockNoteBounds(pages, {p.cache.formats[pages.head().main].base +
                              static_cast<int64_t>(p.to[static_cast<int32_t>(blockIdx.x)]) * f.bytes,
                          &f, f.slots - 1});
}

// All entries of a head, decoded, into pages of another format: block i, the i-th entry, main before ring.
__global__ void store_plain(const KeepParams p, int32_t format) {
  KVC_SHARED(float, x);
  const Pages pages(p.cache, 0);
  const Format& to_format = p.cache.formats[format];
  const int32_t i = static_cast<int32_t>(blockIdx.x), d = to_format.f.d;
  const Slot from = pages.At(pages.Physical(i)),
             to{to_format.base + static_cast<int64_t>(p.to[i / to_format.f.slots]) * to_format.f.bytes,
                &to_format.f, i % to_format.f.slots};
  ReadVector(pages, from, 0, x);
  ReadVector(pages, from, 1, x + d);
  WriteKey(to, x, ThreadOfBlock(), BlockThreads());
  WriteValue(to, x + d, ThreadOfBlock(), BlockThreads());
  if (ThreadOfBlock() == 0) CopyMeta(from, to);
}

__global__ void list_positions(const CacheLayer cache, int32_t* out) {
  const Pages pages(cache, 0);
  const int32_t i = static_cast<int32_t>(blockIdx.x) * BlockThreads() + ThreadOfBlock();
  if (i < pages.len()) out[i] = pages.At(pages.Physical(i)).position();
}

struct RingParams {
  float *ring, *rows;
  int32_t ring_rows, start, len, n, n_heads, d, group, newest;
  QueryRingArgs::Kind kind;
  Turn turn;
  const int32_t* slots;  // [G] where queries count in slots
};

// Block (h, i): query head h of row i.
__global__ void query_ring(const RingParams p) {
  KVC_SHARED(float, x);
  const int32_t h = static_cast<int32_t>(blockIdx.x), i = static_cast<int32_t>(blockIdx.y);
  const int64_t width = static_cast<int64_t>(p.n_heads) * p.d;
  const int32_t at = p.kind == QueryRingArgs::kPush   ? p.len + i
                     : p.kind == QueryRingArgs::kView ? p.len - p.n + i
                                                      : i;
  float* ring = p.ring + (p.start + at) % p.ring_rows * width + static_cast<int64_t>(h) * p.d;
  float* row = p.rows + i * width + static_cast<int64_t>(h) * p.d;
  float *from = p.kind == QueryRingArgs::kPush ? row : ring,
        *to = p.kind == QueryRingArgs::kView ? row : ring;
  for (int32_t j = ThreadOfBlock(); j < p.d; j += BlockThreads()) x[j] = from[j];
  __syncthreads();
  const bool drops = p.kind == QueryRingArgs::kDropRotation;
  if (drops || p.turn.in_cache) {
    const int64_t position = drops ? p.newest - (p.len - 1 - i) : p.slots[h / p.group] - (p.n - 1 - i);
    for (int32_t j = ThreadOfBlock(); j < p.d / 2; j += BlockThreads()) {
      if (p.kind == QueryRingArgs::kView) {
        TurnPairAt(p.turn, position, p.d, j, x);
      } else {
        UnturnPairAt(p.turn, position, p.d, j, x);
      }
    }
  }
  __syncthreads();
  for (int32_t j = ThreadOfBlock(); j < p.d; j += BlockThreads()) to[j] = x[j];
}

}  // namespace

void AddCacheOpsKernels(KernelLoader* loader) {
  KVC_ADD(loader, leave, 0);
  KVC_ADD(loader, keep_newest, 0);
  KVC_ADD(loader, keep_bounds, 0);
  KVC_ADD(loader, store_plain, 0);
  KVC_ADD(loader, list_positions, 0);
  KVC_ADD(loader, query_ring, 0);
}

int64_t CudaDevice::RewindScratchBytes(int32_t n_kv_heads, int64_t stride) const {
  return LeaveBytes(n_kv_heads, stride, false).all();
}

Status CudaDevice::Rewind(Stream* s, const RewindArgs& a) {
  KVC_ENTER();
  const int32_t heads = a.cache->layout->n_kv_heads;
  LeaveParams p{};
  p.n_tokens = a.n_tokens;
  return Leave(s, *a.cache, a.layer * heads, heads, p, nullptr, nullptr, At(a.scratch),
               RewindScratchBytes(heads, a.stride));
}

int64_t CudaDevice::EvictScratchBytes(int32_t n_kv_heads, int64_t stride) const {
  return LeaveBytes(n_kv_heads, stride, true).all();
}

Status CudaDevice::Evict(Stream* s, const EvictArgs& a) {
  KVC_ENTER();
  const int32_t heads = a.cache->layout->n_kv_heads;
  LeaveParams p{};
  p.marks = At(a.marks), p.marks_stride = a.stride;
  return Leave(s, *a.cache, a.layer * heads, heads, p, &a.turning, a.heads, At(a.scratch),
               EvictScratchBytes(heads, a.stride));
}

Status CudaDevice::KeepNewest(Stream* s, const KeepNewestArgs& a) {
  KVC_ENTER();
  if (a.n <= 0) return {};
  const PageFormat& format = a.cache->layout->formats[static_cast<size_t>(MainFormat(*a.cache, a.head))];
  const int32_t slots = format.slots, n_pages = (a.n + slots - 1) / slots;
  CacheRecords records(*a.cache, a.head, 1, 0);
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, records.Bytes() + Packet::Size<int32_t>(n_pages)));
  const CacheLayer cache = records.Write(&packet);
  const KeepParams p{cache, packet.Copy(a.pages, n_pages), a.n};
  KVC_RETURN_IF_ERROR(packet.Send());
  KVC_RETURN_IF_ERROR(
      Check(KVC_LAUNCH(keep_newest, dim3(static_cast<unsigned>(a.n)), dim3(64), 0, StreamOf(s), p),
            "keeping entries"));
  if (!format.key_bounds || a.n < slots) return {};
  return Check(KVC_LAUNCH(keep_bounds, dim3(static_cast<unsigned>(a.n / slots)), dim3(64), 0, StreamOf(s), p),
               "keeping entries");
}

Status CudaDevice::StorePlain(Stream* s, const StorePlainArgs& a) {
  KVC_ENTER();
  const int32_t n = HeadLen(*a.cache, a.head);
  if (n <= 0) return {};
  const int32_t slots = a.cache->layout->formats[static_cast<size_t>(a.format)].slots,
                n_pages = (n + slots - 1) / slots;
  CacheRecords records(*a.cache, a.head, 1, 0);
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, records.Bytes() + Packet::Size<int32_t>(n_pages)));
  const CacheLayer cache = records.Write(&packet);
  const KeepParams p{cache, packet.Copy(a.pages, n_pages), n};
  KVC_RETURN_IF_ERROR(packet.Send());
  return Check(KVC_LAUNCH(store_plain, dim3(static_cast<unsigned>(n)), dim3(64),
                          2 * static_cast<size_t>(a.cache->layout->head_dim) * sizeof(float), StreamOf(s), p,
                          a.format),
               "storing entries");
}

Status CudaDevice::Positions(Stream* s, const PositionsArgs& a) {
  KVC_ENTER();
  const int32_t n = HeadLen(*a.cache, a.head);
  if (n == 0) return {};
  CacheRecords records(*a.cache, a.head, 1, 0);
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, records.Bytes(), Packet::Size<int32_t>(n)));
  const CacheLayer cache = records.Write(&packet);
  int32_t* out = packet.Room<int32_t>(n);
  KVC_RETURN_IF_ERROR(packet.Send());
  KVC_RETURN_IF_ERROR(Check(KVC_LAUNCH(list_positions, dim3(static_cast<unsigned>((n + 127) / 128)),
                                       dim3(128), 0, StreamOf(s), cache, out),
                            "positions"));
  KVC_RETURN_IF_ERROR(StreamOf(s).Fetch(out, a.positions, int64_t{4} * n));
  std::sort(a.positions, a.positions + n);
  return {};
}

Status CudaDevice::QueryRing(Stream* s, const QueryRingArgs& a) {
  KVC_ENTER();
  const int32_t rows = a.kind == QueryRingArgs::kDropRotation ? a.len : a.n;
  if (rows <= 0) return {};
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, TurnBytes(a.turning.rope) + Packet::Size<int32_t>(a.n_kv_heads)));
  RingParams p{};
  p.ring = At(a.ring), p.rows = At(a.rows), p.ring_rows = a.ring_rows, p.start = a.start, p.len = a.len,
  p.n = a.n;
  p.n_heads = a.n_heads, p.d = a.head_dim, p.group = a.n_heads / a.n_kv_heads, p.newest = a.newest,
  p.kind = a.kind;
  p.turn = TurnOf(a.turning, &packet);
  if (a.turning.in_cache && a.slots != nullptr) p.slots = packet.Copy(a.slots, a.n_kv_heads);
  p.turn.in_cache = p.turn.in_cache && p.slots != nullptr;
  KVC_RETURN_IF_ERROR(packet.Send());
  return Check(KVC_LAUNCH(query_ring, dim3(static_cast<unsigned>(a.n_heads), static_cast<unsigned>(rows)),
                          dim3(64), static_cast<size_t>(a.head_dim) * sizeof(float), StreamOf(s), p),
               "the newest queries");
}

}  // namespace kvc::cuda
