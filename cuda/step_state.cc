#include "cuda/step_state.h"

#include <algorithm>

#include "cuda/layer_params.h"

namespace kvc::cuda {

// ---- angles ----

bool StepAngles::IsOf(const StepArgs& a) const {
  return std::equal(positions_.begin(), positions_.end(), a.rows, a.rows + a.n_rows,
                    [](int32_t position, const StepRow& row) { return position == row.position; });
}

const RowAngles* StepAngles::Find(const StepArgs& a) const {
  if (known_.empty() || !IsOf(a)) return nullptr;
  for (const Known& known : known_) {
    if (known.rope == a.rope) return &known.at;
  }
  return nullptr;
}

void StepAngles::Note(const StepArgs& a, const RowAngles& at) {
  if (!IsOf(a)) {
    known_.clear();
    positions_.clear();
    for (int32_t r = 0; r < a.n_rows; ++r) positions_.push_back(a.rows[r].position);
  }
  known_.push_back({a.rope, at});
}

void StepAngles::Reserve(int32_t n_rows) {
  constexpr size_t kRopes = 8;  // that the layers of a model turn by; more take memory in a step
  known_.reserve(kRopes);
  positions_.reserve(static_cast<size_t>(n_rows));
}

// ---- rows ----

void RowsBehind::Count(Span<const StepRow> rows) {
  n_.assign(rows.size(), 0);
  any_ = false;
  for (size_t r = rows.size(); r-- > 1;) {
    if (rows[r - 1].cache != rows[r].cache) continue;
    n_[r - 1] = n_[r] + 1;
    any_ = true;
  }
}

// ---- lengths ----

void LengthReports::Free() {
  cudaFree(device_);
  cudaFreeHost(host_);
  device_ = host_ = nullptr;
  size_ = used_ = 0;
}

Status LengthReports::Reserve(int64_t heads) {
  if (heads <= size_) return {};
  const int64_t size = PowerOfTwoFrom(heads);
  const int64_t bytes = size * static_cast<int64_t>(sizeof(HeadLengths));
  void *host = nullptr, *device = nullptr;
  KVC_RETURN_IF_ERROR(
      Check(cudaHostAlloc(&host, static_cast<size_t>(bytes), cudaHostAllocDefault), "memory for records"));
  const Status status = Check(NewMemory(kept_, bytes, &device), "memory for records");
  if (!status.ok()) {
    cudaFreeHost(host);
    return status;
  }
  Free();
  host_ = static_cast<HeadLengths*>(host), device_ = static_cast<HeadLengths*>(device);
  size_ = size;
  expected_.reserve(static_cast<size_t>(size));
  return {};
}

Status LengthReports::Begin(CudaStream* stream, int64_t n, HeadLengths** at) {
  if (used_ + n > size_) {
    KVC_RETURN_IF_ERROR(Collect(stream));
    KVC_RETURN_IF_ERROR(Reserve(n));
  }
  *at = device_ + used_;
  used_ += n;
  return {};
}

void LengthReports::Expect(const CacheView& cache, int32_t first, int32_t n, const HeadLengths* at) {
  expected_.push_back({&cache, first, n, at});
}

bool LengthReports::Expects(const CacheView& cache, int32_t first) const {
  for (auto e = expected_.rbegin(); e != expected_.rend() && e->first == first; ++e) {
    if (e->cache == &cache) return true;
  }
  return false;
}

Status LengthReports::Collect(CudaStream* stream) {
  const char* what = "lengths of the KV cache";
  const int64_t bytes = used_ * static_cast<int64_t>(sizeof(HeadLengths));
  Status status;
  if (!expected_.empty()) status = stream->Copy(host_, device_, bytes, cudaMemcpyDeviceToHost, what);
  if (!expected_.empty() && status.ok()) status = stream->Wait(what);
  for (const Expected& e : expected_) {
    if (!status.ok()) break;
    const CacheRecords records(*e.cache, e.first, e.n, 0);
    const HeadLengths* from = host_ + (e.at - device_);
    for (int32_t i = 0; i < e.n; ++i) records.Accept(i, from[i]);
  }
  Drop();
  return status;
}

}  // namespace kvc::cuda
