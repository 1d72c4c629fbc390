// A layer's rows of activations and what is done with them, by Project, Finish and Logits.
#pragma once
#include <algorithm>

#include "lib/base/thread_pool.h"
#include "lib/ops/cpu/kernel_table.h"
#include "lib/ops/cpu/matmul.h"
#include "lib/ops/cpu/raw.h"
#include "lib/ops/network_ops.h"

namespace kvc::cpu {

inline int64_t Align(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// Scratch of n rows: a normed row, the ffn's two halves, and what products need. Where there are experts, the
// halves are those of `pairs` rows of one expert each, and besides there are:
struct Rows {
  float *norm, *gate, *up;
  float* gathered;     // [pairs, hidden] what they read, then what they give
  float* sum;          // [n, hidden] what a token's experts give together
  float* routes;       // [n, n_experts] the router's logits, then probabilities
  float* weights;      // [n, n_chosen]
  int32_t* chosen;     // [n, n_chosen] ascending
  int32_t* places;     // [n, n_chosen] of the pair among all, by expert, then token
  int32_t* tokens;     // [n * n_chosen] of the pair in a place
  int32_t* starts;     // [n_experts + 1] the first place of an expert
  StackSlice* slices;  // [n_experts]
  void* product;
  int64_t pairs, bytes;

  // Pairs that are worked on at once: of a batch of steps all, of a prompt so many that each expert's weights
  // are read once.
  static int64_t PairsOf(const NetworkShape& s, int64_t n) {
    constexpr int64_t kFew = 256;
    return s.n_experts == 0 ? n : std::max(n, std::min(n * s.n_chosen, kFew));
  }
  Rows(const KernelTable& kernels, const NetworkShape& s, int64_t n, uint8_t* memory)
      : pairs(PairsOf(s, n)), bytes(0) {
    const bool experts = s.n_experts > 0;
    Take(memory, n * s.hidden, &norm), Take(memory, pairs * s.ffn, &gate), Take(memory, pairs * s.ffn, &up);
    Take(memory, experts ? pairs * s.hidden : 0, &gathered), Take(memory, experts ? n * s.hidden : 0, &sum);
    Take(memory, n * s.n_experts, &routes), Take(memory, n * s.n_chosen, &weights);
    Take(memory, n * s.n_chosen, &chosen), Take(memory, n * s.n_chosen, &places);
    Take(memory, n * s.n_chosen, &tokens), Take(memory, experts ? s.n_experts + 1 : 0, &starts);
    Take(memory, s.n_experts, &slices);
    uint8_t* rest;
    Take(memory, 0, &rest);
    product = rest;
    bytes += MatMulScratchBytes(kernels, static_cast<int32_t>(pairs),
                                std::max({s.hidden, s.ffn, s.n_heads * s.head_dim}));
  }
  static int64_t Bytes(const KernelTable& kernels, const NetworkShape& s, int64_t n) {
    return Rows(kernels, s, n, nullptr).bytes;
  }

 private:
  template <typename T>
  void Take(uint8_t* memory, int64_t n, T** out) {
    *out = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + bytes);
    bytes += Align(n * static_cast<int64_t>(sizeof(T)));
  }
};

class LayerMath {
 public:
  LayerMath(const KernelTable& kernels, ThreadPool* pool, const NetworkShape& shape, int32_t n,
            DeviceBytes scratch)
      : kernels_(kernels),
        ops_{&kernels, pool},
        shape_(shape),
        n_(n),
        rows_(kernels, shape, n, Raw(scratch)) {}

  const Rows& rows() const { return rows_; }
  const KernelTable& kernels() const { return kernels_; }
  const NetworkShape& shape() const { return shape_; }
  int32_t n() const { return n_; }

  // bias: of layer norms only.
  void Norm(const float* x, DevicePtr<const float> weight, DevicePtr<const float> bias, float* y,
            int64_t i) const {
    NormOf(x + i * shape_.hidden, Raw(weight), bias ? Raw(bias) : nullptr, shape_.hidden,
           y + i * shape_.hidden);
  }

