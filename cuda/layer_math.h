// A layer's rows of activations and what is done with them, by Project, Finish and Logits.
#pragma once
#include <algorithm>

#include "cuda/blas.h"
#include "cuda/cuda_device.h"
#include "cuda/experts.h"
#include "cuda/network.h"
#include "cuda/row_halves.h"

namespace kvc::cuda {

// Scratch of n rows. Where there are experts, the halves are those of all pairs of a row and one of its
// experts (experts.h), and besides there are:
struct Rows {
  float *norm, *gate, *up;
  float *given, *routes, *weights;  // [pairs, hidden]; [n, n_experts] logits of the router; of pairs
  int32_t *chosen, *places, *tokens;
  ExpertTile* tiles;
  RowHalves halves;  // of a product's rows, where they are many; low: of those that are not rounded
  ProductRoom room;

  // Pairs of a tile: a step reads an expert once for up to so many rows.
  static int32_t TileOf(int64_t n) { return n > kMostGemvRows ? kExpertTile : n > 3 ? 4 : n > 1 ? 2 : 1; }
  // of_blas: of LayerMath::BlasScratch.
  Rows(const NetworkShape& s, int64_t n, const LaunchTraits& traits, const BlasBytes& of_blas,
       uint8_t* memory) {
    const bool experts = s.n_experts > 0;
    const int64_t pairs = experts ? n * s.n_chosen : n, more = experts ? pairs : 0;
    Take(memory, n * s.hidden, &norm), Take(memory, pairs * s.ffn, &gate), Take(memory, pairs * s.ffn, &up);
    Take(memory, more * s.hidden, &given), Take(memory, n * s.n_experts, &routes);
    Take(memory, more, &weights), Take(memory, more, &chosen), Take(memory, more, &places);
    Take(memory, more, &tokens), Take(memory, more, &tiles);
    const int32_t widest = std::max({s.hidden, experts ? 0 : s.ffn, s.n_heads * s.head_dim});
    const bool many = n >= traits.tuning.few_rows || n > kMostGemvRows;
    const int64_t most = many ? std::max(n * widest, pairs * s.ffn) : 0;
    Take(memory, most, &halves.high);
    // Of many rows a router's alone are not rounded. What they have room for few have.
    const int64_t few = std::min<int64_t>(n, kMostGemvRows) * widest;
    const int64_t exact = experts ? std::max(n * s.hidden, few) : few;
    Take(memory, !many ? 0 : traits.rounds ? exact : most, &halves.low);
    Take(memory, many ? pairs : 0, &halves.factors);
    Take(memory, of_blas.workspace, &room.workspace);
    room.most_decoded = of_blas.decoded / static_cast<int64_t>(sizeof(uint16_t));
    Take(memory, room.most_decoded, &room.decoded);
    if (of_blas.workspace == 0) room.workspace = nullptr;
    // Also of more rows: what they have room for fewer have.
    room.n_sums = many ? MostFewSums(static_cast<int32_t>(n), traits.multiprocessors) : 0;
    Take(memory, room.n_sums, &room.sums);
  }
  static int64_t Bytes(const NetworkShape& s, int64_t n, const LaunchTraits& traits,
                       const BlasBytes& of_blas) {
    return Rows(s, n, traits, of_blas, nullptr).bytes_;
  }

 private:
  template <typename T>
  void Take(uint8_t* memory, int64_t n, T** out) {
    *out = memory == nullptr ? nullptr : reinterpret_cast<T*>(memory + bytes_);
    bytes_ += (n * static_cast<int64_t>(sizeof(T)) + 255) / 256 * 256;
  }
  int64_t bytes_ = 0;
};

class LayerMath {
 public:
  LayerMath(Stream* s, const NetworkShape& shape, int32_t n, DeviceBytes scratch, Blas* blas)
      : stream_(StreamOf(s)),
        shape_(shape),
        n_(n),
        blas_(blas),
        rows_(shape, n, stream_.traits(), BlasScratch(shape, n, stream_.traits(), *blas), At(scratch)) {}

