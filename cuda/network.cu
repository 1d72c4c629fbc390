// The parts of a layer around its attention. Bytes of a step: every weight once. Norms and activations are
// kernels of their own; sums and biases ride in the products.
#include "cuda/network.h"

#include "cuda/cuda_device.h"

namespace kvc::cuda {
namespace {

constexpr int kThreads = 128;

int64_t Align(int64_t bytes) { return (bytes + 255) / 256 * 256; }
unsigned Blocks(int64_t n) { return static_cast<unsigned>((n + kThreads - 1) / kThreads); }

struct EmbedParams {
  Part table;
  int32_t cols;
  const int32_t* tokens;
  float scale;
  float* x;
};
__global__ void embed(const EmbedParams p) {
  const int32_t token = p.tokens[blockIdx.x];
  float* row = p.x + static_cast<int64_t>(blockIdx.x) * p.cols;
  for (int32_t j = ThreadOfBlock(); j < p.cols; j += BlockThreads())
    row[j] = WeightElement(p.table, p.cols, token, j) * p.scale;
}

// y = norm(x) * weight, or y += scale * that; a block a row of `n` values.
struct NormParams {
  const float *x, *weight;
  float eps;
  int32_t n;
  float* y;
  bool adds;
  float scale;
};
__global__ void norm_rows(const NormParams p) {
  __shared__ float shared[kThreads / kWarp];
  const float* x = p.x + static_cast<int64_t>(blockIdx.x) * p.n;
  float* y = p.y + static_cast<int64_t>(blockIdx.x) * p.n;
  float sum = 0;
  for (int32_t j = ThreadOfBlock(); j < p.n; j += BlockThreads()) sum += x[j] * x[j];
  sum = BlockSum(sum, shared);
  const float scale = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(sum, static_cast<float>(p.n)) + p.eps));
  for (int32_t j = ThreadOfBlock(); j < p.n; j += BlockThreads()) {
    const float v = x[j] * scale * p.weight[j];
    y[j] = p.adds ? y[j] + p.scale * v : v;
  }
}

__global__ void activate(float* gate, const float* up, int64_t n, Activation activation) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * BlockThreads() + ThreadOfBlock();
  if (i >= n) return;
  const float g = gate[i];
  if (activation == Activation::kSilu) {
    gate[i] = __fdiv_rn(g, 1.0f + expf(-g)) * up[i];
  } else {
    const float inner = 0.79788456f * (g + 0.044715f * g * g * g);
    gate[i] = 0.5f * g * (1.0f + tanhf(inner)) * up[i];
  }
}

struct Rows {
  float *norm, *gate, *up;
  static int64_t Bytes(const NetworkShape& s, int64_t n) {
    return Align(4 * n * s.hidden) + 2 * Align(4 * n * s.ffn);
  }
  Rows(const NetworkShape& s, int64_t n, uint8_t* at) {
    norm = reinterpret_cast<float*>(at), at += Align(4 * n * s.hidden);
    gate = reinterpret_cast<float*>(at), at += Align(4 * n * s.ffn);
    up = reinterpret_cast<float*>(at);
  }
};

class LayerMath {
 public:
  LayerMath(Stream* s, const NetworkShape& shape, int32_t n, DeviceBytes scratch)
      : stream_(StreamOf(s)), shape_(shape), n_(n), rows_(shape, n, At(scratch)) {}
  const Rows& rows() const { return rows_; }

  // [rows, width] each.
  Status Norm(const float* x, DevicePtr<const float> weight, int64_t rows, int32_t width, float* y,
              bool adds = false, float scale = 1) const {
    const NormParams p{x, At(weight), shape_.norm_eps, width, y, adds, scale};
    return Check(KVC_LAUNCH(norm_rows, dim3(static_cast<unsigned>(rows)), dim3(kThreads), 0, stream_, p),
                 "a norm");
  }
  // wide: one norm over all heads of a token.
  Status HeadNorms(float* x, int32_t heads, bool wide, DevicePtr<const float> weight) const {
    if (!weight) return {};
    return wide ? Norm(x, weight, n_, heads * shape_.head_dim, x)
                : Norm(x, weight, int64_t{n_} * heads, shape_.head_dim, x);
  }
  // A product with the norm of x, or with x where there is no norm.
  Status NormProduct(const Matrix& m, const float* x, DevicePtr<const float> weight, float* const* y,
                     float scale = 1, float cap = 0) const {
    if (!weight) return Multiply(m, x, y, false, scale, cap);
    KVC_RETURN_IF_ERROR(Norm(x, weight, n_, shape_.hidden, rows_.norm));
    return Multiply(m, rows_.norm, y, false, scale, cap);
  }
  // y[i]: of each part.
  Status Multiply(const Matrix& m, const float* x, float* const* y, bool adds = false, float scale = 1,
                  float cap = 0) const {
    Product p{};
    p.n_parts = m.n_parts, p.cols = m.cols, p.n = n_, p.x = x, p.adds = adds, p.scale = scale, p.cap = cap;
    for (int i = 0; i < m.n_parts; ++i) {
      const Matrix::Part& part = m.parts[i];
      p.parts[i] = {At(part.data), At(part.scales), At(part.bias), y[i], part.rows,
                    p.rows,        part.group,      part.type,     0};
      p.rows += part.rows;
    }
    return Check(n_ <= kMostGemvRows ? Gemv(p, stream_) : Gemm(p, stream_), "a product");
  }
  Status Activate(Activation activation) const {
    const int64_t n = int64_t{n_} * shape_.ffn;
    return Check(KVC_LAUNCH(activate, dim3(Blocks(n)), dim3(kThreads), 0, stream_, rows_.gate, rows_.up, n,
                            activation),
                 "an activation");
  }
  // x += scale * m(y), or scale * norm of it where there is a norm behind the block.
  Status AddProduct(const Matrix& m, const float* y, DevicePtr<const float> post_norm, float scale,
                    float* x) const {
    if (!post_norm) return Multiply(m, y, &x, true, scale);
    float* out = rows_.norm;
    KVC_RETURN_IF_ERROR(Multiply(m, y, &out));
    return Norm(out, post_norm, n_, shape_.hidden, x, true, scale);
  }

