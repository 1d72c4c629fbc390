// Products with one row of x: the steps of a single session, which read every weight once and do nothing else
// that takes time. Bytes: rows * cols weights; x, and what its norm has, once a block.
//
// There is one block on every multiprocessor, whatever the matrix: x lies in its shared memory, where all
// warps read it, and rows are dealt out to the blocks in turns, so that each has as many as the others.
// Registers and threads are half of a multiprocessor's: the block of the next product begins beside this one,
// fetches its first weights, which nobody writes, asks for the next ones into the second cache, so that
// memory does not rest while a short kernel in front of it works, and waits then (gpu.h).
//
// A warp works on a few rows at a time and keeps eight vectors of 16 bytes a lane on their way: where one has
// been multiplied the next is asked for, of the next rows too, before the sums of these are added up. 16
// warps (14 of gate and up and of f32, 12 of codes of eight bits, 10 of four: what registers allow) are 64
// (56, 48, 40) KiB; the memory of an H200 wants some 28 KiB of a multiprocessor at a time, which is what
// seven of them keep on their way. Rows beside each other read x once: for 16 bytes of a row that is 16 bytes
// of x with weights of 16 bits, 32 (28) of its digits with codes of eight (four) bits; shared memory gives
// 128 bytes a cycle where memory gives 19 of weights.
//
// Rows go to warps in rounds, and where fewer than seven warps of a multiprocessor have a last one, memory
// waits for them: WarpsOfRows takes fewer warps then, if their rounds come out better. docs/cuda.md has a
// table of them.
//
// The norm in front of a product and the activation behind two of them ride along: every block makes the norm
// of x while its first weights are on their way, and a warp that has both rows of gate and up writes what
// becomes of them. The norm's own weights are fetched as those are; x comes by asynchronous copies, all of it
// in one turn of the second cache (of codes without a norm, four numbers of every thread four times at once).
// Sums over weights of 16 bits, and of norms, are in the order of gemv.cu and norm_rows.cu: a row gives the
// same bits alone and beside others. Codes meet whole numbers here, and numbers of f32 there.
#include <algorithm>

#include "cuda/digits.h"
#include "cuda/launch.h"
#include "cuda/network.h"
#include "cuda/vector_products.h"

namespace kvc::cuda {
namespace {

constexpr int32_t kMostShared = 96 << 10;  // of x: devices of every capability have it

// Rows of a warp, vectors of each on their way.
template <WeightType T>
struct FormOf {
  static constexpr int kRows = HasFourBits(T) ? 4 : 2;
  static constexpr int kAhead = 8 / kRows;
};
// Warps of a block at most: as many as registers allow.
template <WeightType T, bool kGated>
constexpr int kMostWarps = HasFourBits(T)                     ? 10
                           : IsScaled(T)                      ? 12
                           : T == WeightType::kF16 && !kGated ? 16
                                                              : 14;
constexpr int32_t kLeastWarps = 9;
// Of a multiprocessor: what they have on their way is what memory wants.
constexpr int32_t kEnoughWarps = 7;

// x in the order in which lanes read it: of 32 vectors' columns the first 16 bytes of every lane, then the
// next ones. PiecesOf: of 16 bytes, of a vector's columns: four numbers each, or digits (digits.h).
constexpr int PiecesOf(WeightType type) {
  return IsScaled(type) ? DigitPieces(VectorColumns(type)) : VectorColumns(type) / 4;
}
template <WeightType T>
KVC_DEVICE int32_t PlaceOf(int32_t vector, int32_t piece) {
  return (vector / kWarp * PiecesOf(T) + piece) * kWarp + vector % kWarp;
}

// Where a warp is in its rows: R of one part, or R / 2 of either of two.
struct Cursor {
  int32_t unit, part, row, n;  // row: of the part, of n rows
  int32_t at;                  // vectors of a row that lie behind
};

template <WeightType T, bool kGated>
class RowProduct {
 public:
  static constexpr int kRows = FormOf<T>::kRows, kAhead = FormOf<T>::kAhead, kColumns = VectorOf<T>::kColumns;
  static constexpr int kOwn = kGated ? kRows / 2 : kRows;  // rows of a part

