#include "lib/model/reread.h"

#include <algorithm>

namespace kvc {
namespace {

// n floats.
PageCopy Floats(DevicePtr<float> to, DevicePtr<float> from, int64_t n) {
  return {to.As<uint8_t>(), from.As<uint8_t>(), 4 * n};
}

void AddChunks(int32_t part, int32_t n, int32_t chunk, std::vector<PromptTask>* tasks) {
  for (int32_t at = 0; at < n; at += chunk) tasks->push_back({part, at, std::min(chunk, n - at)});
}

}  // namespace

int32_t Reread::LongestPart() const {
  int32_t longest = 0;
  for (const Part& p : parts) longest = std::max(longest, p.end - p.begin);
  return longest;
}

int32_t Reread::LongestSight() const {
  int32_t longest = 0;
  for (const Part& p : parts) longest = std::max(longest, p.last - p.first);
  return longest;
}

std::vector<PromptTask> TasksOf(int32_t n, const Reread* reread, int32_t chunk) {
  std::vector<PromptTask> tasks;
  const bool between = reread != nullptr && reread->own && reread->local;
  const int32_t n_parts = reread == nullptr ? 0 : static_cast<int32_t>(reread->parts.size());
  int32_t part = 0;
  const auto read = [&] {
    const Reread::Part& p = reread->parts[static_cast<size_t>(part)];
    AddChunks(part++, p.end - p.begin, chunk, &tasks);
  };
  for (int32_t at = 0; at < n; at += chunk) {
    const int32_t end = std::min(at + chunk, n);
    tasks.push_back({-1, at, end - at});
    while (between && part < n_parts && reread->parts[static_cast<size_t>(part)].last <= end) read();
  }
  while (part < n_parts) read();
  return tasks;
}

// ---- what is seen ----

Status SeenLayer::Reserve(const DeviceMemory& memory, const Reread& reread, int32_t n_kv_heads,
                          int32_t head_dim, bool has_seen, KvType type) {
  const int64_t entries = int64_t{Reread::kFirst} + reread.LongestSight() + reread.LongestPart();
  n_.assign(static_cast<size_t>(n_kv_heads), 0);
  back_.reserve(2 * n_.size());
  KVC_RETURN_IF_ERROR(kv_.Reserve(memory, n_kv_heads, head_dim, entries, 0, 0, has_seen, type));
  return maxima_.Reserve(memory, n_kv_heads * entries, "column maxima of a part");
}

Status SeenLayer::Load(Stream* stream, Device* device, const Reread::Part& part,
                       const std::vector<int32_t>& base, const LayerView& from, DevicePtr<float> maxima) {
  const LayerView& to = kv_.view();
  const int64_t bytes = from.vector_bytes();
  std::vector<PageCopy> in;
  in.reserve(10 * base.size());
  back_.clear();
  for (size_t g = 0; g < base.size(); ++g) {
    const int64_t head = static_cast<int64_t>(g) * from.capacity,
                  mine = static_cast<int64_t>(g) * to.capacity;
    const int32_t begin = base[g] + part.first, first = std::min(Reread::kFirst, begin);
    const auto take = [&](int64_t at, int64_t entry, int64_t n) {
      if (n == 0) return;
      in.push_back({to.keys + (mine + at) * bytes, from.keys + (head + entry) * bytes, n * bytes});
      in.push_back({to.values + (mine + at) * bytes, from.values + (head + entry) * bytes, n * bytes});
      in.push_back({(to.positions + (mine + at)).As<uint8_t>(),
                    (from.positions + (head + entry)).As<uint8_t>(), 4 * n});
      if (to.has_seen)
        in.push_back(
            {(to.seen + (mine + at)).As<uint8_t>(), (from.seen + (head + entry)).As<uint8_t>(), 4 * n});
      back_.push_back(Floats(maxima + (head + entry), maxima_.at() + (mine + at), n));
      in.push_back(Floats(maxima_.at() + (mine + at), maxima + (head + entry), n));
    };
    take(0, 0, first);
    take(first, begin, part.last - part.first);
    n_[g] = to.len[g] = first + part.last - part.first;
  }
  return device->Copy(stream, {in.data(), in.size()});
}

Status SeenLayer::Store(Stream* stream, Device* device) const {
  return device->Copy(stream, {back_.data(), back_.size()});
}

// ---- what is remembered ----

Status RememberedRows::Reserve(const DeviceMemory& memory, int32_t n_rows, int32_t n_heads,
                               int32_t n_kv_heads, int32_t head_dim) {
  const char* what = "queries of a second reading";
  n_rows_ = n_rows;
  queries_ = int64_t{n_heads} * head_dim, keys_ = int64_t{n_kv_heads} * head_dim;
  KVC_RETURN_IF_ERROR(q_.Reserve(memory, n_rows * queries_, what));
  KVC_RETURN_IF_ERROR(k_.Reserve(memory, n_rows * keys_, what));
  return v_.Reserve(memory, n_rows * keys_, what);
}

Status RememberedRows::Store(Stream* stream, Device* device, const At& from, int32_t row, int32_t n) const {
  const int64_t at = row % n_rows_;
  const PageCopy copies[] = {Floats(q_.at() + at * queries_, from.q, n * queries_),
                             Floats(k_.at() + at * keys_, from.k, n * keys_),
                             Floats(v_.at() + at * keys_, from.v, n * keys_)};
  return device->Copy(stream, {copies, 3});
}

Status RememberedRows::Load(Stream* stream, Device* device, const At& to, int32_t row, int32_t n) const {
  const int64_t at = row % n_rows_;
  const PageCopy copies[] = {Floats(to.q, q_.at() + at * queries_, n * queries_),
                             Floats(to.k, k_.at() + at * keys_, n * keys_),
                             Floats(to.v, v_.at() + at * keys_, n * keys_)};
  return device->Copy(stream, {copies, 3});
}

}  // namespace kvc