  // Of products of many rows that were rounded, by cuBLASLt or of codes that have to be decoded. Those that
  // were not meet codes as they are.
  static BlasBytes BlasScratch(const NetworkShape& shape, int64_t n, const LaunchTraits& traits, Blas& blas) {
    if (!traits.rounds || n <= kMostGemvRows) return {0, 0};
    BlasBytes bytes = blas.ScratchOf(shape, n);
    if (shape.fine_codes && n > kMostFewRows) bytes.decoded = Blas::DecodedBytes(shape);
    return bytes;
  }

  const Rows& rows() const { return rows_; }

  // y [n, hidden]; bias: of layer norms only.
  Status Norm(const float* x, DevicePtr<const float> weight, DevicePtr<const float> bias, float* y) const {
    return Run(Of(x, weight, bias, shape_.hidden, y), n_);
  }
  // y += scale * the norm of x.
  Status AddNorm(const float* x, DevicePtr<const float> weight, float scale, float* y) const {
    NormParams p = Of(x, weight, {}, shape_.hidden, y);
    p.adds = true, p.scale = scale;
    return Run(p, n_);
  }
  // Of queries and keys: one norm of every head, or over all heads of a token.
  Status HeadNorms(float* q, float* k, const LayerMatrices& w) const {
    const auto heads_of = [](DevicePtr<const float> weight, int32_t heads) { return weight ? heads : 0; };
    const int32_t d = shape_.head_dim, of_q = heads_of(w.query_norm, shape_.n_heads),
                  of_k = heads_of(w.key_norm, shape_.n_kv_heads);
    if (w.wide_norms) {
      if (of_q > 0) KVC_RETURN_IF_ERROR(Run(Of(q, w.query_norm, {}, of_q * d, q), n_));
      return of_k > 0 ? Run(Of(k, w.key_norm, {}, of_k * d, k), n_) : Status();
    }
    if (of_q + of_k == 0) return {};
    const HeadNormParams p{{q, At(w.query_norm), of_q},
                           {k, At(w.key_norm), of_k},
                           n_,
                           d,
                           shape_.norm_eps,
                           shape_.layer_norms,
                           w.own_norms};
    return Check(NormHeads(p, stream_), "a norm of heads");
  }
  // A product with the norm of x, or with x where there is no norm. y[i]: of each part.
  Status NormProduct(const Matrix& m, const float* x, DevicePtr<const float> weight,
                     DevicePtr<const float> bias, float* const* y, float scale = 1, float cap = 0) const {
    Product p = Of(m, x, y);
    p.scale = scale, p.cap = cap;
    if (!weight) return Multiply(p, rounds());
    if (RidesAlong(p, bias)) return MultiplyRow({p, At(weight), shape_.norm_eps, false, {}});
    p.x = rows_.norm;
    const NormParams norm = Of(x, weight, bias, shape_.hidden, rows_.norm);
    if (Takes(p) && FitsShared(norm.n)) {
      p.halves = HalvesOf(rounds());
      KVC_RETURN_IF_ERROR(Check(NormHalves(norm, n_, p.halves, stream_), "a norm"));
    } else {
      KVC_RETURN_IF_ERROR(Run(norm, n_));
    }
    return Multiply(p, rounds());
  }
  // gate and up, the products with the norm of x. *activated: gate is the activation of both.
  Status GatedProduct(const LayerMatrices& w, const float* x, bool* activated) const {
    float* const halves[] = {rows_.gate, rows_.up};
    const Product p = Of(w.gate_up, x, halves);
    *activated = p.n_parts == 2 && (!w.ffn_norm ? FitsOneRow(p) : RidesAlong(p, w.ffn_norm_bias));
    if (*activated) return MultiplyRow({p, At(w.ffn_norm), shape_.norm_eps, true, RuleOf(w)});
    return NormProduct(w.gate_up, x, w.ffn_norm, w.ffn_norm_bias, halves);
  }
  // x += scale * the product behind GatedProduct.
  Status AddGated(const LayerMatrices& w, bool activated, float scale, float* x) const {
    Product p = Of(w.down, rows_.gate, nullptr);
    if (!activated) KVC_RETURN_IF_ERROR(Activate(w, n_, &p));
    return Add(p, w.ffn_post_norm, scale, x);
  }
  // Which experts work on which rows, by the router's logits of x. *halves: of x, as products of experts take
  // them, where it has made any.
  Status Route(const LayerMatrices& w, const float* x, RowHalves* halves) const {
    float* const logits[] = {rows_.routes};
    Product router = Of(w.router, x, logits);
    // Not rounded: who is chosen may hang on a near tie. The first of its two numbers is the rounded one.
    KVC_RETURN_IF_ERROR(MakeHalves(n_, false, &router));
    *halves = router.halves;
    if (rounds()) halves->low = nullptr;
    KVC_RETURN_IF_ERROR(Multiply(router, false));
    const RouteParams p{n_,           shape_.n_experts, shape_.n_chosen, w.normalise_experts,
                        rows_.routes, rows_.weights,    rows_.chosen,    rows_.places,
                        rows_.tokens, rows_.tiles,      n_tiles(),       Rows::TileOf(n_)};
    return Check(cuda::Route(p, stream_), "the choice of experts");
  }
  // gate and up [pairs, ffn] of the rows of x that were chosen for each. halves: Route's.
  Status MultiplyExperts(const LayerMatrices& w, const float* x, const RowHalves& halves) const {
    float* const both[] = {rows_.gate, rows_.up};
    Product p = OfPairs(w.gate_up, x, both);
    p.tokens = rows_.tokens;
    if (Takes(p)) p.halves = halves;
    KVC_RETURN_IF_ERROR(MakeHalves(n_, rounds(), &p));
    return MultiplyPairs(p);
  }
  // given [pairs, hidden], the product behind them.
  Status MultiplyGatedExperts(const LayerMatrices& w) const {
    const int64_t pairs = int64_t{n_} * shape_.n_chosen;
    float* const given[] = {rows_.given};
    Product p = OfPairs(w.down, rows_.gate, given);
    KVC_RETURN_IF_ERROR(Activate(w, pairs, &p));
    KVC_RETURN_IF_ERROR(MakeHalves(pairs, rounds(), &p));
    return MultiplyPairs(p);
  }
  // x += scale * what the experts of each row give, or scale * the norm of that.
  Status AddGiven(DevicePtr<const float> post_norm, float scale, float* x) const {
    const CombineParams p{n_,
                          shape_.n_chosen,
                          shape_.hidden,
                          rows_.given,
                          rows_.weights,
                          rows_.places,
                          post_norm ? rows_.norm : x,
                          !post_norm,
                          scale};
    KVC_RETURN_IF_ERROR(Check(Combine(p, stream_), "a sum of experts"));
    return post_norm ? AddNorm(rows_.norm, post_norm, scale, x) : Status();
  }
  // x += scale * m(y), or scale * norm of it where there is a norm behind the block.
  Status AddProduct(const Matrix& m, const float* y, DevicePtr<const float> post_norm, float scale,
                    float* x) const {
    return Add(Of(m, y, nullptr), post_norm, scale, x);
  }