  KVC_DEVICE RowProduct(const OneRow& o, const uint4* x) : o_(o), p_(o.product), x_(x) {
    vectors_ = p_.cols / kColumns;
  }

  KVC_DEVICE Cursor Begin(int32_t unit) const {
    Cursor c{unit, 0, 0, 0, 0};
    while (!kGated && c.part + 1 < p_.n_parts && unit >= p_.parts[c.part + 1].first_block) ++c.part;
    const Part& w = p_.parts[c.part];
    c.row = (unit - w.first_block) * kOwn, c.n = min(kOwn, w.rows - c.row);
    return c;
  }
  KVC_DEVICE bool IsLast(const Cursor& c) const { return c.at + kAhead * kWarp >= vectors_; }
  // The next columns, or the next rows.
  KVC_DEVICE Cursor Next(Cursor c, int32_t step) const {
    if (IsLast(c)) return c.unit + step < o_.n_units ? Begin(c.unit + step) : Cursor{o_.n_units, 0, 0, 0, 0};
    c.at += kAhead * kWarp;
    return c;
  }
  KVC_DEVICE bool Has(const Cursor& c) const { return c.unit < o_.n_units; }

  KVC_DEVICE void Fetch(const Cursor& c) {
    KVC_UNROLL
    for (int u = 0; u < kAhead; ++u) FetchVectors(c, u);
  }
  // What the warp reads behind what it fetches of its first unit: as much as OneRow::ahead says, of as many
  // units as lanes have a row of each.
  KVC_DEVICE void Prefetch(int32_t first, int32_t step) const {
    const int32_t i = Lane() / kRows, unit = first + i * step;
    if (unit >= o_.n_units) return;
    const int32_t fetched = min(kAhead * kWarp, vectors_), begin = i == 0 ? fetched : 0,
                  before = i * vectors_ + begin - fetched,  // of a row of each unit
        n = min(vectors_ - begin, o_.ahead / kRows - before), row = Lane() % kOwn;
    const Cursor c = Begin(unit);
    if (n > 0 && row < c.n)
      PrefetchRow(kGated ? Lane() % kRows / kOwn : c.part,
                  static_cast<int64_t>(c.row + row) * vectors_ + begin, n);
  }
  // What was fetched at c meets x; what is at `next` takes its place.
  KVC_DEVICE void MultiplyAndFetch(const Cursor& c, const Cursor& next) {
    KVC_UNROLL
    for (int u = 0; u < kAhead; ++u) {
      const int32_t first = c.at + u * kWarp;
      if (first + Lane() < vectors_) AddVectors(u, x_ + first * PiecesOf(T) + Lane());
      if (Has(next)) FetchVectors(next, u);
    }
  }
  // The results of the rows at c.
  KVC_DEVICE void Finish(const Cursor& c) {
    KVC_UNROLL
    for (int r = 0; r < kRows; ++r) sum_[r] = WarpSum(sum_[r]);
    KVC_UNROLL
    for (int r = 0; r < kOwn; ++r) {
      if (Lane() != r || r >= c.n) continue;
      if constexpr (kGated) {
        const Part &gate = p_.parts[0], &up = p_.parts[1];
        const float g = OutputOf(p_, gate, 0, c.row + r, sum_[r]),
                    u = OutputOf(p_, up, 0, c.row + r, sum_[kOwn + r]);
        gate.y[c.row + r] = Activated(o_.activation, g, u);
      } else {
        const Part& w = p_.parts[c.part];
        StoreOutput(p_, w, 0, w.first + c.row + r, 0, sum_[r]);
      }
    }
    KVC_UNROLL
    for (int r = 0; r < kRows; ++r) sum_[r] = 0;
  }

