// Entries of the cache as kernels reach them: where each part of an entry lies, reading a vector, writing
// one. The counterpart of lib/ops/cpu/pages.h; formats are those of lib/ops/page_format.h.
#pragma once
#include "cuda/finite_half.h"
#include "cuda/records.h"

namespace kvc::cuda {

struct Slot {
  uint8_t* page;
  const PageFormat* f;
  int32_t index;

  KVC_DEVICE uint8_t* key() const { return page + f->keys + f->key_bytes * index; }
  KVC_DEVICE uint8_t* value() const { return page + f->values + f->value_bytes * index; }
  KVC_DEVICE uint16_t* key_scales() const {
    return reinterpret_cast<uint16_t*>(page + f->key_scales + f->scale_bytes * index);
  }
  KVC_DEVICE uint16_t* value_scales() const {
    return reinterpret_cast<uint16_t*>(page + f->value_scales + f->scale_bytes * index);
  }
  KVC_DEVICE uint16_t* channel_scales() const {
    return reinterpret_cast<uint16_t*>(page + f->channel_scales);
  }
  KVC_DEVICE int32_t& position() const { return reinterpret_cast<int32_t*>(page + f->positions)[index]; }
  KVC_DEVICE int32_t& rank() const { return reinterpret_cast<int32_t*>(page + f->rank)[index]; }
  KVC_DEVICE uint32_t& seen() const { return reinterpret_cast<uint32_t*>(page + f->seen)[index]; }
  KVC_DEVICE float& aux(int a) const {
    return reinterpret_cast<float*>(page + f->aux)[static_cast<int64_t>(a) * f->slots + index];
  }
  KVC_DEVICE CodedVector& code(int which) const {
    return reinterpret_cast<CodedVector*>(page + (which == 0 ? f->keys : f->values))[index];
  }
};

// Code i of four in a byte: -3, -1, 1 or 3.
KVC_DEVICE int TwoBitCode(uint8_t byte, int32_t i) { return (byte >> (2 * i) & 3) * 2 - 3; }

// The entries of one head. Physical index: slot of main, or main length + slot of the ring.
class Pages {
 public:
  KVC_DEVICE Pages(const CacheLayer& layer, int32_t g)
      : layer_(&layer), h_(&layer.heads[g]), f_(&layer.formats[h_->main].f) {}

  KVC_DEVICE const PageFormat& format() const { return *f_; }
  KVC_DEVICE Head& head() const { return *h_; }
  KVC_DEVICE const Format& ring() const { return layer_->formats[h_->ring]; }  // where there is one
  KVC_DEVICE int32_t ring_slots() const { return h_->ring < 0 ? 0 : ring().f.slots; }
  KVC_DEVICE int32_t main_len() const { return h_->len; }
  KVC_DEVICE int32_t ring_len() const { return h_->ring < 0 ? 0 : h_->ring_len; }
  KVC_DEVICE int32_t len() const { return main_len() + ring_len(); }

  // Of main's arena.
  KVC_DEVICE uint8_t* Base() const { return layer_->formats[h_->main].base; }
  KVC_DEVICE Slot Main(int32_t slot) const {
    return {Base() + static_cast<int64_t>(h_->ids[slot / f_->slots]) * f_->bytes, f_, slot % f_->slots};
  }
  KVC_DEVICE Slot RingSlot(int32_t slot) const {
    const Format& r = ring();
    return {r.base + static_cast<int64_t>(h_->ring_page) * r.f.bytes, &r.f, slot};
  }
  KVC_DEVICE Slot Ring(int32_t i) const {
    return RingSlot((h_->ring_start + i) % ring_slots());
  }  // i-th oldest
  KVC_DEVICE Slot At(int32_t physical) const {
    return physical < main_len() ? Main(physical) : RingSlot(physical - main_len());
  }
  // Physical index of the i-th entry: main by slot, then the ring, oldest first.
  KVC_DEVICE int32_t Physical(int32_t i) const {
    const int32_t main = main_len();
    return i < main ? i : main + (h_->ring_start + i - main) % ring_slots();
  }

  KVC_DEVICE float* Direction(int which, int32_t i) const {
    const Format& f = layer_->formats[layer_->directions];
    return reinterpret_cast<float*>(f.base +
                                    static_cast<int64_t>(h_->books[which][i / f.f.slots]) * f.f.bytes) +
           static_cast<int64_t>(i % f.f.slots) * f.f.d;
  }
  KVC_DEVICE int32_t& book_len(int which) const { return layer_->heads[h_->owner].book_len[which]; }