  // A product with the norm of x, which each row gets where it is rounded; with x where there is no norm.
  void NormProduct(const float* x, DevicePtr<const float> weight, DevicePtr<const float> bias,
                   MatrixProduct* p) const {
    if (!weight) {
      p->x = x;
      return Product(p);
    }
    const auto norm = [&](int64_t i) { Norm(x, weight, bias, rows_.norm, i); };
    p->x = rows_.norm, p->make_row = norm;
    Product(p);
  }

  void Product(MatrixProduct* p) const { Product(n_, p); }
  void Product(int32_t n, MatrixProduct* p) const {
    p->n = n, p->scratch = rows_.product;
    Multiply(ops_, *p);
  }

  // One norm of every head, or over all heads of a token.
  void HeadNorms(float* x, int32_t heads, const LayerMatrices& w, DevicePtr<const float> weight) const {
    if (!weight) return;
    const bool wide = w.wide_norms;
    const int32_t n_norms = wide ? 1 : heads, n = wide ? heads * shape_.head_dim : shape_.head_dim;
    const auto one = [&](int64_t i, int) {
      for (int32_t h = 0; h < n_norms; ++h) {
        float* v = x + (i * n_norms + h) * n;
        NormOf(v, Raw(weight) + (w.own_norms ? h * n : 0), nullptr, n, v);
      }
    };
    ForRows(one);
  }

  // gate [n] becomes the activation of gate and up.
  void Activate(const LayerMatrices& w, const float* up, int32_t n, float* gate) const {
    switch (w.activation) {
      case Activation::kSilu:
        return kernels_.silu_mul(gate, up, n, gate);
      case Activation::kGeluTanh:
        return kernels_.gelu_mul(gate, up, n, gate);
      case Activation::kClampedSwiglu:
        return kernels_.clamped_mul(gate, up, w.activation_gain, w.activation_limit, n, gate);
    }
  }

  // x += scale * m(y), or scale * norm of it where there is a norm behind the block.
  void AddProduct(const Matrix& m, const float* y, DevicePtr<const float> post_norm, float scale,
                  float* x) const {
    float* out = rows_.norm;
    const auto add = [&](const OutputTile& t) { Add(out, t, scale, x); };
    MatrixProduct p{};
    p.matrix = &m, p.x = y, p.y[0] = out;
    if (!post_norm) p.finish = add;
    Product(&p);
    if (post_norm) ForRows([&](int64_t i, int) { AddRow(out, i, post_norm, scale, x); });
  }

  // Row i of x += scale * row i of out, or of its norm, which is left there.
  void AddRow(float* out, int64_t i, DevicePtr<const float> post_norm, float scale, float* x) const {
    if (post_norm) Norm(out, post_norm, {}, out, i);
    Add(out, {0, shape_.hidden, static_cast<int32_t>(i), 1}, scale, x);
  }

  template <typename F>
  void ForRows(const F& f) const {
    ops_.pool->ParallelFor(n_, f);
  }

 private:
  void NormOf(const float* x, const float* weight, const float* bias, int32_t n, float* y) const {
    shape_.layer_norms ? kernels_.layer_norm(x, weight, bias, shape_.norm_eps, n, y)
                       : kernels_.rms_norm(x, weight, shape_.norm_eps, n, y);
  }

  void Add(const float* out, const OutputTile& t, float scale, float* x) const {
    for (int64_t i = t.token; i < t.token + t.tokens; ++i) {
      const int64_t at = i * shape_.hidden + t.row;
      scale == 1.0f ? kernels_.add(out + at, t.rows, x + at) : kernels_.axpy(scale, out + at, t.rows, x + at);
    }
  }

  const KernelTable& kernels_;
  const OpContext ops_;
  const NetworkShape& shape_;
  const int32_t n_;
  const Rows rows_;
};

}  // namespace kvc::cpu