 private:
  // n vectors from `at` on, and of what their groups have the whole 16 bytes.
  KVC_DEVICE void PrefetchRow(int part, int64_t at, int32_t n) const {
    const Part& w = p_.parts[part];
    PrefetchBytes(reinterpret_cast<const uint4*>(w.data) + at, n * static_cast<int32_t>(sizeof(uint4)));
    if (!IsScaled(T)) return;
    const int shift = o_.scale_shift[part];
    const auto groups = reinterpret_cast<uintptr_t>(w.scales);
    const uintptr_t first = groups + static_cast<uintptr_t>(at >> shift) * sizeof(GroupBits<T>),
                    end = groups + static_cast<uintptr_t>(((at + n - 1) >> shift) + 1) * sizeof(GroupBits<T>),
                    from = (first + 15) / 16 * 16, to = end / 16 * 16;
    if (from < to) PrefetchBytes(reinterpret_cast<const void*>(from), static_cast<int32_t>(to - from));
  }
  KVC_DEVICE void FetchVectors(const Cursor& c, int u) {
    const int32_t vector = c.at + u * kWarp + Lane();
    if (vector >= vectors_) return;
    KVC_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const int part = kGated ? r / kOwn : c.part;
      const Part& w = p_.parts[part];
      const int64_t at = static_cast<int64_t>(c.row + min(r % kOwn, c.n - 1)) * vectors_ + vector;
      v_[u][r] = __ldcs(reinterpret_cast<const uint4*>(w.data) + at);
      if (IsScaled(T)) group_[u][r] = BitsOfGroup<T>(w, at >> o_.scale_shift[part]);
    }
  }
  KVC_DEVICE void AddVectors(int u, const uint4* x) {
    if constexpr (IsScaled(T)) {
      float part[kRows], all = 0;
      if constexpr (HasFourBits(T)) {
        MultiplyHalfByteDigits(v_[u], x, kWarp, part, &all);
      } else {
        MultiplyByteDigits(v_[u], x, kWarp, part);
      }
      KVC_UNROLL
      for (int r = 0; r < kRows; ++r) sum_[r] += SumOfGroup<T>(group_[u][r], part[r], all);
    } else {
      float part[kRows][1], all[1];
      MultiplyVectors<T>(
          v_[u], [x](int, int i) { return reinterpret_cast<const float4*>(x)[i * kWarp]; }, part, all);
      KVC_UNROLL
      for (int r = 0; r < kRows; ++r) sum_[r] += part[r][0];
    }
  }

  const OneRow& o_;
  const Product& p_;
  const uint4* x_;
  int32_t vectors_;
  uint4 v_[kAhead][kRows];
  GroupBits<T> group_[kAhead][kRows];
  float sum_[kRows] = {};
};

// x, or its norm as norm_rows makes it, on its way into shared memory.
template <WeightType T>
class RowOfX {
 public:
  KVC_DEVICE RowOfX(const OneRow& o, uint4* x)
      : o_(o),
        from_(reinterpret_cast<const float4*>(o.product.x)),
        weight_(reinterpret_cast<const float4*>(o.norm)),
        x_(x),
        n_(o.product.cols / 4) {}

  // Of the norm's weights, which nobody writes: before what is in front of the kernel has ended.
  KVC_DEVICE void FetchWeights() const {
    if (o_.stages) Copy(weight_, Stage() + n_);
  }
  // One turn of the second cache, whatever comes of x. shared: as BlockSum's.
  KVC_DEVICE void Load(float* shared) const {
    if constexpr (!IsScaled(T)) {
      if (weight_ == nullptr) {
        for (int32_t i = ThreadOfBlock(); i < n_; i += BlockThreads())
          CopyLater<16>(x_ + PlaceOf<T>(i / kFours, i % kFours), from_ + i);
        return AwaitCopies();
      }
    }
    if (o_.stages) {
      Copy(from_, Stage());
      AwaitCopies();
      Store(Stage(), Stage() + n_, shared);
    } else {
      Store(from_, weight_, shared);
    }
    __syncthreads();
  }

 private:
  static constexpr int kFours = VectorOf<T>::kColumns / 4;
  static constexpr int kAtOnce = IsScaled(T) ? 4 : 1;  // fours of x that a thread has asked for

