// Byte model: every entry's K and V are read once for all g query heads of its group: len * (key + value
// bytes) per head. Flop model: 4 * D * g per entry, far below what the bytes cost, so the loop is bound by
// memory.
#include "lib/cache/attend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

namespace kvc {
namespace {

constexpr int32_t kSegment = 256;  // entries per work item

}  // namespace

Status AngleTable::Grow(const Rope& rope, int32_t n, MemoryMeter* meter) {
  if (n <= rows_) return {};
  Buffer<float> grown;
  d_ = rope.head_dim();
  const int32_t rows = std::max(n, rows_ + rows_ / 2);
  KVC_RETURN_IF_ERROR(grown.Allocate(meter, int64_t{rows} * d_, "RoPE angles"));
  const bool counting = meter != nullptr && meter->counting();
  if (rows_ > 0 && !counting)
    std::memcpy(grown.data(), table_.data(),
                static_cast<size_t>(rows_) * static_cast<size_t>(d_) * sizeof(float));
  for (int32_t i = rows_; i < rows && !counting; ++i) {
    rope.Angles(i, grown.data() + int64_t{i} * d_, grown.data() + int64_t{i} * d_ + d_ / 2);
  }
  table_ = std::move(grown);
  rows_ = rows;
  return {};
}

Status AttendWorkspace::Reserve(const CacheConfig& config, int32_t max_len, int32_t headroom, int n_threads,
                                MemoryMeter* meter) {
  int32_t tail = 0;
  for (const HeadFormat& format : config.formats) tail = std::max(tail, format.tail_slots);
  const int64_t wanted = max_len + tail;
  if (wanted <= stride_) return {};
  const int64_t stride = (std::max<int64_t>(wanted + headroom, stride_ + stride_ / 4) + 15) / 16 * 16;
  stride_ = 0;  // until everything is there
  const int64_t n_heads = int64_t{config.n_kv_heads} * config.group, d = config.head_dim;
  const int64_t items = (stride / kSegment + 3) * config.n_kv_heads;
  thread_floats_ = 2 * std::max<int64_t>(config.page_slots, tail) * d + d;
  seen_bytes_ = int64_t{config.group} * std::max(config.page_slots, tail);
  KVC_RETURN_IF_ERROR(partial_.Allocate(meter, items * config.group * (d + 2), "attention workspace"));
  KVC_RETURN_IF_ERROR(probabilities_.Allocate(meter, n_heads * stride, "attention workspace"));
  KVC_RETURN_IF_ERROR(thread_.Allocate(meter, thread_floats_ * n_threads, "attention workspace"));
  KVC_RETURN_IF_ERROR(seen_.Allocate(meter, seen_bytes_ * n_threads, "attention workspace"));
  KVC_RETURN_IF_ERROR(rank_.Allocate(meter, config.n_kv_heads * stride, "attention workspace"));
  items_.reserve(static_cast<size_t>(items));
  stride_ = stride;
  return {};
}

int64_t AttendWorkspace::bytes() const {
  return partial_.bytes() + probabilities_.bytes() + thread_.bytes() + seen_.bytes() + rank_.bytes();
}

// One call of Attend: the state its parallel parts share.
class AttendJob {
 public:
  AttendJob(const AttendArgs& args, AttendWorkspace* ws) : a_(args), ws_(ws), config_(args.cache.config()) {}

  void Prepare() {
    ws_->items_.clear();
    for (int32_t g = 0; g < config_.n_kv_heads; ++g) {
      a_.cache.ForOccupied(a_.layer, g, [&](int32_t first, int32_t n) {
        for (int32_t b = first; b < first + n; b += kSegment)
          ws_->items_.push_back({g, b, std::min(b + kSegment, first + n)});
      });
      if (a_.rotation != KeyRotation::kStored) PrepareRotation(g);
    }
  }

  void RunItem(int64_t item, int thread) {
    const AttendWorkspace::Item& it = ws_->items_[static_cast<size_t>(item)];
    const int32_t d = config_.head_dim, g = config_.group;
    float* m = Partial(item);
    float *l = m + g, *acc = l + g;
    std::fill(m, m + g, -std::numeric_limits<float>::infinity());
    std::fill(l, l + int64_t{g} * (d + 1), 0.0f);
    float* scratch = ws_->thread_.data() + thread * ws_->thread_floats_;
    uint8_t* seen = ws_->seen_.data() + thread * ws_->seen_bytes_;
    const int32_t newest = a_.cache.PositionAt(a_.layer, it.head, a_.cache.Len(a_.layer, it.head) - 1);
    for (int32_t at = it.begin; at < it.end;) {
      KvCache::Run run = a_.cache.GetRun(a_.layer, it.head, at, scratch);
      run.n = std::min(run.n, it.end - at);
      if (a_.rotation != KeyRotation::kStored) RotateKeys(it.head, &run, scratch);
      AttendTileArgs t{};
      t.q = Query(it.head);
      t.k = run.k, t.v = run.v, t.type = run.type;
      t.visible = VisibleBytes(run, newest, seen);
      t.visible_stride = run.n;
      t.logits = a_.want_probabilities ? ws_->MutableProbabilities(it.head * g) + at : nullptr;
      t.logits_stride = ws_->stride_;
      t.m = m, t.l = l, t.acc = acc;
      t.n = run.n, t.g = g, t.d = d, t.scale = a_.scale;
      a_.ops.kernels->attend_tile(t);
      at += run.n;
    }
  }

