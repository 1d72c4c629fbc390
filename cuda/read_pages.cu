// The pages that a step reads of a head, where it reads a part of them: the bounds of all pages by blocks of
// 32 pages, then a block a head that chooses. Byte model: the bounds of every page, 1 / slots of its keys and
// values, and 4 bytes a page for each of four passes. Of 8,192 entries of 8 heads [128] in pages of 16 that
// is 2 MiB of bounds for 128 blocks; of 131,072, 32 MiB, and 3 operations a number and query head, which take
// a device of 132 multiprocessors about as long.
#include "cuda/launch.h"
#include "cuda/split_tiles.h"
#include "cuda/step_params.h"

namespace kvc::cuda {
namespace {

constexpr int kQueryHeads = 8;  // at a time
constexpr int kPagesOfWarp = 8;
constexpr int kPagesOfBlock = kBlock / kWarp * kPagesOfWarp;

// Two numbers of 16 bits and two more.
template <typename Halves>
KVC_DEVICE float4 Wide(const uint2& x) {
  return {Halves::First(x.x), Halves::Second(x.x), Halves::First(x.y), Halves::Second(x.y)};
}
// Numbers c .. c + 3 of the greatest (first 0) or the least (first D) keys of a page; zeros behind the last.
KVC_DEVICE float4 FourBounds(const PageFormat& f, const uint8_t* page, int32_t first, int32_t c) {
  if (f.d % 4 != 0) {
    const auto one = [&](int32_t j) { return j < f.d ? BoundOf(f, page, first + j) : 0.0f; };
    return {one(c), one(c + 1), one(c + 2), one(c + 3)};
  }
  if (c >= f.d) return {0, 0, 0, 0};
  const uint8_t* at = page + f.bounds;
  if (f.type != KvType::kF16 && f.type != KvType::kBf16)
    return *reinterpret_cast<const float4*>(at + 4 * (first + c));
  const uint2 x = *reinterpret_cast<const uint2*>(at + 2 * (first + c));
  return f.type == KvType::kF16 ? Wide<F16Halves>(x) : Wide<Bf16Halves>(x);
}
// The most that x, numbers of a query, give with keys between these.
KVC_DEVICE float MostOf(const float4& x, const float4& greatest, const float4& least) {
  const auto one = [](float a, float high, float low) { return a * (a > 0 ? high : low); };
  return (one(x.x, greatest.x, least.x) + one(x.y, greatest.y, least.y)) +
         (one(x.z, greatest.z, least.z) + one(x.w, greatest.w, least.w));
}

// The sums of `width` lanes behind each other, 16 or 32, of each of kQueryHeads numbers: a lane is left with
// one, and gives which. Every round sends the half that the other lane goes on with.
KVC_DEVICE int SumOnLanes(float (&x)[kQueryHeads], int width) {
  int mine = 0, apart = width / 2;
  KVC_UNROLL
  for (int n = kQueryHeads / 2; n > 0; n /= 2, apart /= 2) {
    const bool upper = (Lane() & apart) != 0;
    KVC_UNROLL
    for (int i = 0; i < n; ++i) {
      const float other = __shfl_xor_sync(kAllLanes, upper ? x[i] : x[i + n], apart);
      x[i] = (upper ? x[i + n] : x[i]) + other;
    }
    mine += upper ? n : 0;
  }
  for (; apart > 0; apart /= 2) x[0] += __shfl_xor_sync(kAllLanes, x[0], apart);
  return mine;
}

// Some query heads of a group, four dimensions in each of kFours times `width` lanes.
template <int kFours>
struct HeadQueries {
  int n, width;
  GroupKind by;
  float4 q[kQueryHeads][kFours];

