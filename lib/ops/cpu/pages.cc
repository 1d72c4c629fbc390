#include "lib/ops/cpu/pages.h"

#include "lib/ops/cpu/codebook.h"

namespace kvc::cpu {

namespace {

void Turn(const KernelTable& kernels, const Rope& rope, RopePairing pairing, int64_t position, int power,
          int32_t d, float* x, int32_t n) {
  float angles[kMaxHeadSize];
  rope.Angles(position, angles, angles + d / 2, power);
  for (int32_t i = 0; i < n; ++i) kernels.rope(x + int64_t{i} * d, angles, angles + d / 2, d, pairing);
}

}  // namespace

void Rotate(const KernelTable& kernels, const Rope& rope, RopePairing pairing, int64_t position, int32_t d,
            float* x, int32_t n) {
  Turn(kernels, rope, pairing, position, 1, d, x, n);
}

void Unrotate(const KernelTable& kernels, const Rope& rope, RopePairing pairing, int64_t position, int32_t d,
              float* x, int32_t n) {
  Turn(kernels, rope, pairing, -position, -1, d, x, n);
}

// ---- reading ----

// Keys (which 0) or values (1) of n adjacent entries as f32.
void HeadPages::Decode(const Slot& s, int32_t n, int which, float* x) const {
  if (s.f->coding == EntryCoding::kCodebook) {
    const int32_t d = s.f->d;
    const CodedVector* codes = which == 0 ? &s.key_code() : &s.value_code();
    for (int32_t i = 0; i < n; ++i) {
      const float* direction = Direction(which, static_cast<int32_t>(codes[i].ref));
      for (int32_t j = 0; j < d; ++j) x[int64_t{i} * d + j] = codes[i].magnitude * direction[j];
    }
  } else if (s.f->coding == EntryCoding::kKeyChannels && which == 0) {
    kernels_->decode_key_block(s.f->type, s.key(), s.channel_scales(), n, s.f->d, x);
  } else {
    kernels_->decode_vectors(which == 0 ? s.f->key_vectors() : s.f->value_vectors(),
                             which == 0 ? s.key() : s.value(), which == 0 ? s.key_scales() : s.value_scales(),
                             n, x);
  }
}

// ---- writing ----

void HeadPages::CopyMeta(const Slot& from, const Slot& to) const {
  to.position() = from.position();
  if (to.f->ranks) to.rank() = from.rank();
  if (to.f->seen_masks) to.seen() = from.seen();
  for (int a = 0; a < to.f->n_aux; ++a) to.aux(a) = from.aux(a);
}

void HeadPages::CopyEntry(const Slot& from, const Slot& to) const {
  std::memcpy(to.key(), from.key(), static_cast<size_t>(to.f->key_bytes));
  std::memcpy(to.value(), from.value(), static_cast<size_t>(to.f->value_bytes));
  if (to.f->scale_bytes > 0) {
    if (to.f->coding == EntryCoding::kVectors)
      std::memcpy(to.key_scales(), from.key_scales(), static_cast<size_t>(to.f->scale_bytes));
    std::memcpy(to.value_scales(), from.value_scales(), static_cast<size_t>(to.f->scale_bytes));
  }
  CopyMeta(from, to);
}

// Of a full page: the greatest and the least number of its keys in every channel.
void HeadPages::TakeBounds(Slot s) const {
  const int32_t d = s.f->d;
  float bounds[2 * kMaxHeadSize], key[kMaxHeadSize], *greatest = bounds, *least = bounds + d;
  for (s.index = 0; s.index < s.f->slots; ++s.index) {
    ReadKeys(s, 1, key);
    for (int32_t j = 0; j < d; ++j) {
      greatest[j] = s.index == 0 ? key[j] : std::max(greatest[j], key[j]);
      least[j] = s.index == 0 ? key[j] : std::min(least[j], key[j]);
    }
  }
  kernels_->encode_vectors(s.f->bound_format(), bounds, 2, s.page + s.f->bounds, nullptr);
}

void HeadPages::Append(const float* k, const float* v, int32_t position) const {
  const int32_t rank = len();
  const Slot s = has_ring() ? Ring(ring_len()) : Main(main_len());
  WriteKey(s, k);
  WriteValue(s, v);
  WriteMeta(s, position, rank, nullptr, 0, ~0u);
  ++(has_ring() ? ring_len_ref() : main_len_ref());
  if (!has_ring()) NoteBounds(s);
}

void HeadPages::PushMain(const float* k, const float* v, const Slot& meta) const {
  const Slot s = Main(main_len_ref()++);
  WriteKey(s, k);
  WriteValue(s, v);
  CopyMeta(meta, s);
  NoteBounds(s);
}

int64_t HeadPages::SettleFloats(const CacheLayout& layout) {
  int64_t floats = 2 * int64_t{layout.head_dim};
  for (const HeadFormat& h : layout.heads) {
    const int64_t n = h.settle, d = layout.head_dim;
    const EntryCoding coding = layout.formats[static_cast<size_t>(h.main)].coding;
    if (coding == EntryCoding::kKeyChannels) floats = std::max(floats, (n + 1) * d);
    if (coding == EntryCoding::kCodebook)
      floats = std::max(floats, 2 * n * d + 4 * n + CodeSpace::Floats(n, layout.head_dim));
  }
  return (floats + 15) / 16 * 16;
}

void HeadPages::Settle(float* scratch) const {
  if (!has_ring()) return;
  if (f_->coding == EntryCoding::kCodebook) {
    if (ring_len() == ring_slots()) SettleCodes(scratch);
  } else if (f_->coding == EntryCoding::kKeyChannels) {
    if (ring_len() == ring_slots()) SettleBlock(scratch);
  } else {
    while (ring_len() == ring_slots()) {
      const Slot s = Ring(0);
      ReadKeys(s, 1, scratch);
      ReadValues(s, 1, scratch + f_->d);
      PushMain(scratch, scratch + f_->d, s);
      ring_start() = (ring_start() + 1) % ring_slots();
      --ring_len_ref();
    }
  }
}

// Fills a page from the ring and codes its keys anew. After a rewind the page may begin with entries that are
// coded already: they are decoded first, since the new keys change the scales of their channels.
void HeadPages::SettleBlock(float* scratch) const {
  const int32_t d = f_->d, slots = f_->slots, old = main_len() % slots, n = slots - old;
  float *keys = scratch, *value = keys + int64_t{slots} * d;
  const Slot first = Main(main_len() - old);
  if (old > 0) ReadKeys(first, old, keys);
  for (int32_t i = 0; i < n; ++i) {
    const Slot from = Ring(i), to = Main(main_len() + i);
    ReadKeys(from, 1, keys + int64_t{old + i} * d);
    ReadValues(from, 1, value);
    WriteValue(to, value);
    CopyMeta(from, to);
  }
  kernels_->encode_key_block(f_->type, keys, slots, d, first.key(), first.channel_scales());
  main_len_ref() += n;
  NoteBounds(Main(main_len() - 1));
  ring_start() = (ring_start() + n) % ring_slots();
  ring_len_ref() -= n;
}

void HeadPages::AddDirection(int which, const float* x) const {
  std::copy_n(x, f_->d, MutableDirection(which, book_len(which)));
  ++book_len(which);
}

// Codes the oldest `settle` entries of a full ring.
void HeadPages::SettleCodes(float* scratch) const {
  const int32_t n = head_format().settle, d = f_->d;
  float *x = scratch, *added = x + int64_t{n} * d;
  CodedVector* codes[2] = {reinterpret_cast<CodedVector*>(added + int64_t{n} * d), nullptr};
  codes[1] = codes[0] + n;
  const CodeSpace space(reinterpret_cast<float*>(codes[1] + n), n, d);
  for (int which = 0; which < 2; ++which) {
    for (int32_t i = 0; i < n; ++i) Decode(Ring(i), 1, which, x + int64_t{i} * d);
    const int32_t n_added = CodeVectors(
        *kernels_, x, n, d, which == 0 ? head_format().theta_key : head_format().theta_value, book_len(which),
        [&](int32_t e) { return Direction(which, e); }, codes[which], added, space, head_format().magnitudes);
    for (int32_t e = 0; e < n_added; ++e) AddDirection(which, added + int64_t{e} * d);
  }
  for (int32_t i = 0; i < n; ++i) {
    const Slot from = Ring(i), to = Main(main_len_ref()++);
    to.key_code() = codes[0][i], to.value_code() = codes[1][i];
    CopyMeta(from, to);
  }
  ring_start() = (ring_start() + n) % ring_slots();
  ring_len_ref() -= n;
}

void HeadPages::Remove(int32_t physical) const {
  if (f_->ranks) {
    const int32_t gone = At(physical).rank();
    // Behind the newest nobody moves up: pages that forks share are not written.
    if (gone < len() - 1)
      ForRuns([&](int32_t, int32_t n, const Slot& s) {
        int32_t* ranks = &s.rank();
        for (int32_t i = 0; i < n; ++i) ranks[i] -= ranks[i] > gone;
      });
  }
  if (physical < main_len()) {  // the last one takes its place
    const Slot last = Main(main_len() - 1);
    if (physical != main_len() - 1) CopyEntry(last, Main(physical));
    const int32_t end = (physical / f_->slots + 1) * f_->slots;
    if (end < main_len_ref()--) NoteBounds(Main(end - 1));
    return;
  }
  // The gap in the ring is closed from the newer side.
  int32_t i = (physical - main_len() - ring_start() + ring_slots()) % ring_slots();
  for (; i + 1 < ring_len(); ++i) CopyEntry(Ring(i + 1), Ring(i));
  --ring_len_ref();
}

void HeadPages::WritePlain(int32_t format, const int32_t* pages, float* scratch) const {
  const PageFormat& f = c_->layout->formats[static_cast<size_t>(format)];
  for (int32_t i = 0; i < len(); ++i) {
    const Slot from = i < main_len() ? Main(i) : Ring(i - main_len()),
               to{Page(format, pages[i / f.slots]), &f, i % f.slots};
    ReadKeys(from, 1, scratch);
    WriteKey(to, scratch);
    ReadValues(from, 1, scratch);
    WriteValue(to, scratch);
    CopyMeta(from, to);
  }
}

void HeadPages::DropRotation(const Rope& rope, RopePairing pairing, float* scratch) const {
  if (!rotated()) return;
  ForRuns([&](int32_t, int32_t n, Slot s) {
    for (int32_t i = 0; i < n; ++i, ++s.index) {
      ReadKeys(s, 1, scratch);
      Unrotate(*kernels_, rope, pairing, s.position(), f_->d, scratch, 1);
      WriteKey(s, scratch);
    }
  });
  set_rotated(false);
}

}  // namespace kvc::cpu
