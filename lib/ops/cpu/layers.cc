// A layer of a cache in and out: between pages and full-length f32. Bytes: every entry once in each form.
#include <algorithm>
#include <cstring>

#include "lib/ops/cpu/codebook.h"
#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/layer.h"
#include "lib/ops/cpu/pages.h"

namespace kvc::cpu {
namespace {

// Calls f(i-th entry by position, its Slot).
template <typename F>
void ByPosition(const HeadPages& head, uint64_t* order, F&& f) {
  const int32_t n = head.len();
  int32_t at = 0;
  bool ascending = true;
  head.ForRuns([&](int32_t first, int32_t count, const Slot& s) {
    const int32_t* positions = &s.position();
    for (int32_t i = 0; i < count; ++i, ++at) {
      order[at] = OrderKey(positions[i], first + i);
      ascending = ascending && (at == 0 || order[at] > order[at - 1]);
    }
  });
  if (!ascending) std::sort(order, order + n);
  for (int32_t i = 0; i < n; ++i) f(i, head.At(static_cast<int32_t>(order[i] & 0xffffffffu)));
}

struct Layer {
  const LayerView& v;
  float* keys(int32_t g) const { return KeysOf(v, g); }
  float* values(int32_t g) const { return ValuesOf(v, g); }
  int32_t* positions(int32_t g) const { return Raw(v.positions) + g * v.capacity; }
  float* aux(int32_t a, int32_t g) const { return Raw(v.aux) + (int64_t{a} * v.n_kv_heads + g) * v.capacity; }
  uint32_t* seen(int32_t g) const { return Raw(v.seen) + g * v.capacity; }
};

// The key of entry i as the pages keep it: without rotation where they do.
const float* StoredKey(const KernelTable& kernels, const Layer& layer, const KeyTurning& turning,
                       bool rotated, int32_t g, int32_t i, float* scratch) {
  const int32_t d = layer.v.head_dim;
  const float* k = layer.keys(g) + int64_t{i} * d;
  if (rotated) return k;
  std::copy_n(k, d, scratch);
  Unrotate(kernels, *turning.rope, turning.pairing, turning.in_cache ? i : layer.positions(g)[i], d, scratch,
           1);
  return scratch;
}

// What CodeLayer leaves of one head, or of the heads of a layer that share books.
struct Codes {
  CodedVector* codes[2];  // [n]
  float* directions[2];   // [n, d]
  CodeSpace space;
  float* x;  // [n, d]
  static int64_t Floats(int64_t n, int32_t d) { return 4 * n + 3 * n * d + CodeSpace::Floats(n, d); }
  Codes(float* at, int64_t n, int32_t d)
      : codes{reinterpret_cast<CodedVector*>(at), reinterpret_cast<CodedVector*>(at) + n},
        directions{at + 4 * n, at + 4 * n + n * d},
        space(at + 4 * n + 3 * n * d, n, d),
        x(at + 4 * n + 2 * n * d) {}
};

int32_t CountMarked(const uint8_t* marks, int32_t n) {
  return marks == nullptr ? n : static_cast<int32_t>(std::count(marks, marks + n, uint8_t{1}));
}

}  // namespace

int64_t CpuDevice::LoadScratchBytes(int32_t n_kv_heads, int64_t entries) const {
  return 8 * n_kv_heads * entries;
}

Status CpuDevice::LoadLayer(Stream*, const LoadArgs& a) {
  const Layer to{a.to};
  const int32_t d = a.to.head_dim;
  pool_->ParallelFor(a.to.n_kv_heads, [&](int64_t head, int) {
    const int32_t g = static_cast<int32_t>(head), drop = a.drop == nullptr ? 0 : a.drop[g];
    const HeadPages pages(kernels_, *a.cache, a.layer * a.to.n_kv_heads + g);
    int32_t at = 0;
    ByPosition(pages, reinterpret_cast<uint64_t*>(Raw(a.scratch)) + g * a.scratch_entries,
               [&](int32_t i, const Slot& s) {
                 if (i >= a.n_sink && i < a.n_sink + drop) return;
                 float* k = to.keys(g) + int64_t{at} * d;
                 pages.ReadKeys(s, 1, k);
                 pages.ReadValues(s, 1, to.values(g) + int64_t{at} * d);
                 to.positions(g)[at] = s.position();
                 for (int x = 0; x < a.to.n_aux; ++x) to.aux(x, g)[at] = x < s.f->n_aux ? s.aux(x) : 0.0f;
                 if (a.to.has_seen) to.seen(g)[at] = s.f->seen_masks ? s.seen() : ~0u;
                 // Keys stored with their rotation have that of their position, and what counts in slots
                 // wants another.
                 if (pages.rotated() && a.turns_rotated)
                   Unrotate(kernels_, *a.turning.rope, a.turning.pairing, s.position(), d, k, 1);
                 if (!pages.rotated() || a.turns_rotated) {
                   Rotate(kernels_, *a.turning.rope, a.turning.pairing,
                          a.turning.in_cache ? at : s.position(), d, k, 1);
                 }
                 ++at;
               });
    a.to.len[g] = at;
  });
  return {};
}

Status CpuDevice::StoreLayer(Stream*, const StoreArgs& a) {
  const Layer from{a.from};
  const int32_t n_heads = a.from.n_kv_heads, d = a.from.head_dim;
  const CacheLayout& layout = *a.cache->layout;
  pool_->ParallelFor(n_heads, [&](int64_t item, int) {
    const int32_t g = static_cast<int32_t>(item), head = a.layer * n_heads + g;
    const HeadPages pages(kernels_, *a.cache, head);
    const uint8_t* marks = a.marks ? Raw(a.marks) + g * a.stride : nullptr;
    const uint32_t* seen = a.seen ? Raw(a.seen) + g * a.stride : nullptr;
    const int32_t main = pages.main_len();
    const bool codes = pages.format().coding == EntryCoding::kCodebook,
               channels = pages.format().coding == EntryCoding::kKeyChannels;
    const CodedVector* coded[2] = {nullptr, nullptr};
    if (codes) {
      int64_t before = 0;  // entries of the heads that share the books, laid behind each other
      for (int32_t h = layout.layer_books ? 0 : g; h < g; ++h)
        before += CountMarked(a.marks ? Raw(a.marks) + h * a.stride : nullptr, a.from.len[h]);
      const int64_t books = layout.layer_books ? 0 : g, n = a.n_codes;
      const Codes all(reinterpret_cast<float*>(Raw(a.codes)) + books * Codes::Floats(n, d), n, d);
      for (int which = 0; which < 2; ++which) {
        coded[which] = all.codes[which] + before;
        for (int32_t e = 0; (g == 0 || !layout.layer_books) && e < pages.book_len(which); ++e)
          std::copy_n(all.directions[which] + int64_t{e} * d, d, pages.MutableDirection(which, e));
      }
    }
    float scratch[kMaxHeadSize];
    int32_t rank = 0;
    for (int32_t i = 0; i < a.from.len[g]; ++i) {
      if (marks != nullptr && marks[i] == 0) continue;
      const bool in_main = rank < main;
      const Slot s = in_main ? pages.Main(rank) : pages.RingSlot(rank - main);
      const float* v = from.values(g) + int64_t{i} * d;
      if (in_main && codes) {
        s.key_code() = coded[0][rank], s.value_code() = coded[1][rank];
      } else {
        pages.WriteValue(s, v);
        if (!(in_main && channels))
          pages.WriteKey(s, StoredKey(kernels_, from, a.turning, pages.rotated(), g, i, scratch));
      }
      pages.WriteMeta(s, from.positions(g)[i], rank, a.from.n_aux > 0 ? from.aux(0, g) + i : nullptr,
                      n_heads * a.from.capacity, seen == nullptr ? ~0u : seen[i]);
      if (in_main && !channels) pages.NoteBounds(s);
      ++rank;
    }
    if (!channels) return;
    // Main has whole pages of keys that share scales: each is coded at once, from entries that lie behind
    // each other.
    float* block = reinterpret_cast<float*>(Raw(a.codes)) + g * int64_t{pages.format().slots} * d;
    int32_t n_block = 0, page = 0;
    for (int32_t i = 0; i < a.from.len[g] && page < main; ++i) {
      if (marks != nullptr && marks[i] == 0) continue;
      std::copy_n(from.keys(g) + int64_t{i} * d, d, block + int64_t{n_block++} * d);
      if (n_block < pages.format().slots) continue;
      const Slot first = pages.Main(page);
      kernels_.encode_key_block(first.f->type, block, n_block, d, first.key(), first.channel_scales());
      page += n_block, n_block = 0;
      pages.NoteBounds(pages.Main(page - 1));
    }
  });
  return {};
}

int64_t CpuDevice::StoreScratchBytes(const CacheLayout& layout, int64_t, int64_t n_codes) const {
  const int64_t heads = layout.n_kv_heads, d = layout.head_dim;
  if (layout.directions >= 0)
    return 4 * (layout.layer_books ? 1 : heads) * Codes::Floats(n_codes, layout.head_dim);
  for (const PageFormat& f : layout.formats) {
    if (f.coding == EntryCoding::kKeyChannels) return 4 * heads * f.slots * d;
  }
  return 0;
}

Status CpuDevice::CodeLayer(Stream*, const CodeArgs& a) {
  const Layer from{a.from};
  const int32_t n_heads = a.from.n_kv_heads, d = a.from.head_dim;
  const bool shared = a.layout->layer_books;
  const HeadFormat& format = a.layout->heads[static_cast<size_t>(a.layer) * static_cast<size_t>(n_heads)];
  std::fill(a.n_directions, a.n_directions + 2 * n_heads, 0);
  pool_->ParallelFor(shared ? 1 : n_heads, [&](int64_t item, int) {
    const int32_t g = static_cast<int32_t>(item), end = shared ? n_heads : g + 1;
    const Codes out(reinterpret_cast<float*>(Raw(a.codes)) + g * Codes::Floats(a.n_codes, d), a.n_codes, d);
    float scratch[kMaxHeadSize];
    for (int which = 0; which < 2; ++which) {
      int32_t n = 0;
      for (int32_t h = g; h < end; ++h) {
        const uint8_t* marks = a.marks ? Raw(a.marks) + h * a.stride : nullptr;
        for (int32_t i = 0; i < a.from.len[h]; ++i) {
          if (marks != nullptr && marks[i] == 0) continue;
          const float* x = which == 0 ? StoredKey(kernels_, from, a.turning, false, h, i, scratch)
                                      : from.values(h) + int64_t{i} * d;
          std::copy_n(x, d, out.x + int64_t{n++} * d);
        }
      }
      a.n_directions[2 * g + which] = CodeVectors(
          kernels_, out.x, n, d, which == 0 ? format.theta_key : format.theta_value, 0,
          [](int32_t) -> const float* { return nullptr; }, out.codes[which], out.directions[which], out.space,
          format.magnitudes);
    }
  });
  return {};
}

int64_t CpuDevice::AppendScratchBytes(const CacheLayout& layout) const {
  return 4 * layout.n_kv_heads * HeadPages::SettleFloats(layout);
}

Status CpuDevice::AppendLayer(Stream*, const AppendArgs& a) {
  const Layer from{a.from};
  const int32_t n_heads = a.from.n_kv_heads, d = a.from.head_dim;
  const int64_t floats = HeadPages::SettleFloats(*a.cache->layout);
  const auto append = [&](int64_t item, int) {
    const int32_t g = static_cast<int32_t>(item);
    const HeadPages pages(kernels_, *a.cache, a.layer * n_heads + g);
    float scratch[kMaxHeadSize];
    for (int32_t i = a.first[g]; i < a.from.len[g]; ++i) {
      pages.Append(StoredKey(kernels_, from, a.turning, pages.rotated(), g, i, scratch),
                   from.values(g) + int64_t{i} * d, from.positions(g)[i]);
      pages.Settle(reinterpret_cast<float*>(Raw(a.scratch)) + g * floats);
    }
  };
  if (a.cache->layout->layer_books) {  // heads add to the same books, in order
    for (int32_t g = 0; g < n_heads; ++g) append(g, 0);
  } else {
    pool_->ParallelFor(n_heads, append);
  }
  return {};
}

Status CpuDevice::Rewind(Stream*, const RewindArgs& a) {
  const int32_t n_heads = a.cache->layout->n_kv_heads;
  pool_->ParallelFor(n_heads, [&](int64_t item, int) {
    const HeadPages pages(kernels_, *a.cache, a.layer * n_heads + static_cast<int32_t>(item));
    while (pages.ring_len() > 0 && pages.Ring(pages.ring_len() - 1).position() >= a.n_tokens)
      --pages.ring_len_ref();
    // From the highest slot down: what fills a gap has been looked at.
    for (int32_t slot = pages.main_len() - 1; slot >= 0; --slot) {
      if (pages.Main(slot).position() >= a.n_tokens) pages.Remove(slot);
    }
  });
  return {};
}

Status CpuDevice::KeepNewest(Stream*, const KeepNewestArgs& a) {
  const HeadPages head(kernels_, *a.cache, a.head);
  const PageFormat& f = head.format();
  uint8_t* base = Raw(a.cache->bases[head.head_format().main]);
  for (int32_t i = 0; i < a.n; ++i) {
    const Slot to{base + a.pages[i / f.slots] * f.bytes, &f, i % f.slots};
    head.CopyEntry(head.Main(head.main_len() - a.n + i), to);
    if (f.ranks) to.rank() = i;
    head.NoteBounds(to);
  }
  return {};
}

Status CpuDevice::StorePlain(Stream*, const StorePlainArgs& a) {
  float scratch[kMaxHeadSize];
  HeadPages(kernels_, *a.cache, a.head).WritePlain(a.format, a.pages, scratch);
  return {};
}

Status CpuDevice::Positions(Stream*, const PositionsArgs& a) {
  const HeadPages pages(kernels_, *a.cache, a.head);
  int32_t at = 0;
  pages.ForRuns([&](int32_t, int32_t n, const Slot& s) {
    std::copy_n(&s.position(), n, a.positions + at);
    at += n;
  });
  std::sort(a.positions, a.positions + at);
  return {};
}

}  // namespace kvc::cpu