 private:
  // Activations are one number of f16 where they meet many rows of them, two of a few.
  bool rounds() const { return stream_.traits().rounds && n_ > kMostGemvRows; }
  // AddProduct, of a product that does not know where it goes.
  Status Add(Product p, DevicePtr<const float> post_norm, float scale, float* x) const {
    p.parts[0].y = post_norm ? rows_.norm : x;
    p.adds = !post_norm, p.scale = post_norm ? 1 : scale;
    KVC_RETURN_IF_ERROR(Multiply(p, rounds()));
    return post_norm ? AddNorm(rows_.norm, post_norm, scale, x) : Status();
  }
  // The activation of gate and up, of so many rows, for p: in gate, or as its halves.
  Status Activate(const LayerMatrices& w, int64_t n_rows, Product* p) const {
    const ActivateParams params{rows_.gate, rows_.up, n_rows * shape_.ffn, RuleOf(w)};
    if (!Takes(*p) || !FitsShared(shape_.ffn)) return Check(cuda::Activate(params, stream_), "an activation");
    p->halves = HalvesOf(rounds());
    return Check(ActivateHalves(params, shape_.ffn, p->halves, stream_), "an activation");
  }
  Status MultiplyPairs(const Product& p) const {
    return Check(
        n_ <= kMostGemvRows ? GemvExperts(p, Rows::TileOf(n_), stream_) : Gemm(p, rows_.room, stream_),
        "a product of experts");
  }
  static ActivationRule RuleOf(const LayerMatrices& w) {
    return {w.activation, w.activation_gain, w.activation_limit};
  }
  // One row's product makes the norm in front of it, where no mean is taken off and nothing added.
  bool RidesAlong(const Product& p, DevicePtr<const float> bias) const {
    return !shape_.layer_norms && !bias && FitsOneRow(p);
  }
  bool HasFewRows(const Product& p) const {
    int32_t most = kMostGemvRows;
    for (int i = 0; i < p.n_parts; ++i) most = HasOffsets(p.parts[i].type) ? kMostGemvRowsOfOffsets : most;
    const int32_t few = p.tiles != nullptr ? kMostGemvRows + 1 : stream_.traits().tuning.few_rows;
    return n_ <= most && !(n_ >= few && HasGemmFew(p, rounds()));
  }
  bool Takes(const Product& p) const { return !HasFewRows(p) && TakesHalves(p); }
  RowHalves HalvesOf(bool rounds) const {
    return {rows_.halves.high, rounds ? nullptr : rows_.halves.low, rows_.halves.factors};
  }
  // Of the rows of x, where a product takes them and has none.
  Status MakeHalves(int64_t n_rows, bool rounds, Product* p) const {
    if (!Takes(*p) || p->halves.high != nullptr) return {};
    p->halves = HalvesOf(rounds);
    return Check(RoundRows(p->x, n_rows, p->cols, p->halves, stream_), "rounding");
  }
  Status Multiply(Product p, bool rounds) const {
    if (FitsOneRow(p)) return MultiplyRow({p, nullptr, 0, false, {}});
    KVC_RETURN_IF_ERROR(MakeHalves(n_, rounds, &p));
    if (rows_.room.workspace != nullptr) return Check(GemmBlas(p, rows_.room, blas_, stream_), "a product");
    return Check(HasFewRows(p) ? Gemv(p, stream_) : GemmDecoded(p, rows_.room, stream_), "a product");
  }
  Status MultiplyRow(const OneRow& o) const { return Check(GemvRow(o, stream_), "a product"); }
  NormParams Of(const float* x, DevicePtr<const float> weight, DevicePtr<const float> bias, int32_t n,
                float* y) const {
    return {x, At(weight), At(bias), n, shape_.norm_eps, shape_.layer_norms, y, false, 1};
  }
  int32_t n_tiles() const {
    return static_cast<int32_t>(
        MostExpertTiles(int64_t{n_} * shape_.n_chosen, shape_.n_experts, Rows::TileOf(n_)));
  }
  // y null: nowhere yet.
  Product Of(const Matrix& m, const float* x, float* const* y) const {
    Product p{};
    p.n_parts = m.n_parts, p.cols = m.cols, p.n = n_, p.x = x, p.scale = 1;
    for (int i = 0; i < m.n_parts; ++i) {
      const Matrix::Part& part = m.parts[i];
      const int32_t n_rows = part.rows / m.stack;
      p.parts[i] = {At(part.data), At(part.scales),
                    At(part.bias), y == nullptr ? nullptr : y[i],
                    part.factor,   n_rows,
                    p.rows,        part.group,
                    part.type,     0};
      p.rows += n_rows;
    }
    return p;
  }
  Product OfPairs(const Matrix& m, const float* x, float* const* y) const {
    Product p = Of(m, x, y);
    p.tiles = rows_.tiles, p.n_tiles = n_tiles();
    return p;
  }
  Status Run(const NormParams& p, int64_t rows) const { return Check(NormRows(p, rows, stream_), "a norm"); }

  CudaStream& stream_;
  const NetworkShape& shape_;
  const int32_t n_;
  Blas* const blas_;
  const Rows rows_;
};

}  // namespace kvc::cuda
