// The attention of a step over one segment of one head on the tensor cores, for up to eight query heads of
// the group: of pages of f16 or bf16 whose keys lie turned, of heads of 64 and of 128 numbers. attend_step.cu
// does it for all others.
//
// Entries go from the cache to registers and to the tensor cores, 16 bytes a lane: of keys, the order in
// which dimensions are summed is free as long as queries have the same; of values, the order of outputs. Each
// of a block's four warps has every fourth 16 entries and a softmax of its own, and waits for no other until
// all are joined in shared memory. Values of 16 entries are on their way while their keys are multiplied, the
// keys of the next 16 from there on, and pages are looked up before either, both of the first 16 where
// kernels begin early, while this one waits for the product in front. (Values one round ahead as well would
// be more registers than three blocks of a multiprocessor have.)
//
// Rows of the left factors are the eight query heads twice: the higher halves of their numbers, and the lower
// (split_tiles.h). What products with values give of 16 entries is added in f32, so that tensor cores, which
// cut sums off, add no more than those. Bytes: 4 D an entry, once. Products of 16 x 8 x 16 for 16 entries:
// D / 8 for logits, twice that with bf16, and D / 8 for values; 32 D bytes of shared memory, 48 D with bf16.
// A warp issues some 460 instructions for 16 entries of 128 numbers, 530 with bf16, and 380 for those of 64:
// by arithmetic a multiprocessor of an H200 has 1,780 and 890 while memory gives it the bytes, of an A100
// 2,440 and 1,220.
#include "cuda/append_newest.h"
#include "cuda/attend_halves.h"
#include "cuda/join_segments.h"
#include "cuda/launch.h"

namespace kvc::cuda {
namespace {

// Block (item, chunk of query heads).
template <typename Halves, int kDims>
__global__ void __launch_bounds__(kAttendThreads, kDims <= 64 ? 4 : 3) attend_step_mma(const StepParams p) {
  using Shared = HalvesShared<Halves, kDims>;
  KVC_SHARED(Shared, shared);
  LetNextBegin();
  ReadsBeforeItWaits(p.items + blockIdx.x);
  const Work work(p);
  const Pages pages(p.rows[work.item.row].read, work.item.head);
  const bool waited = WaitForEntries(p, work.item, pages, reinterpret_cast<float*>(shared));
  AttendHalves<true>(p, HalvesRun::Main(pages), waited, shared);
  JoinIfLast<kHeads, kDims>(p);
}

template <typename Halves, int kDims>
cudaError_t Attend(const StepParams& p, int32_t n_items, CudaStream& stream) {
  const int32_t group = p.n_heads / p.n_kv_heads;
  const dim3 grid(static_cast<unsigned>(n_items), static_cast<unsigned>((group + kHeads - 1) / kHeads));
  using Shared = HalvesShared<Halves, kDims>;
  return KVC_LAUNCH_EARLY((attend_step_mma<Halves, kDims>), grid, dim3(kAttendThreads), sizeof(Shared),
                          stream, p);
}

template <typename Halves>
cudaError_t AttendPages(const StepParams& p, int32_t n_items, CudaStream& stream) {
  return p.d == 64 ? Attend<Halves, 64>(p, n_items, stream) : Attend<Halves, 128>(p, n_items, stream);
}

}  // namespace

void AddAttendStepMmaKernels(KernelLoader* loader) {
  KVC_ADD_STEP(loader, (attend_step_mma<F16Halves, 64>), sizeof(HalvesShared<F16Halves, 64>));
  KVC_ADD_STEP(loader, (attend_step_mma<F16Halves, 128>), sizeof(HalvesShared<F16Halves, 128>));
  KVC_ADD_STEP(loader, (attend_step_mma<Bf16Halves, 64>), sizeof(HalvesShared<Bf16Halves, 64>));
  KVC_ADD_STEP(loader, (attend_step_mma<Bf16Halves, 128>), sizeof(HalvesShared<Bf16Halves, 128>));
}

bool IsForMma(const PageFormat& f) {
  return f.coding == EntryCoding::kVectors && (f.type == KvType::kF16 || f.type == KvType::kBf16) &&
         f.value_type() == f.type && (f.d == 64 || f.d == 128);
}

cudaError_t AttendSegmentsMma(const StepParams& p, const PageFormat& f, int32_t n_items, CudaStream& stream) {
  return f.type == KvType::kF16 ? AttendPages<F16Halves>(p, n_items, stream)
                                : AttendPages<Bf16Halves>(p, n_items, stream);
}

}  // namespace kvc::cuda