  // x and the norm's weights as they are, behind what is made of them.
  KVC_DEVICE float4* Stage() const {
    return reinterpret_cast<float4*>(x_ + PlaceOf<T>((n_ / kFours + kWarp - 1) / kWarp * kWarp, 0));
  }
  KVC_DEVICE void Copy(const float4* from, float4* to) const {
    for (int32_t i = ThreadOfBlock(); i < n_; i += BlockThreads()) CopyLater<16>(to + i, from + i);
  }
  KVC_DEVICE static void AwaitCopies() {
    CloseCopies();
    WaitForCopies<0>();
    __syncthreads();
  }
  KVC_DEVICE void Store(const float4* from, const float4* weight, float* shared) const {
    const float factor = weight_ == nullptr ? 1.0f
                                            : NormFactor(reinterpret_cast<const float*>(from),
                                                         o_.product.cols, 0, o_.eps, shared);
    // Whole warps: lanes hand each other what they found. Those behind the end have the last vector's.
    for (int32_t begin = WarpOfBlock() * kWarp; begin < n_; begin += kAtOnce * BlockThreads()) {
      float4 a[kAtOnce];
      KVC_UNROLL
      for (int k = 0; k < kAtOnce; ++k) a[k] = from[At(begin + k * BlockThreads() + Lane())];
      KVC_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        const int32_t first = begin + k * BlockThreads(), i = first + Lane(), at = At(i);
        if (first >= n_) break;
        if (weight_ != nullptr) {
          const float4 w = weight[at];
          a[k] = {a[k].x * factor * w.x, a[k].y * factor * w.y, a[k].z * factor * w.z, a[k].w * factor * w.w};
        }
        if constexpr (IsScaled(T)) {
          StoreDigits<kFours>(a[k], i < n_, x_ + PlaceOf<T>(at / kFours, 0), kWarp);
        } else {
          if (i < n_) reinterpret_cast<float4*>(x_)[PlaceOf<T>(i / kFours, i % kFours)] = a[k];
        }
      }
    }
  }
  KVC_DEVICE int32_t At(int32_t i) const { return i < n_ ? i : n_ - kFours + i % kFours; }

  const OneRow& o_;
  const float4 *from_, *weight_;
  uint4* x_;
  int32_t n_;
};

template <WeightType T, bool kGated>
__global__ void __launch_bounds__(kMostWarps<T, kGated>* kWarp, 2) gemv_row(const OneRow o) {
  KVC_SHARED(uint4, x);
  __shared__ float sums[kMostWarps<T, kGated>];
  LetNextBegin();
  const int32_t step = static_cast<int32_t>(gridDim.x) * (BlockThreads() / kWarp),
                first = WarpOfBlock() * static_cast<int32_t>(gridDim.x) + static_cast<int32_t>(blockIdx.x);
  RowProduct<T, kGated> product(o, x);
  Cursor now{o.n_units, 0, 0, 0, 0};
  if (first < o.n_units) now = product.Begin(first), product.Fetch(now), product.Prefetch(first, step);
  const RowOfX<T> row(o, x);
  row.FetchWeights();
  WaitForEarlier();
  row.Load(sums);
  while (product.Has(now)) {
    const Cursor next = product.Next(now, step);
    product.MultiplyAndFetch(now, next);
    if (product.IsLast(now)) product.Finish(now);
    now = next;
  }
}

// Of x with so many columns.
int32_t SharedBytes(WeightType type, int32_t cols) {
  const int32_t columns = kWarp * VectorColumns(type), vectors = (cols + columns - 1) / columns * kWarp;
  return vectors * PiecesOf(type) * static_cast<int32_t>(sizeof(uint4));
}

// With what a norm needs of them beside.
int32_t StagedBytes(WeightType type, int32_t cols) {
  return SharedBytes(type, cols) + 2 * cols * static_cast<int32_t>(sizeof(float));
}

template <WeightType T>
void AddForms(KernelLoader* loader) {
  KVC_ADD_STEP(loader, (gemv_row<T, false>), kMostShared);
  KVC_ADD_STEP(loader, (gemv_row<T, true>), kMostShared);
}

