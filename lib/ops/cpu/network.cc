// The parts of a layer around its attention. Bytes: every weight once per call, whatever the rows; flops 2 a
// weight and row.
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
    return Align(4 * n * s.hidden) + 2 * Align(4 * n * s.ffn) +
           MatMulScratchBytes(static_cast<int32_t>(n), widest);
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
  LayerMath(const KernelTable& kernels, ThreadPool* pool, const NetworkShape& shape, int32_t n,
            DeviceBytes scratch)
      : kernels_(kernels), ops_{&kernels, pool}, shape_(shape), n_(n), rows_(shape, n, Raw(scratch)) {}

  const Rows& rows() const { return rows_; }

  void Norm(const float* x, DevicePtr<const float> weight, float* y, int64_t i) const {
    kernels_.rms_norm(x + i * shape_.hidden, Raw(weight), shape_.norm_eps, shape_.hidden,
                      y + i * shape_.hidden);
  }

  // A product with the norm of x, which each row gets where it is rounded; with x where there is no norm.
  void NormProduct(const float* x, DevicePtr<const float> weight, MatrixProduct* p) const {
    if (!weight) {
      p->x = x;
      return Product(p);
    }
    const auto norm = [&](int64_t i) { Norm(x, weight, rows_.norm, i); };
    p->x = rows_.norm, p->make_row = norm;
    Product(p);
  }

  void Product(MatrixProduct* p) const {
    p->n = n_, p->scratch = rows_.product;
    Multiply(ops_, *p);
  }

  // wide: one norm over all heads of a token.
  void HeadNorms(float* x, int32_t heads, bool wide, DevicePtr<const float> weight) const {
    if (!weight) return;
    const int32_t n_norms = wide ? 1 : heads, n = wide ? heads * shape_.head_dim : shape_.head_dim;
    const auto one = [&](int64_t i, int) {
      for (int32_t h = 0; h < n_norms; ++h) {
        float* v = x + (i * n_norms + h) * n;
        kernels_.rms_norm(v, Raw(weight), shape_.norm_eps, n, v);
      }
    };
    ForRows(one);
  }

  // x += scale * m(y), or scale * norm of it where there is a norm behind the block.
  void AddProduct(const Matrix& m, const float* y, DevicePtr<const float> post_norm, float scale,
                  float* x) const {
    float* out = rows_.norm;
    const auto add = [&](const OutputTile& t) {
      for (int64_t i = t.token; i < t.token + t.tokens; ++i) {
        const int64_t at = i * shape_.hidden + t.row;
        scale == 1.0f ? kernels_.add(out + at, t.rows, x + at)
                      : kernels_.axpy(scale, out + at, t.rows, x + at);
      }
    };
    MatrixProduct p{};
    p.matrix = &m, p.x = y, p.y[0] = out;
    if (!post_norm) p.finish = add;
    Product(&p);
    if (!post_norm) return;
    ForRows([&](int64_t i, int) {
      Norm(out, post_norm, out, i);
      add({0, shape_.hidden, static_cast<int32_t>(i), 1});
    });
  }

 private:
  // One row is not worth a barrier.
  template <typename F>
  void ForRows(const F& f) const {
    if (n_ == 1) return f(0, 0);
    ops_.pool->ParallelFor(n_, f);
  }

  const KernelTable& kernels_;
  const OpContext ops_;
  const NetworkShape& shape_;
  const int32_t n_;
  const Rows rows_;
};

}  // namespace

int64_t CpuDevice::NetworkScratchBytes(const NetworkShape& shape, int32_t n_rows) const {
  return Rows::Bytes(shape, n_rows);
}

Status CpuDevice::Embed(Stream*, const EmbedArgs& a) {
  const Weight table = PartOf(*a.table, 0);
  float* x = Raw(a.x);
  const auto one = [&](int64_t i, int) {
    float* row = x + i * a.shape->hidden;
    kernels_.weight_row(table, a.tokens[i], row);
    for (int32_t j = 0; a.scale != 1.0f && j < a.shape->hidden; ++j) row[j] *= a.scale;
  };
  if (a.n == 1) {
    one(0, 0);
  } else {
    pool_->ParallelFor(a.n, one);
  }
  return {};
}

Status CpuDevice::Project(Stream*, const ProjectArgs& a) {
  const LayerMath math(kernels_, pool_.get(), *a.shape, a.n, a.scratch);
  MatrixProduct p{};
  p.matrix = &a.w->qkv;
  p.y[0] = Raw(a.q), p.y[1] = Raw(a.k), p.y[2] = Raw(a.v);
  math.NormProduct(Raw(a.x), a.w->attention_norm, &p);
  math.HeadNorms(p.y[0], a.shape->n_heads, a.w->wide_norms, a.w->query_norm);
  math.HeadNorms(p.y[1], a.shape->n_kv_heads, a.w->wide_norms, a.w->key_norm);
  return {};
}

Status CpuDevice::Finish(Stream*, const FinishArgs& a) {
  const LayerMath math(kernels_, pool_.get(), *a.shape, a.n, a.scratch);
  const Rows& rows = math.rows();
  float* x = Raw(a.x);
  math.AddProduct(a.w->output, Raw(a.attended), a.w->attention_post_norm, a.scale, x);
  const int64_t ffn = a.shape->ffn;
  const auto activation = a.w->activation == Activation::kSilu ? kernels_.silu_mul : kernels_.gelu_mul;
  const auto activate = [&](const OutputTile& t) {
    for (int64_t i = t.token; i < t.token + t.tokens; ++i) {
      float* gate = rows.gate + i * ffn + t.row;
      activation(gate, rows.up + i * ffn + t.row, t.rows, gate);
    }
  };
  MatrixProduct p{};
  p.matrix = &a.w->gate_up, p.y[0] = rows.gate, p.y[1] = rows.up;
  p.aligned = true, p.finish = activate;
  math.NormProduct(x, a.w->ffn_norm, &p);
  math.AddProduct(a.w->down, rows.gate, a.w->ffn_post_norm, a.scale, x);
  return {};
}

Status CpuDevice::Logits(Stream*, const LogitsArgs& a) {
  const LayerMath math(kernels_, pool_.get(), *a.shape, a.n, a.scratch);
  float* logits = Raw(a.logits);
  const auto scale = [&](const OutputTile& t) {
    for (int64_t i = t.token; i < t.token + t.tokens; ++i) {
      float* row = logits + i * a.shape->vocab + t.row;
      for (int32_t j = 0; a.scale != 1.0f && j < t.rows; ++j) row[j] *= a.scale;
      if (a.cap > 0) kernels_.soft_cap(a.cap, t.rows, row);
    }
  };
  MatrixProduct p{};
  p.matrix = a.head, p.y[0] = logits;
  if (a.scale != 1.0f || a.cap > 0) p.finish = scale;
  math.NormProduct(Raw(a.x), a.final_norm, &p);
  return {};
}

Status CpuDevice::Sample(Stream*, const SampleArgs& a) {
  *a.token = SampleToken(kernels_, a);
  return {};
}

}  // namespace kvc::cpu
