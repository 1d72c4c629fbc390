// The pages that a step reads of a head, where it reads a part of them: a block a head. Byte model: the
// bounds of every page, 1 / slots of its keys and values; the arithmetic of as many products.
#include "cuda/launch.h"
#include "cuda/step_params.h"

namespace kvc::cuda {
namespace {

// What no logit of the group's queries with a key of the page is above, reduced over the group. By a warp.
KVC_DEVICE float BoundOfPage(const PageFormat& f, const uint8_t* page, const float* q, int32_t group,
                             GroupKind by) {
  float bound = 0;
  for (int32_t h = 0; h < group; ++h) {
    float sum = 0;
    for (int32_t j = Lane(); j < f.d; j += kWarp) {
      const float x = q[h * f.d + j];
      sum += x * BoundOf(f, page, x > 0 ? j : f.d + j);
    }
    sum = WarpSum(sum);
    bound = h == 0 ? sum : by == GroupKind::kMax ? fmaxf(bound, sum) : bound + sum;
  }
  return bound;  // a mean is in the order of the sums
}

// Block (g, r).
__global__ void __launch_bounds__(kLineThreads) choose_pages(const StepParams p) {
  LetNextBegin();
  WaitForEarlier();
  __shared__ BlockSpace space;
  const int32_t g = static_cast<int32_t>(blockIdx.x), r = static_cast<int32_t>(blockIdx.y), d = p.d,
                group = p.n_heads / p.n_kv_heads;
  const RowParams& row = p.rows[r];
  const int32_t n = row.n_pages == nullptr ? 0 : row.n_pages[g];
  if (n == 0) return;
  const Pages pages(row.cache, g);
  const PageFormat& f = pages.format();
  const int32_t len = pages.main_len(), last = (len + f.slots - 1) / f.slots - 1;
  const int64_t at = (static_cast<int64_t>(r) * p.n_kv_heads + g) * p.choice.stride,
                head0 = static_cast<int64_t>(r) * p.n_heads + g * group;
  float* scores = p.choice.scores + at;
  uint8_t* marks = p.choice.marks + at;
  for (int32_t page = WarpOfBlock(); page < last; page += BlockThreads() / kWarp) {
    const float bound =
        BoundOfPage(f, pages.Main(page * f.slots).page, p.turned + head0 * d, group, row.reads_group);
    if (Lane() == 0) scores[page] = bound;
  }
  __syncthreads();
  BlockMarkTop([&](int32_t i) { return ScoreBits(scores[i]); }, last, n - 1, &space,
               [&](int32_t i, bool yes) { marks[i] = yes ? 1 : 0; });
  BlockCompact(
      last + 1, &space, [&](int32_t i) { return i == last || marks[i] != 0; },
      [&](int32_t i, int32_t place) {
        p.choice.pages[at + place] = i;
        p.choice.ids[at + place] = pages.head().ids[i];
      });
  if (p.logits == nullptr) return;  // what is not read has no attention
  for (int32_t h = 0; h < group; ++h) {
    float* line = p.logits + (head0 + h) * p.stride;
    for (int32_t i = ThreadOfBlock(); i < len; i += BlockThreads()) line[i] = -Infinity();
  }
}

}  // namespace

void AddReadPagesKernels(KernelLoader* loader) { KVC_ADD_STEP(loader, choose_pages, 0); }

cudaError_t ChoosePages(const StepParams& p, CudaStream& stream) {
  // A warp for eight pages, as far as there can be so many.
  return KVC_LAUNCH_EARLY(choose_pages, GridOfHeads(p), dim3(LineThreads(32 * int64_t{p.choice.stride})), 0,
                          stream, p);
}

}  // namespace kvc::cuda
