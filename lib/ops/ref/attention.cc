// Attention in its four uses: whole prompt, probabilities of some rows, column sums, cached pages.
#include <algorithm>
#include <cmath>

#include "lib/base/half.h"
#include "lib/ops/ref/ref_kernels.h"

namespace kvc::ref {
namespace {

constexpr int32_t kTile = 64;  // keys whose logits are held at a time, on the stack

bool IsSeen(const uint32_t* seen, uint32_t bit, int32_t t) { return seen == nullptr || (seen[t] & bit) != 0; }

// Keys or values of a tile, as they are stored.
struct Stored {
  KvType type;
  const void* base;
  const uint16_t* scales;
  int32_t group, d;
};
Stored KeysOf(const AttendTileArgs& a) { return {a.type, a.k, a.k_scales, a.group, a.d}; }
Stored ValuesOf(const AttendTileArgs& a) {
  return {a.group > 0 ? a.value_type : a.type, a.v, a.v_scales, a.group, a.d};
}

// A vector as f32: where it lies, or decoded.
const float* VectorOf(const Stored& s, int64_t index, float* decoded) {
  if (s.type == KvType::kF32) return static_cast<const float*>(s.base) + index * s.d;
  const uint16_t* scales = s.group > 0 ? s.scales + index * (s.d / s.group) : nullptr;
  DecodeVectors({s.type, s.d, s.group}, static_cast<const uint8_t*>(s.base) + index * CodeBytes(s.type, s.d),
                scales, 1, decoded);
  return decoded;
}

// Dot product of q with a stored vector; of one that is decoded a piece at a time.
float DotStored(const float* q, const Stored& s, int64_t index) {
  float decoded[kMaxHeadSize], sum = 0;
  const float* x = VectorOf(s, index, decoded);
  if (x != decoded) return Dot(q, x, s.d);
  for (int32_t begin = 0; begin < s.d; begin += 64)
    sum += Dot(q + begin, x + begin, std::min(s.d - begin, 64));
  return sum;
}

// acc[0, d) = acc * keep + p * a stored vector
void BlendStored(float keep, float p, const Stored& s, int64_t index, float* acc) {
  float decoded[kMaxHeadSize];
  const float* x = VectorOf(s, index, decoded);
  for (int32_t j = 0; j < s.d; ++j) acc[j] = acc[j] * keep + p * x[j];
}

// Adds entries [begin, end), at most kTile, to the running softmax of query head h.
void AttendPart(const AttendTileArgs& a, int32_t h, int32_t begin, int32_t end) {
  float z[kTile], top = -INFINITY;
  for (int32_t t = begin; t < end; ++t) {
    const bool seen = a.visible == nullptr || a.visible[h * a.visible_stride + t] != 0;
    z[t - begin] =
        seen ? Capped(a.scale * DotStored(a.q + int64_t{h} * a.d, KeysOf(a), t), a.cap) : -INFINITY;
    if (t == 0) z[0] += a.first_logit;
    if (z[t - begin] > top) top = z[t - begin];
    if (a.logits != nullptr) a.logits[h * a.logits_stride + t] = z[t - begin];
  }
  if (top == -INFINITY) return;
  const float m = top > a.m[h] ? top : a.m[h];
  float keep = std::exp(a.m[h] - m);
  a.m[h] = m;
  a.l[h] *= keep;
  for (int32_t t = begin; t < end; ++t) {
    const float p = std::exp(z[t - begin] - m);
    a.l[h] += p;
    if (a.acc != nullptr) BlendStored(keep, p, ValuesOf(a), t, a.acc + int64_t{h} * a.d);
    keep = 1;
  }
}

}  // namespace

void AttendTile(const AttendTileArgs& a) {
  for (int32_t h = 0; h < a.g; ++h) {
    for (int32_t t = 0; t < a.n; t += kTile) AttendPart(a, h, t, a.n - t < kTile ? a.n : t + kTile);
  }
}

namespace {

void AttendRows(const PrefillAttentionArgs& a) {
  for (int32_t i = 0; i < a.n_q; ++i) {
    const int32_t end = a.first_visible + i + 1;
    const int32_t begin = a.window > 0 && end > a.window ? end - a.window : 0;
    float* out = a.out != nullptr ? a.out + i * a.out_stride : nullptr;
    // A sink has been seen before the first key.
    float m = a.sink != nullptr ? *a.sink : -INFINITY, l = a.sink != nullptr ? 1 : 0;
    for (int32_t j = 0; j < a.d && out != nullptr; ++j) out[j] = 0;
    AttendTileArgs tile{};
    tile.q = a.q + i * a.q_stride;
    tile.m = &m, tile.l = &l, tile.acc = out;
    tile.type = KvType::kF32;
    tile.g = 1, tile.d = a.d;
    tile.scale = a.scale, tile.cap = a.cap;
    for (int32_t key = begin; key < end; key += tile.n) {
      uint8_t visible[kTile];
      tile.n = std::min(kTile, end - key);
      tile.k = a.k + int64_t{key} * a.d;
      tile.v = a.v + int64_t{key} * a.d;
      for (int32_t t = 0; t < tile.n && a.seen != nullptr; ++t)
        visible[t] = IsSeen(a.seen, a.seen_bit, key + t) ? 1 : 0;
      tile.visible = a.seen != nullptr ? visible : nullptr;
      tile.first_logit = key == 0 ? a.first_logit : 0;
      tile.logits = key < a.n_kept ? a.kept + i * a.kept_stride + key : nullptr;
      AttendTile(tile);
    }
    for (int32_t j = 0; j < a.d && out != nullptr; ++j) out[j] /= l;
    if (a.lse != nullptr) a.lse[i] = m + std::log(l);
  }
}

// Softmax of x and one more logit.
void SoftmaxBeside(float sink, float* x, int32_t n) {
  float top = sink;
  for (int32_t i = 0; i < n; ++i) top = x[i] > top ? x[i] : top;
  float sum = std::exp(sink - top);
  for (int32_t i = 0; i < n; ++i) sum += x[i] = std::exp(x[i] - top);
  for (int32_t i = 0; i < n; ++i) x[i] /= sum;
}

}  // namespace

void PrefillAttention(const PrefillAttentionArgs& a) {
  for (int32_t h = 0; h < a.n_heads; ++h) AttendRows(HeadOf(a, h));
}

void ScoreRows(const ScoreRowsArgs& a) {
  for (int32_t i = 0; i < a.n_q; ++i) {
    const float gain = a.gain != nullptr ? a.gain[i] : 1;
    float* p = a.p + i * a.p_stride;
    for (int32_t t = 0; t < a.visible[i]; ++t)
      p[t] = IsSeen(a.seen, a.seen_bit, t)
                 ? gain * Capped(a.scale * Dot(a.q + i * a.q_stride, a.k + int64_t{t} * a.d, a.d), a.cap)
                 : -INFINITY;
    p[0] += a.first_logit;
    a.sink != nullptr ? SoftmaxBeside(gain * *a.sink, p, a.visible[i]) : Softmax(p, a.visible[i]);
    for (int32_t t = a.visible[i]; t < a.n_keys; ++t) p[t] = 0;
  }
}

void ColumnSums(const ColumnSumsArgs& a) {
  for (int32_t t = a.key_begin; t < a.key_end; ++t) {
    float sum = 0;
    if (!IsSeen(a.seen, a.seen_bit, t)) continue;
    for (int32_t i = t > a.first_visible ? t - a.first_visible : 0; i < a.n_q; ++i) {
      sum += std::exp(Capped(a.scale * Dot(a.q + i * a.q_stride, a.k + int64_t{t} * a.d, a.d), a.cap) +
                      (t == 0 ? a.first_logit : 0) - a.lse_factor * a.lse[i]);
    }
    a.sums[t] += a.weight * sum;
  }
}

void ColumnMaxima(const ColumnSumsArgs& a) {
  for (int32_t t = a.key_begin; t < a.key_end; ++t) {
    if (!IsSeen(a.seen, a.seen_bit, t)) continue;
    for (int32_t i = t > a.first_visible ? t - a.first_visible : 0; i < a.n_q; ++i) {
      const float z = Capped(a.scale * Dot(a.q + i * a.q_stride, a.k + int64_t{t} * a.d, a.d), a.cap) +
                      (t == 0 ? a.first_logit : 0);
      a.sums[t] = std::max(a.sums[t], a.weight * std::exp(z - a.lse_factor * a.lse[i]));
    }
  }
}

}  // namespace kvc::ref