template <WeightType T, bool kGated>
cudaError_t LaunchUnits(OneRow o, CudaStream& stream) {
  const int32_t blocks = std::min(o.n_units, stream.traits().multiprocessors),
                warps = WarpsOfRows(o.n_units, blocks, kMostWarps<T, kGated>);
  const LaunchTraits& traits = stream.traits();
  o.ahead =
      traits.early ? traits.tuning.weights_ahead * 1024 / static_cast<int32_t>(sizeof(uint4)) / warps : 0;
  return KVC_LAUNCH_EARLY(
      (gemv_row<T, kGated>), dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(warps * kWarp)),
      static_cast<size_t>(o.stages ? StagedBytes(T, o.product.cols) : SharedBytes(T, o.product.cols)), stream,
      o);
}

template <WeightType T>
cudaError_t LaunchForm(OneRow o, CudaStream& stream) {
  Product& p = o.product;
  o.stages = o.norm != nullptr && StagedBytes(T, p.cols) <= kMostShared;
  if (o.gated) {
    p.parts[0].first_block = 0;
    o.n_units = (p.parts[0].rows + FormOf<T>::kRows / 2 - 1) / (FormOf<T>::kRows / 2);
  } else {
    o.n_units = NumberBlocks(&p, FormOf<T>::kRows);
  }
  for (int i = 0; IsScaled(T) && i < p.n_parts; ++i) {
    o.scale_shift[i] = 0;
    while (VectorOf<T>::kColumns << o.scale_shift[i] < p.parts[i].group) ++o.scale_shift[i];
  }
  return o.gated ? LaunchUnits<T, true>(o, stream) : LaunchUnits<T, false>(o, stream);
}

}  // namespace

// The time of a round is that of its units on the block that has most of them, or of kEnoughWarps. Fewer
// warps than there can be have to be worth it: they have less on their way.
int32_t WarpsOfRows(int32_t n_units, int32_t blocks, int32_t most) {
  const auto rounds = [&](int32_t warps) {
    const int64_t all = int64_t{n_units} / (int64_t{blocks} * warps), rest = n_units - all * blocks * warps;
    const int64_t last = rest == 0 ? 0 : std::max<int64_t>((rest + blocks - 1) / blocks, kEnoughWarps);
    return all * warps + last;
  };
  int32_t best = most;
  for (int32_t warps = most - 1; warps >= kLeastWarps; --warps) {
    if (33 * rounds(warps) < 32 * rounds(best)) best = warps;
  }
  return best;
}

void AddGemvRowKernels(KernelLoader* loader) {
  AddForms<WeightType::kF32>(loader);
  AddForms<WeightType::kF16>(loader);
  AddForms<WeightType::kInt8>(loader);
  AddForms<WeightType::kInt4>(loader);
  AddForms<WeightType::kQ4K>(loader);
}

// Of one type, in whole vectors of 16 bytes, of which one, two, four or so have a scale.
bool FitsOneRow(const Product& p) {
  const WeightType type = p.parts[0].type;
  if (p.n != 1 || p.tiles != nullptr || SharedBytes(type, p.cols) > kMostShared) return false;
  const bool codes = IsScaled(type);
  const int32_t columns = VectorColumns(type);
  for (int i = 0; i < p.n_parts; ++i) {
    const Part& w = p.parts[i];
    const int32_t vectors = codes ? w.group / columns : 1;  // with one scale
    if (w.type != type || p.cols % columns != 0) return false;
    if (codes && (w.group % columns != 0 || (vectors & (vectors - 1)) != 0 || p.cols % w.group != 0))
      return false;
  }
  return true;
}

cudaError_t GemvRow(const OneRow& o, CudaStream& stream) {
  switch (o.product.parts[0].type) {
    case WeightType::kF32:
      return LaunchForm<WeightType::kF32>(o, stream);
    case WeightType::kF16:
      return LaunchForm<WeightType::kF16>(o, stream);
    case WeightType::kInt8:
      return LaunchForm<WeightType::kInt8>(o, stream);
    case WeightType::kInt4:
      return LaunchForm<WeightType::kInt4>(o, stream);
    case WeightType::kQ4K:
      return LaunchForm<WeightType::kQ4K>(o, stream);
    case WeightType::kBf16:
    case WeightType::kQ6K:
      break;  // prepare.cc makes others of them
  }
  return cudaErrorInvalidValue;
}

}  // namespace kvc::cuda
