// What the layers of a step share on the host, by stream: the rotations of the rows, which many layers turn
// by, which rows are of one session, and the lengths that nobody but the device knows before the step has
// ended.
#pragma once
#include <vector>

#include "lib/base/span.h"
#include "lib/ops/step_ops.h"

namespace kvc::cuda {

class CudaStream;
class KeptBlocks;
struct HeadLengths;  // records.h

// On the device, in the packet of the first layer that turns by a rope.
struct RowAngles {
  const double* frequencies;  // [D/2]
  const float* angles;        // [rows, D]: cos and sin of the rows' positions
};

// Of the step that is being gathered.
class StepAngles {
 public:
  void Reserve(int32_t n_rows);
  void Forget() { known_.clear(); }
  // Null: no layer of these rows has sent them.
  const RowAngles* Find(const StepArgs& a) const;
  void Note(const StepArgs& a, const RowAngles& at);

 private:
  struct Known {
    const Rope* rope;
    RowAngles at;
  };
  bool IsOf(const StepArgs& a) const;  // the rows are those of what is known
  std::vector<Known> known_;
  std::vector<int32_t> positions_;  // of the rows
};

// Rows of one session that are worked on at once: they follow each other, and each sees what those in front
// of it append.
class RowsBehind {
 public:
  void Reserve(int32_t n_rows) { n_.reserve(static_cast<size_t>(n_rows)); }
  void Count(Span<const StepRow> rows);
  // Of row r: how many are behind it.
  int32_t operator[](int32_t r) const { return n_[static_cast<size_t>(r)]; }
  bool any() const { return any_; }

 private:
  std::vector<int32_t> n_;
  bool any_ = false;
};

// Kernels write what only they know of a head, and the host reads all of a step at once.
class LengthReports {
 public:
  explicit LengthReports(KeptBlocks* kept) : kept_(kept) {}
  // Of so many heads; `Begin` takes more only where nobody has reserved them.
  Status Reserve(int64_t heads);
  void Free();

  // Where a kernel is to report n heads. May collect what has been expected so far.
  Status Begin(CudaStream* stream, int64_t n, HeadLengths** at);
  // The kernel has been launched: n heads from `first` on are reported from `at` on.
  void Expect(const CacheView& cache, int32_t first, int32_t n, const HeadLengths* at);
  // Whether the lengths of the heads from `first` on, of the layer that came last, are still to come.
  bool Expects(const CacheView& cache, int32_t first) const;
  // Everything that is expected, into the records of its caches. Waits where something is.
  Status Collect(CudaStream* stream);
  void Drop() { expected_.clear(), used_ = 0; }

 private:
  struct Expected {
    const CacheView* cache;
    int32_t first, n;
    const HeadLengths* at;
  };
  KeptBlocks* const kept_;
  std::vector<Expected> expected_;
  HeadLengths *host_ = nullptr, *device_ = nullptr;  // pinned, and on the device
  int64_t size_ = 0, used_ = 0;                      // heads
};

}  // namespace kvc::cuda