  // Element j of the key (which 0) or value (1) of an entry.
  KVC_DEVICE float Element(const Slot& s, int which, int32_t j) const {
    if (s.f->coding == EntryCoding::kCodebook) {
      const CodedVector c = s.code(which);
      return c.magnitude * Direction(which, static_cast<int32_t>(c.ref))[j];
    }
    const uint8_t* codes = which == 0 ? s.key() : s.value();
    const KvType type = which == 0 ? s.f->type : s.f->value_type();
    switch (type) {
      case KvType::kF32:
        return reinterpret_cast<const float*>(codes)[j];
      case KvType::kF16:
        return HalfBits(reinterpret_cast<const uint16_t*>(codes)[j]);
      case KvType::kBf16:
        return BfBits(reinterpret_cast<const uint16_t*>(codes)[j]);
      case KvType::kInt8:
      case KvType::kInt4:
      case KvType::kInt2:
        break;  // codes
    }
    const bool channels = which == 0 && s.f->coding == EntryCoding::kKeyChannels;
    // Not (a ? b : c)[j / n]: GCC 12 with its sanitizer of undefined behaviour divides in one of the branches
    // only.
    const uint16_t* scales = channels ? s.channel_scales() : which == 0 ? s.key_scales() : s.value_scales();
    const uint16_t scale = scales[channels ? j : j / s.f->group];
    const int code = type == KvType::kInt8   ? static_cast<int8_t>(codes[j])
                     : type == KvType::kInt4 ? static_cast<int8_t>(codes[j / 2] << (j % 2 == 0 ? 4 : 0)) >> 4
                                             : TwoBitCode(codes[j / 4], j % 4);
    return static_cast<float>(code) * HalfBits(scale);
  }