  KVC_DEVICE HeadQueries(const float* from, int n_heads, int32_t d, int lanes, GroupKind group_by)
      : n(n_heads), width(lanes), by(group_by) {
    KVC_UNROLL
    for (int u = 0; u < kQueryHeads; ++u) {
      KVC_UNROLL
      for (int i = 0; i < kFours; ++i)
        q[u][i] = u < n ? FloatRows{from + u * d, d, 1, d}.Four(0, 4 * (Lane() % width + i * width))
                        : float4{0, 0, 0, 0};
    }
  }
  KVC_DEVICE float Join(float a, float b) const { return by == GroupKind::kMax ? fmaxf(a, b) : a + b; }
  // What no logit of these heads is above, by the numbers of a page that a lane has, reduced over the heads:
  // on all lanes of the page.
  KVC_DEVICE float Bound(const float4 (&greatest)[kFours], const float4 (&least)[kFours]) const {
    float sums[kQueryHeads];
    KVC_UNROLL
    for (int u = 0; u < kQueryHeads; ++u) {
      sums[u] = 0;
      if (u >= n) continue;
      KVC_UNROLL
      for (int i = 0; i < kFours; ++i) sums[u] += MostOf(q[u][i], greatest[i], least[i]);
    }
    const int head = SumOnLanes(sums, width);
    float bound = head < n ? sums[0] : by == GroupKind::kMax ? -Infinity() : 0.0f;
    for (int apart = width / 2; apart >= width / kQueryHeads; apart /= 2)
      bound = Join(bound, __shfl_xor_sync(kAllLanes, bound, apart));
    return bound;  // a mean is in the order of the sums
  }
};

// What is not read has no attention: of the part of a head that the block looks at.
KVC_DEVICE void ClearLogits(const StepParams& p, int64_t head0, int32_t group, int32_t first, int32_t end) {
  for (int32_t h = 0; h < group; ++h) {
    float* line = p.logits + (head0 + h) * p.stride;
    for (int32_t i = first + ThreadOfBlock(); i < end; i += BlockThreads()) line[i] = -Infinity();
  }
}

// Block (pages, g, r).
template <int kFours>
__global__ void __launch_bounds__(kBlock) bound_pages(const StepParams p) {
  constexpr int kAhead = 4 / kFours;
  LetNextBegin();
  WaitForEarlier();
  const int32_t g = static_cast<int32_t>(blockIdx.y), r = static_cast<int32_t>(blockIdx.z), d = p.d,
                group = p.n_heads / p.n_kv_heads, part = static_cast<int32_t>(blockIdx.x) * kPagesOfBlock;
  const RowParams& row = p.rows[r];
  if (row.n_pages == nullptr || row.n_pages[g] == 0) return;
  const Pages pages(row.cache, g);
  const PageFormat& f = pages.format();
  const int32_t len = pages.main_len(), last = (len + f.slots - 1) / f.slots - 1;
  const int64_t head0 = static_cast<int64_t>(r) * p.n_heads + g * group;
  if (p.logits != nullptr)
    ClearLogits(p, head0, group, part * f.slots, min((part + kPagesOfBlock) * f.slots, len));
  const int32_t begin = part + WarpOfBlock() * kPagesOfWarp, end = min(begin + kPagesOfWarp, last);
  if (begin >= end) return;
  float* scores = p.choice.scores + (static_cast<int64_t>(r) * p.n_kv_heads + g) * p.choice.stride;
  const int32_t id = pages.head().ids[min(begin + Lane() % kPagesOfWarp, end - 1)];
  const int width = d <= 2 * kWarp ? kWarp / 2 : kWarp, pages_at_once = kWarp / width;
  for (int32_t first = 0; first < group; first += kQueryHeads) {
    const HeadQueries<kFours> queries(p.turned + (head0 + first) * d, min(kQueryHeads, group - first), d,
                                      width, row.reads_group);
    for (int32_t base = begin; base < end; base += kAhead * pages_at_once) {
      float4 greatest[kAhead][kFours], least[kAhead][kFours];
      KVC_UNROLL
      for (int u = 0; u < kAhead; ++u) {
        const int32_t mine = base - begin + u * pages_at_once + Lane() / width;
        const uint8_t* page = pages.Base() + __shfl_sync(kAllLanes, id, mine % kPagesOfWarp) * f.bytes;
        KVC_UNROLL
        for (int i = 0; i < kFours; ++i) {
          const int32_t c = 4 * (Lane() % width + i * width);
          greatest[u][i] = FourBounds(f, page, 0, c), least[u][i] = FourBounds(f, page, f.d, c);
        }
      }
      KVC_UNROLL
      for (int u = 0; u < kAhead; ++u) {
        const float bound = queries.Bound(greatest[u], least[u]);
        const int32_t page = base + u * pages_at_once + Lane() / width;
        // The lane that writes is the one that reads for the heads behind these.
        if (Lane() % width == 0 && page < end)
          scores[page] = first == 0 ? bound : queries.Join(scores[page], bound);
      }
    }
  }
}

// Block (g, r), behind bound_pages.
__global__ void __launch_bounds__(kLineThreads) choose_pages(const StepParams p) {
  LetNextBegin();
  WaitForEarlier();
  __shared__ BlockSpace space;
  const int32_t g = static_cast<int32_t>(blockIdx.x), r = static_cast<int32_t>(blockIdx.y);
  const RowParams& row = p.rows[r];
  const int32_t n = row.n_pages == nullptr ? 0 : row.n_pages[g];
  if (n == 0) return;
  const Pages pages(row.cache, g);
  const int32_t slots = pages.format().slots, last = (pages.main_len() + slots - 1) / slots - 1;
  const int64_t at = (static_cast<int64_t>(r) * p.n_kv_heads + g) * p.choice.stride;
  const float* scores = p.choice.scores + at;
  uint8_t* marks = p.choice.marks + at;
  BlockMarkTop([&](int32_t i) { return ScoreBits(scores[i]); }, last, n - 1, &space,
               [&](int32_t i, bool yes) { marks[i] = yes ? 1 : 0; });
  BlockCompact(
      last + 1, &space, [&](int32_t i) { return i == last || marks[i] != 0; },
      [&](int32_t i, int32_t place) {
        p.choice.pages[at + place] = i;
        p.choice.ids[at + place] = pages.head().ids[i];
      });
}

}  // namespace

void AddReadPagesKernels(KernelLoader* loader) {
  KVC_ADD_STEP(loader, bound_pages<1>, 0);
  KVC_ADD_STEP(loader, bound_pages<2>, 0);
  KVC_ADD_STEP(loader, choose_pages, 0);
}

cudaError_t ChoosePages(const StepParams& p, CudaStream& stream) {
  const int64_t parts = (p.choice.stride + kPagesOfBlock - 1) / kPagesOfBlock;
  const dim3 grid(static_cast<unsigned>(parts), static_cast<unsigned>(p.n_kv_heads),
                  static_cast<unsigned>(p.n_rows));
  const cudaError_t error = p.d <= 4 * kWarp
                                ? KVC_LAUNCH_EARLY(bound_pages<1>, grid, dim3(kBlock), 0, stream, p)
                                : KVC_LAUNCH_EARLY(bound_pages<2>, grid, dim3(kBlock), 0, stream, p);
  if (error != cudaSuccess) return error;
  return KVC_LAUNCH_EARLY(choose_pages, GridOfHeads(p), dim3(LineThreads(p.choice.stride)), 0, stream, p);
}

}  // namespace kvc::cuda
