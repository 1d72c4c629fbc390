// The parts of a layer around its attention. Bytes: every weight once per call, whatever the rows; flops 2 a weight and
// row.
#include <algorithm>
#include <cstring>

#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/matmul.h"
#include "lib/ops/cpu/raw.h"
#include "lib/ops/cpu/sample.h"

namespace kvc::cpu {
namespace {

int64_t Align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Scratch of n rows: a normed row, the ffn's two halves, and what products need.
struct Rows {
  float *norm, *gate, *up;
  void* product;
  static int64_t Bytes(const NetworkShape& s, int64_t n) {
    const int32_t widest = std::max({s.hidden, s.ffn, s.n_heads * s.head_dim});
    return Align(4 * n * s.hidden) + 2 * Align(4 * n * s.ffn) + MatMulScratchBytes(static_cast<int32_t>(n), widest);
  }
  Rows(const NetworkShape& s, int64_t n, uint8_t* at) {
    norm = reinterpret_cast<float*>(at), at += Align(4 * n * s.hidden);
    gate = reinterpret_cast<float*>(at), at += Align(4 * n * s.ffn);
    up = reinterpret_cast<float*>(at), at += Align(4 * n * s.ffn);
    product = at;
  }
};

class LayerMath {
 public:
  LayerMath(const KernelTable& kernels, ThreadPool* pool, const NetworkShape& shape, int32_t n, DeviceBytes scratch)
      : kernels_(kernels), ops_{&kernels, pool}, shape_(shape), n_(n), rows_(shape, n, Raw(scratch)) {}

  const Rows& rows() const { return rows_; }

  void Norm(const float* x, DevicePtr<const float> weight, float* y) const {
    ops_.pool->ParallelFor(n_, [&](int64_t i, int) {
      kernels_.rms_norm(x + i * shape_.hidden, Raw(weight), shape_.norm_eps, shape_.hidden, y + i * shape_.hidden);
    });
  }

  // Every part of the matrix to an output of its own; x is quantised once for all of them.
  void Product(const Matrix& m, const float* x, float* const* y) const {
    MatMulParts(ops_, m, x, n_, y, rows_.product);
  }

  void HeadNorms(float* x, int32_t heads, DevicePtr<const float> weight) const {
    if (!weight) return;
    for (int64_t i = 0; i < int64_t{n_} * heads; ++i) {
      float* v = x + i * shape_.head_dim;
      kernels_.rms_norm(v, Raw(weight), shape_.norm_eps, shape_.head_dim, v);
    }
  }

  // x += scale * norm(y) or x += scale * y.
  void AddTo(float* x, float* y, DevicePtr<const float> post_norm, float scale) const {
    if (post_norm) Norm(y, post_norm, y);
    for (int32_t i = 0; i < n_; ++i) {
      const int64_t at = int64_t{i} * shape_.hidden;
      if (scale == 1.0f) {
        kernels_.add(y + at, shape_.hidden, x + at);
      } else {
        kernels_.axpy(scale, y + at, shape_.hidden, x + at);
      }
    }
  }

 private:
  const KernelTable& kernels_;
  const OpContext ops_;
  const NetworkShape& shape_;
  const int32_t n_;
  const Rows rows_;
};

}  // namespace

Status CpuDevice::Prepare(Span<const Weight> tensors, Span<const float* const> biases, Matrix* out) {
  *out = {};
  out->n_parts = static_cast<int32_t>(tensors.size());
  out->cols = tensors[0].cols;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Weight& w = tensors[i];
    out->parts[i] = {w.type, w.rows, w.group, AddressOf(static_cast<const uint8_t*>(w.data)), AddressOf(w.scales),
                     AddressOf(biases.empty() ? nullptr : biases[i])};
  }
  return {};
}

DevicePtr<const float> CpuDevice::PrepareVector(const float* values, int32_t) { return AddressOf(values); }

int64_t CpuDevice::NetworkScratchBytes(const NetworkShape& shape, int32_t n_rows) const {
  return Rows::Bytes(shape, n_rows);
}

Status CpuDevice::Embed(Stream*, const EmbedArgs& a) {
  const Weight table = PartOf(*a.table, 0);
  float* x = Raw(a.x);
  pool_->ParallelFor(a.n, [&](int64_t i, int) {
    float* row = x + i * a.shape->hidden;
    kernels_.weight_row(table, a.tokens[i], row);
    for (int32_t j = 0; a.scale != 1.0f && j < a.shape->hidden; ++j) row[j] *= a.scale;
  });
  return {};
}

Status CpuDevice::Project(Stream*, const ProjectArgs& a) {
  const LayerMath math(kernels_, pool_.get(), *a.shape, a.n, a.scratch);
  math.Norm(Raw(a.x), a.w->attention_norm, math.rows().norm);
  float* const out[] = {Raw(a.q), Raw(a.k), Raw(a.v)};
  math.Product(a.w->qkv, math.rows().norm, out);
  math.HeadNorms(out[0], a.shape->n_heads, a.w->query_norm);
  math.HeadNorms(out[1], a.shape->n_kv_heads, a.w->key_norm);
  return {};
}

Status CpuDevice::Finish(Stream*, const FinishArgs& a) {
  const LayerMath math(kernels_, pool_.get(), *a.shape, a.n, a.scratch);
  const Rows& rows = math.rows();
  float* x = Raw(a.x);
  math.Product(a.w->output, Raw(a.attended), &rows.norm);
  math.AddTo(x, rows.norm, a.w->attention_post_norm, a.scale);
  math.Norm(x, a.w->ffn_norm, rows.norm);
  float* const halves[] = {rows.gate, rows.up};
  math.Product(a.w->gate_up, rows.norm, halves);
  const int32_t ffn = a.shape->ffn;
  const auto activate = a.w->activation == Activation::kSilu ? kernels_.silu_mul : kernels_.gelu_mul;
  pool_->ParallelFor(a.n, [&](int64_t i, int) {
    activate(rows.gate + i * ffn, rows.up + i * ffn, ffn, rows.gate + i * ffn);
  });
  math.Product(a.w->down, rows.gate, &rows.norm);
  math.AddTo(x, rows.norm, a.w->ffn_post_norm, a.scale);
  return {};
}

Status CpuDevice::Logits(Stream*, const LogitsArgs& a) {
  const LayerMath math(kernels_, pool_.get(), *a.shape, a.n, a.scratch);
  math.Norm(Raw(a.x), a.final_norm, math.rows().norm);
  float* logits = Raw(a.logits);
  math.Product(*a.head, math.rows().norm, &logits);
  for (int64_t i = 0; a.scale != 1.0f && i < int64_t{a.n} * a.shape->vocab; ++i) logits[i] *= a.scale;
  return {};
}

Status CpuDevice::Sample(Stream*, const SampleArgs& a) {
  *a.token = SampleToken(kernels_, a);
  return {};
}

}  // namespace kvc::cpu