 private:
  const CacheLayer* layer_;
  Head* h_;
  const PageFormat* f_;
};

// ---- writing; rules of methods.md 4.3 ----

KVC_DEVICE uint16_t FiniteHalf(float scale) { return ToHalfBits(scale < kMostF16 ? scale : kMostF16); }
KVC_DEVICE uint16_t GroupScale(float most, float q_max) {
  const uint16_t half = FiniteHalf(__fdiv_rn(most, q_max));
  return half == 0 ? static_cast<uint16_t>(0x3c00) : half;
}
KVC_DEVICE int CodeOf(float x, float scale, float q_max) {
  const float code = rintf(__fdiv_rn(x, scale));
  return static_cast<int>(code >= -q_max ? (code <= q_max ? code : q_max) : -q_max);  // a NaN becomes -q_max
}

// Of n values x(i).
template <typename X>
KVC_DEVICE float LargestSize(X x, int32_t n) {
  float most = 0;
  for (int32_t i = 0; i < n; ++i) {
    const float size = fabsf(x(i));
    most = size > most ? size : most;
  }
  return most;
}
// Their scale, into *scale.
template <typename X>
KVC_DEVICE float WriteScale(X x, int32_t n, float q_max, uint16_t* scale) {
  *scale = GroupScale(LargestSize(x, n), q_max);
  return HalfBits(*scale);
}
// Code j of a row; of two that share a byte the even one comes first.
KVC_DEVICE void PutCode(uint8_t* row, int32_t j, int code, bool wide) {
  if (wide) {
    row[j] = static_cast<uint8_t>(code);
  } else if (j % 2 == 0) {
    row[j / 2] = static_cast<uint8_t>(code & 0xf);
  } else {
    row[j / 2] = static_cast<uint8_t>(row[j / 2] | (code & 0xf) << 4);
  }
}

// A group [n] in two bits: lib/ops/ref/codec.cc has the rule, and its order of sums.
KVC_DEVICE void WriteTwoBits(const float* x, int32_t n, uint8_t* codes, uint16_t* scale) {
  const float most = LargestSize([&](int32_t i) { return x[i]; }, n);
  float least = 0, step = 0;
  for (int eighths = 8; eighths >= 4; --eighths) {
    const uint16_t half = FiniteHalf(__fmul_rn(most, __fdiv_rn(static_cast<float>(eighths), 24.0f)));
    const float one = HalfBits(half);
    float error = 0;
    for (int32_t i = 0; i < n; ++i) {
      const float size = fabsf(x[i]);
      const float off = __fsub_rn(size, size >= __fmul_rn(2, one) ? __fmul_rn(3, one) : one);
      error = __fadd_rn(error, __fmul_rn(off, off));
    }
    if (eighths == 8 || error < least) *scale = half, step = one, least = error;
  }
  for (int32_t i = 0; i < n; i += 4) {
    int byte = 0;
    for (int32_t j = 0; j < 4; ++j) {
      const bool outer = fabsf(x[i + j]) >= __fmul_rn(2, step);
      byte |= (x[i + j] < 0 ? (outer ? 0 : 1) : (outer ? 3 : 2)) << (2 * j);
    }
    codes[i / 4] = static_cast<uint8_t>(byte);
  }
}

// One vector [d] by the threads of a block, each some groups or elements; x is there for all of them.
KVC_DEVICE void WriteVector(const VectorFormat& f, const float* x, uint8_t* codes, uint16_t* scales,
                            int thread, int threads) {
  if (f.type == KvType::kF32 || f.type == KvType::kF16 || f.type == KvType::kBf16) {
    for (int32_t j = thread; j < f.d; j += threads) {
      if (f.type == KvType::kF32) reinterpret_cast<float*>(codes)[j] = x[j];
      if (f.type == KvType::kF16) reinterpret_cast<uint16_t*>(codes)[j] = ToFiniteHalfBits(x[j]);
      if (f.type == KvType::kBf16) reinterpret_cast<uint16_t*>(codes)[j] = ToBfBits(x[j]);
    }
    return;
  }
  const bool wide = f.type == KvType::kInt8;
  const float q_max = wide ? 127.0f : 7.0f;
  for (int32_t g = thread; g * f.group < f.d; g += threads) {
    if (f.type == KvType::kInt2) {
      WriteTwoBits(x + g * f.group, f.group, codes + g * f.group / 4, scales + g);
      continue;
    }
    const float scale = WriteScale([&](int32_t i) { return x[g * f.group + i]; }, f.group, q_max, scales + g);
    for (int32_t i = g * f.group; i < (g + 1) * f.group; ++i)
      PutCode(codes, i, CodeOf(x[i], scale, q_max), wide);
  }
}
KVC_DEVICE void WriteKey(const Slot& s, const float* x, int thread, int threads) {
  WriteVector(s.f->key_vectors(), x, s.key(), s.key_scales(), thread, threads);
}
KVC_DEVICE void WriteValue(const Slot& s, const float* x, int thread, int threads) {
  WriteVector(s.f->value_vectors(), x, s.value(), s.value_scales(), thread, threads);
}

// A page of n keys, of which x(i, c) are the numbers, each channel with a scale of its own.
template <typename X>
KVC_DEVICE void WriteKeyBlock(const Slot& first, X x, int32_t n, int thread, int threads) {
  const PageFormat& f = *first.f;
  const bool wide = f.type == KvType::kInt8;
  const float q_max = wide ? 127.0f : 7.0f;
  const int32_t per = wide ? 1 : 2;  // channels that share bytes
  for (int32_t c0 = thread * per; c0 < f.d; c0 += threads * per) {
    for (int32_t c = c0; c < c0 + per; ++c) {
      const float scale =
          WriteScale([&](int32_t i) { return x(i, c); }, n, q_max, first.channel_scales() + c);
      for (int32_t i = 0; i < n; ++i)
        PutCode(first.key() + i * f.key_bytes, c, CodeOf(x(i, c), scale, q_max), wide);
    }
  }
}

KVC_DEVICE void CopyMeta(const Slot& from, const Slot& to) {
  to.position() = from.position();
  if (to.f->ranks) to.rank() = from.rank();
  if (to.f->seen_masks) to.seen() = from.seen();
  for (int a = 0; a < to.f->n_aux; ++a) to.aux(a) = from.aux(a);
}

// Codes and all, between slots of one format, by the threads of a block or a warp.
KVC_DEVICE void CopyEntry(const Slot& from, const Slot& to, int thread, int threads) {
  for (int64_t i = thread; i < to.f->key_bytes; i += threads) to.key()[i] = from.key()[i];
  for (int64_t i = thread; i < to.f->value_bytes; i += threads) to.value()[i] = from.value()[i];
  for (int64_t i = thread; i < to.f->scale_bytes / 2; i += threads) {
    if (to.f->coding == EntryCoding::kVectors) to.key_scales()[i] = from.key_scales()[i];
    to.value_scales()[i] = from.value_scales()[i];
  }
  if (thread == 0) CopyMeta(from, to);
}

}  // namespace kvc::cuda