 private:
  cudaStream_t stream_;
  const NetworkShape& shape_;
  const int32_t n_;
  const Rows rows_;
};

}  // namespace

Status CudaDevice::Supports(const NetworkShape& shape) const {
  const char* missing = shape.attention_sinks      ? "attention sinks"
                        : shape.clamped_activation ? "a clamped activation"
                        : shape.layer_norms        ? "layer norms"
                        : shape.parallel_blocks    ? "parallel blocks"
                                                   : nullptr;
  if (missing != nullptr)
    return Error(Code::kUnsupported, "a model with %s does not run on cuda yet; use \"cpu\"", missing);
  if (shape.n_experts == 0) return {};
  return Error(Code::kUnsupported, "a mixture of %d experts does not run on cuda yet; use \"cpu\"",
               shape.n_experts);
}

int64_t CudaDevice::NetworkScratchBytes(const NetworkShape& shape, int32_t n_rows) const {
  return Rows::Bytes(shape, n_rows);
}

Status CudaDevice::Embed(Stream* s, const EmbedArgs& a) {
  KVC_RETURN_IF_ERROR(Enter());
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, Packet::Size<int32_t>(a.n)));
  const int32_t* tokens = packet.Copy(a.tokens, a.n);
  KVC_RETURN_IF_ERROR(packet.Send());
  const Matrix::Part& t = a.table->parts[0];
  const EmbedParams p{{At(t.data), At(t.scales), nullptr, nullptr, t.rows, 0, t.group, t.type, 0},
                      a.table->cols,
                      tokens,
                      a.scale,
                      At(a.x)};
  return Check(KVC_LAUNCH(embed, dim3(static_cast<unsigned>(a.n)), dim3(kThreads), 0, StreamOf(s), p),
               "embedding");
}

Status CudaDevice::Project(Stream* s, const ProjectArgs& a) {
  KVC_RETURN_IF_ERROR(Enter());
  const LayerMath math(s, *a.shape, a.n, a.scratch);
  float* const y[] = {At(a.q), At(a.k), At(a.v)};
  KVC_RETURN_IF_ERROR(math.NormProduct(a.w->qkv, At(a.x), a.w->attention_norm, y));
  KVC_RETURN_IF_ERROR(math.HeadNorms(y[0], a.shape->n_heads, a.w->wide_norms, a.w->query_norm));
  return math.HeadNorms(y[1], a.shape->n_kv_heads, a.w->wide_norms, a.w->key_norm);
}

Status CudaDevice::Finish(Stream* s, const FinishArgs& a) {
  KVC_RETURN_IF_ERROR(Enter());
  const LayerMath math(s, *a.shape, a.n, a.scratch);
  const Rows& rows = math.rows();
  float* const halves[] = {rows.gate, rows.up};
  KVC_RETURN_IF_ERROR(
      math.AddProduct(a.w->output, At(a.attended), a.w->attention_post_norm, a.scale, At(a.x)));
  KVC_RETURN_IF_ERROR(math.NormProduct(a.w->gate_up, At(a.x), a.w->ffn_norm, halves));
  KVC_RETURN_IF_ERROR(math.Activate(a.w->activation));
  return math.AddProduct(a.w->down, rows.gate, a.w->ffn_post_norm, a.scale, At(a.x));
}

Status CudaDevice::Logits(Stream* s, const LogitsArgs& a) {
  KVC_RETURN_IF_ERROR(Enter());
  const LayerMath math(s, *a.shape, a.n, a.scratch);
  float* const logits[] = {At(a.logits)};
  return math.NormProduct(*a.head, At(a.x), a.final_norm, logits, a.scale, a.cap);
}

}  // namespace kvc::cuda
