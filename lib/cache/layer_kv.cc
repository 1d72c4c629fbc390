#include "lib/cache/layer_kv.h"

#include <algorithm>

namespace kvc {

Status LayerBuffers::Reserve(const DeviceMemory& memory, int32_t n_kv_heads, int32_t head_dim,
                             int64_t capacity, int64_t max_cached, int32_t n_aux, bool has_seen,
                             KvType type) {
  max_cached_ = max_cached;
  const int64_t entries = n_kv_heads * capacity;
  len_.assign(static_cast<size_t>(n_kv_heads), 0);
  view_.n_kv_heads = n_kv_heads, view_.head_dim = head_dim, view_.n_aux = n_aux, view_.has_seen = has_seen;
  view_.type = type, view_.capacity = capacity;
  KVC_RETURN_IF_ERROR(keys_.Reserve(memory, entries * view_.vector_bytes(), "keys of one layer"));
  KVC_RETURN_IF_ERROR(values_.Reserve(memory, entries * view_.vector_bytes(), "values of one layer"));
  KVC_RETURN_IF_ERROR(positions_.Reserve(memory, entries, "positions of one layer"));
  KVC_RETURN_IF_ERROR(aux_.Reserve(memory, n_aux * entries, "side values of one layer"));
  if (has_seen) KVC_RETURN_IF_ERROR(seen_.Reserve(memory, entries, "sets of query heads"));
  KVC_RETURN_IF_ERROR(order_.Reserve(memory, memory.device->LoadScratchBytes(n_kv_heads, max_cached),
                                     "positions of one layer"));
  view_.keys = keys_.at(), view_.values = values_.at(), view_.positions = positions_.at(),
  view_.aux = aux_.at();
  view_.seen = seen_.at(), view_.len = len_.data();
  return {};
}

void LayerBuffers::Free() {
  keys_.Free(), values_.Free(), aux_.Free(), positions_.Free(), seen_.Free(), order_.Free();
  view_ = {};
}

int32_t LayerBuffers::Longest() const {
  return len_.empty() ? 0 : *std::max_element(len_.begin(), len_.end());
}

Status LayerBuffers::CopyFrom(Stream* stream, Device* device, const LayerBuffers& from) {
  const int64_t entries = int64_t{view_.n_kv_heads} * view_.capacity,
                vectors = entries * view_.vector_bytes();
  const PageCopy copies[] = {{keys_.raw(), from.keys_.raw(), vectors},
                             {values_.raw(), from.values_.raw(), vectors},
                             {positions_.raw(), from.positions_.raw(), 4 * entries}};
  KVC_RETURN_IF_ERROR(device->Copy(stream, {copies, 3}));
  KVC_RETURN_IF_ERROR(device->Zero(stream, aux_.raw(), 4 * view_.n_aux * entries));
  std::copy(from.len_.begin(), from.len_.end(), len_.begin());
  return {};
}

Status ObservedBuffers::Reserve(const DeviceMemory& memory, int32_t n_heads, int32_t n_kv_heads,
                                int32_t head_dim, int64_t capacity, int32_t rows, bool sums, bool maxima) {
  n_rows = rows;
  KVC_RETURN_IF_ERROR(queries_.Reserve(memory, int64_t{rows} * n_heads * head_dim, "window queries"));
  if (sums) KVC_RETURN_IF_ERROR(sums_.Reserve(memory, n_kv_heads * capacity, "column sums"));
  if (maxima) KVC_RETURN_IF_ERROR(maxima_.Reserve(memory, n_kv_heads * capacity, "column maxima"));
  return {};
}

void ObservedBuffers::Free() { queries_.Free(), sums_.Free(), maxima_.Free(); }

Status ObservedBuffers::Clear(Stream* stream, Device* device) {
  KVC_RETURN_IF_ERROR(device->Zero(stream, sums_.raw(), sums_.bytes()));
  return device->Zero(stream, maxima_.raw(), maxima_.bytes());
}

}  // namespace kvc
