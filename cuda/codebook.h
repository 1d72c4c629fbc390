// SpindleKV's codebooks (methods.md 2.16 d) by one block; as lib/ops/cpu/codebook.h, ties and order included.
#pragma once
#include "cuda/block.h"
#include "lib/ops/page_format.h"

namespace kvc::cuda {

// Scratch of coding n vectors of size d.
struct CodeRoom {
  float* units;                      // [n, d]
  int32_t *open, *degree, *members;  // [n]
  uint8_t* alive;                    // [n]
};
inline int64_t CodeRoomBytes(int64_t n, int32_t d) { return 4 * n * d + 12 * n + (n + 15) / 16 * 16; }
KVC_DEVICE CodeRoom CodeRoomAt(uint8_t* at, int64_t n, int32_t d) {
  CodeRoom r;
  r.units = reinterpret_cast<float*>(at);
  r.open = reinterpret_cast<int32_t*>(at + 4 * n * d);
  r.degree = r.open + n, r.members = r.degree + n;
  r.alive = reinterpret_cast<uint8_t*>(r.members + n);
  return r;
}

// The same sum whoever is first, and whatever it is for.
KVC_DEVICE float DotOf(const float* a, const float* b, int32_t d) {
  float part[4] = {0, 0, 0, 0};
  int32_t i = 0;
  for (; i + 4 <= d; i += 4) {
    for (int j = 0; j < 4; ++j) part[j] += a[i + j] * b[i + j];
  }
  for (; i < d; ++i) part[0] += a[i] * b[i];
  return (part[0] + part[2]) + (part[1] + part[3]);
}

KVC_DEVICE bool Adjacent(const CodeRoom& r, int32_t d, float theta, int32_t a, int32_t b) {
  return a == b || DotOf(r.units + static_cast<int64_t>(r.open[a]) * d,
                         r.units + static_cast<int64_t>(r.open[b]) * d, d) > theta;
}

constexpr uint8_t kMember = 2;  // CodeRoom::alive: of the direction that is being made

// Codes x [n, d]; existing(i): direction i of n_existing; added(i): where the i-th new one goes. Without
// magnitudes a direction has the length of the vector it came from, and so have all that refer to it. Returns
// how many came.
template <typename Existing, typename Added>
KVC_DEVICE int32_t BlockCodeVectors(const float* x, int32_t n, int32_t d, float theta, bool magnitudes,
                                    int32_t n_existing, Existing existing, CodedVector* codes, Added added,
                                    const CodeRoom& r, BlockSpace* s) {
  for (int32_t i = ThreadOfBlock(); i < n; i += BlockThreads()) {
    const float* v = x + static_cast<int64_t>(i) * d;
    float* unit = r.units + static_cast<int64_t>(i) * d;
    const float magnitude = __fsqrt_rn(DotOf(v, v, d));
    for (int32_t j = 0; j < d; ++j) unit[j] = magnitude > 0 ? __fdiv_rn(v[j], magnitude) : 0.0f;
    codes[i].ref = 0, codes[i].magnitude = magnitude;
    float best = theta;
    bool found = !(magnitude > 0);
    for (int32_t e = 0; magnitude > 0 && e < n_existing; ++e) {
      float cosine = DotOf(unit, existing(e), d);
      if (!magnitudes) {
        const float length = __fsqrt_rn(DotOf(existing(e), existing(e), d));
        cosine = length > 0 ? __fdiv_rn(cosine, length) : 0.0f;
      }
      if (cosine > best) best = cosine, codes[i].ref = static_cast<uint32_t>(e), found = true;
    }
    r.alive[i] = found ? 0 : 1;
  }
  __syncthreads();
  const int32_t n_open = BlockCompact(
      n, s, [&](int32_t i) { return r.alive[i] != 0; }, [&](int32_t i, int32_t place) { r.open[place] = i; });
  for (int32_t a = ThreadOfBlock(); a < n_open; a += BlockThreads()) r.alive[a] = 1;
  for (int32_t a = ThreadOfBlock(); a < n_open; a += BlockThreads()) {
    int32_t degree = 0;
    for (int32_t b = 0; b < n_open; ++b) degree += Adjacent(r, d, theta, a, b) ? 1 : 0;
    r.degree[a] = degree;
  }
  __syncthreads();
  int32_t n_added = 0;
  for (;; ++n_added) {
    uint64_t best = 0;  // degree, then the lower index
    for (int32_t a = ThreadOfBlock(); a < n_open; a += BlockThreads()) {
      if (r.alive[a] == 0) continue;
      const uint64_t key = static_cast<uint64_t>(static_cast<uint32_t>(r.degree[a])) << 32 |
                           (0xFFFFFFFFu - static_cast<uint32_t>(a));
      best = key > best ? key : best;
    }
    best = BlockMax(best, s->longs);
    if (best == 0) break;
    const int32_t centre = static_cast<int32_t>(0xFFFFFFFFu - static_cast<uint32_t>(best));
    for (int32_t b = ThreadOfBlock(); b < n_open; b += BlockThreads()) {
      if (r.alive[b] != 0 && Adjacent(r, d, theta, centre, b)) r.alive[b] = kMember;
    }
    __syncthreads();
    const int32_t n_members = BlockCompact(
        n_open, s, [&](int32_t b) { return r.alive[b] == kMember; },
        [&](int32_t b, int32_t place) { r.members[place] = b; });
    for (int32_t m = ThreadOfBlock(); m < n_members; m += BlockThreads()) {
      r.alive[r.members[m]] = 0;
      codes[r.open[r.members[m]]].ref = static_cast<uint32_t>(n_existing + n_added);
    }
    __syncthreads();
    for (int32_t b = ThreadOfBlock(); b < n_open; b += BlockThreads()) {
      for (int32_t m = 0; r.alive[b] != 0 && m < n_members; ++m)
        r.degree[b] -= Adjacent(r, d, theta, r.members[m], b) ? 1 : 0;
    }
    const float* unit = r.units + static_cast<int64_t>(r.open[centre]) * d;
    const float length = magnitudes ? 1.0f : codes[r.open[centre]].magnitude;
    for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads()) added(n_added)[j] = length * unit[j];
    __syncthreads();
  }
  for (int32_t i = ThreadOfBlock(); !magnitudes && i < n; i += BlockThreads())
    codes[i].magnitude = codes[i].magnitude > 0 ? 1.0f : 0.0f;
  __syncthreads();
  if (n == 0 || n_existing + n_added > 0) return n_added;
  for (int32_t j = ThreadOfBlock(); j < d; j += BlockThreads()) added(0)[j] = 0;
  __syncthreads();
  return 1;
}

}  // namespace kvc::cuda
