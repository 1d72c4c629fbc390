// The parts of a layer around its attention. Bytes of a step: every weight once. Norms and activations are
// kernels of their own; sums and biases ride in the products.
#include "cuda/launch.h"
#include "cuda/layer_math.h"

namespace kvc::cuda {
namespace {

// What a step does to entries beside its attention has nothing that a layer's products read or write.
constexpr LaunchOrder kBesideNone{false, 0, 0};

struct EmbedParams {
  Part table;
  int32_t cols;
  const int32_t* tokens;
  float scale;
  float* x;
};
__global__ void embed(const EmbedParams p) {
  LetNextBegin();
  WaitForEarlier();
  const int32_t token = p.tokens[blockIdx.x];
  float* row = p.x + static_cast<int64_t>(blockIdx.x) * p.cols;
  for (int32_t j = ThreadOfBlock(); j < p.cols; j += BlockThreads())
    row[j] = WeightElement(p.table, p.cols, token, j) * p.scale;
}

// x += scale * what the experts of each row give. Bytes: of the experts those that some row has chosen.
Status AddExperts(const LayerMath& math, const FinishArgs& a, float* x) {
  const LayerMatrices& w = *a.w;
  const Rows& rows = math.rows();
  const float* h = w.ffn_norm ? rows.norm : x;
  if (w.ffn_norm) KVC_RETURN_IF_ERROR(math.Norm(x, w.ffn_norm, w.ffn_norm_bias, rows.norm));
  RowHalves halves{};
  KVC_RETURN_IF_ERROR(math.Route(w, h, &halves));
  KVC_RETURN_IF_ERROR(math.MultiplyExperts(w, h, halves));
  KVC_RETURN_IF_ERROR(math.MultiplyGatedExperts(w));
  return math.AddGiven(w.ffn_post_norm, a.scale, x);
}

}  // namespace

void AddNetworkKernels(KernelLoader* loader) { KVC_ADD_STEP(loader, embed, 0); }

Status CudaDevice::Supports(const NetworkShape& shape) const { return CheckHeadSize(shape.head_dim); }

int64_t CudaDevice::NetworkScratchBytes(const NetworkShape& shape, int32_t n_rows) const {
  return Rows::Bytes(shape, n_rows, traits_, LayerMath::BlasScratch(shape, n_rows, traits_, *blas_));
}

Status CudaDevice::Embed(Stream* s, const EmbedArgs& a) {
  KVC_ENTER();
  Packet packet;
  KVC_RETURN_IF_ERROR(packet.Begin(s, Packet::Size<int32_t>(a.n)));
  const int32_t* tokens = packet.Copy(a.tokens, a.n);
  KVC_RETURN_IF_ERROR(packet.Send());
  const Matrix::Part& t = a.table->parts[0];
  const EmbedParams p{{At(t.data), At(t.scales), nullptr, nullptr, 1, t.rows, 0, t.group, t.type, 0},
                      a.table->cols,
                      tokens,
                      a.scale * t.factor,
                      At(a.x)};
  return Check(KVC_LAUNCH_EARLY(embed, dim3(static_cast<unsigned>(a.n)), dim3(128), 0, StreamOf(s), p),
               "embedding");
}

Status CudaDevice::Project(Stream* s, const ProjectArgs& a) {
  KVC_ENTER();
  const InOrder apart(StreamOf(s), kBesideNone);
  const LayerMath math(s, *a.shape, a.n, a.scratch, blas_.get());
  const LayerMatrices& w = *a.w;
  float* const y[] = {At(a.q), At(a.k), At(a.v)};
  KVC_RETURN_IF_ERROR(math.NormProduct(w.qkv, At(a.x), w.attention_norm, w.attention_norm_bias, y));
  return math.HeadNorms(y[0], y[1], w);
}

Status CudaDevice::Finish(Stream* s, const FinishArgs& a) {
  KVC_ENTER();
  const InOrder apart(StreamOf(s), kBesideNone);
  const LayerMath math(s, *a.shape, a.n, a.scratch, blas_.get());
  const LayerMatrices& w = *a.w;
  float* const x = At(a.x);
  const auto add_attended = [&] {
    return math.AddProduct(w.output, At(a.attended), w.attention_post_norm, a.scale, x);
  };
  // Beside the attention the feed-forward part reads x first; its halves are not touched by what follows.
  if (!a.shape->parallel_blocks) KVC_RETURN_IF_ERROR(add_attended());
  if (a.shape->n_experts > 0) return AddExperts(math, a, x);
  bool activated = false;
  KVC_RETURN_IF_ERROR(math.GatedProduct(w, x, &activated));
  if (a.shape->parallel_blocks) KVC_RETURN_IF_ERROR(add_attended());
  return math.AddGated(w, activated, a.scale, x);
}

Status CudaDevice::Logits(Stream* s, const LogitsArgs& a) {
  KVC_ENTER();
  const LayerMath math(s, *a.shape, a.n, a.scratch, blas_.get());
  float* const logits[] = {At(a.logits)};
  return math.NormProduct(*a.head, At(a.x), a.final_norm, a.final_norm_bias, logits, a.scale, a.cap);
}

}  // namespace kvc::cuda