  // Merges the segments of one head in order and turns logits into probabilities.
  void Finish(int32_t head) {
    const int32_t d = config_.head_dim, g = config_.group;
    for (int32_t j = 0; j < g; ++j) {
      float m = -std::numeric_limits<float>::infinity(), l = 0;
      for (size_t i = 0; i < ws_->items_.size(); ++i) {
        if (ws_->items_[i].head == head) m = std::max(m, Partial(static_cast<int64_t>(i))[j]);
      }
      float* out = a_.out + (int64_t{head} * g + j) * d;
      std::fill(out, out + d, 0.0f);
      for (size_t i = 0; i < ws_->items_.size(); ++i) {
        const float* part = Partial(static_cast<int64_t>(i));
        if (ws_->items_[i].head != head || part[g + j] == 0.0f) continue;
        const float w = std::exp(part[j] - m);
        l += w * part[g + j];
        a_.ops.kernels->axpy(w, part + 2 * g + int64_t{j} * d, d, out);
      }
      const float inverse = l > 0 ? 1.0f / l : 0.0f;
      for (int32_t x = 0; x < d; ++x) out[x] *= inverse;
      if (!a_.want_probabilities) continue;
      float* p = ws_->MutableProbabilities(head * g + j);
      a_.cache.ForOccupied(a_.layer, head, [&](int32_t first, int32_t n) {
        for (int32_t i = first; i < first + n; ++i) p[i] = std::exp(p[i] - m) * inverse;
      });
    }
  }

  size_t n_items() const { return ws_->items_.size(); }

 private:
  float* Partial(int64_t item) {
    return ws_->partial_.data() + item * config_.group * (config_.head_dim + 2);
  }
  const float* Query(int32_t head) const {
    return (a_.rotation == KeyRotation::kStored ? a_.q : a_.rotated_q) +
           int64_t{head} * config_.group * config_.head_dim;
  }

  void PrepareRotation(int32_t head) {
    const int32_t n = a_.cache.Len(a_.layer, head), main = a_.cache.MainLen(a_.layer, head),
                  d = config_.head_dim;
    const bool by_rank = a_.rotation == KeyRotation::kByRank;
    const int32_t at_angle = by_rank ? n - 1 : a_.cache.PositionAt(a_.layer, head, n - 1);
    if (by_rank) {
      const int32_t* order = a_.cache.Order(a_.layer, head);
      int32_t* rank = ws_->rank_.data() + head * ws_->stride_;
      for (int32_t r = 0; r < main; ++r) rank[order == nullptr ? r : order[r]] = r;
      a_.cache.TailSlots(a_.layer, head, [&](int32_t i, int32_t physical) { rank[physical] = main + i; });
    }
    for (int32_t j = 0; j < config_.group; ++j) {
      const int64_t at = (int64_t{head} * config_.group + j) * d;
      std::copy(a_.q + at, a_.q + at + d, a_.rotated_q + at);
      a_.ops.kernels->rope(a_.rotated_q + at, a_.angles->Cos(at_angle), a_.angles->Sin(at_angle), d,
                           a_.pairing);
    }
  }

  void RotateKeys(int32_t head, KvCache::Run* run, float* scratch) {
    const int32_t d = config_.head_dim;
    if (run->type != KvType::kF32 || run->k != reinterpret_cast<const uint8_t*>(scratch)) {
      VectorFormat format;
      format.type = run->type, format.d = d;
      a_.ops.kernels->decode_vectors(format, run->k, run->n, scratch);
      a_.ops.kernels->decode_vectors(format, run->v, run->n, scratch + int64_t{run->n} * d);
      run->k = reinterpret_cast<const uint8_t*>(scratch);
      run->v = reinterpret_cast<const uint8_t*>(scratch + int64_t{run->n} * d);
      run->type = KvType::kF32;
    }
    const int32_t* rank = ws_->rank_.data() + head * ws_->stride_ + run->first;
    for (int32_t i = 0; i < run->n; ++i) {
      const int32_t at = a_.rotation == KeyRotation::kByRank ? rank[i] : run->positions[i];
      a_.ops.kernels->rope(scratch + int64_t{i} * d, a_.angles->Cos(at), a_.angles->Sin(at), d, a_.pairing);
    }
  }

  // Bytes [g, run.n] for entries that some query heads do not see, or that the model's sliding window has
  // left; null: all seen.
  const uint8_t* VisibleBytes(const KvCache::Run& run, int32_t newest, uint8_t* seen) const {
    bool hidden = false;
    if (a_.window > 0) {
      for (int32_t i = 0; i < run.n && !hidden; ++i) hidden = run.positions[i] <= newest - a_.window;
    }
    if (run.seen == nullptr && !hidden) return nullptr;
    for (int32_t j = 0; j < config_.group; ++j) {
      for (int32_t i = 0; i < run.n; ++i) {
        const bool by_head = run.seen == nullptr || (run.seen[i] >> j & 1) != 0;
        seen[int64_t{j} * run.n + i] = by_head && (a_.window <= 0 || run.positions[i] > newest - a_.window);
      }
    }
    return seen;
  }

  const AttendArgs& a_;
  AttendWorkspace* ws_;
  const CacheConfig& config_;
};

void Attend(const AttendArgs& args, AttendWorkspace* workspace) {
  AttendJob job(args, workspace);
  job.Prepare();
  args.ops.pool->ParallelFor(static_cast<int64_t>(job.n_items()),
                             [&](int64_t item, int thread) { job.RunItem(item, thread); });
  args.ops.pool->ParallelFor(args.cache.config().n_kv_heads,
                             [&](int64_t head, int) { job.Finish(static_cast<int32_t>(head)); });
}

}  // namespace kvc
