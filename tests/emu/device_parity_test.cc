// Operations of the CUDA backend, run by the emulator, against those of the processor (whose kernels
// tests/parity holds to their definition): the same arguments, results as near as sums in another order are.
#include <string>
#include <vector>

#include "tests/emu/device_pair.h"

namespace kvc {
namespace {

// The matrices of a layer: queries, keys, values, output, gate, up, down.
void PrepareLayer(Device& d, const Weight (&m)[7], Span<const DevicePtr<const float>> of_qkv,
                  Span<const DevicePtr<const float>> of_halves, LayerMatrices* w) {
  ASSERT_TRUE(d.Prepare({m, 3}, of_qkv, MatrixUse::kProducts, &w->qkv).ok());
  ASSERT_TRUE(d.Prepare({m + 3, 1}, {}, MatrixUse::kProducts, &w->output).ok());
  ASSERT_TRUE(d.Prepare({m + 4, 2}, of_halves, MatrixUse::kProducts, &w->gate_up).ok());
  ASSERT_TRUE(d.Prepare({m + 6, 1}, {}, MatrixUse::kProducts, &w->down).ok());
}
void FreeMatrix(Device& d, const Matrix& m) {
  if (m.memory) d.Free(m.memory, m.bytes);
}
void FreeLayer(Device& d, const LayerMatrices& w) {
  for (const Matrix* m : {&w.qkv, &w.output, &w.gate_up, &w.down}) FreeMatrix(d, *m);
}

// What does not run is said when a model is opened.
TEST_F(DeviceParity, HeadsThatAreTooWideAreRefusedByName) {
  NetworkShape shape;
  shape.head_dim = 256;
  EXPECT_TRUE(devices_[1]->Supports(shape).ok());
  shape.head_dim = 258;
  EXPECT_TRUE(devices_[0]->Supports(shape).ok());
  const Status status = devices_[1]->Supports(shape);
  EXPECT_EQ(Code::kUnsupported, status.code());
  EXPECT_NE(std::string::npos, status.message().find("heads of 258 dimensions"));
}

TEST_F(DeviceParity, LayerOfEveryWeightType) {
  for (const WeightType type : kTypes) {
    for (const int32_t n : {1, 2, 3, 7, 8, 9, 33, 70}) {
      NetworkShape shape;
      shape.hidden = 96, shape.ffn = 160, shape.n_heads = 6, shape.n_kv_heads = 2, shape.head_dim = 24,
      shape.vocab = 130;
      if (HasBlocks(type)) shape.hidden = shape.ffn = 256, shape.n_heads = 8, shape.head_dim = 32;
      const int32_t q_rows = shape.n_heads * shape.head_dim, kv_rows = shape.n_kv_heads * shape.head_dim;
      const FileWeight q(type, q_rows, shape.hidden, 32, &random_),
          k(type, kv_rows, shape.hidden, 32, &random_), v(type, kv_rows, shape.hidden, 32, &random_),
          o(type, shape.hidden, q_rows, 16, &random_), gate(type, shape.ffn, shape.hidden, 32, &random_),
          up(type, shape.ffn, shape.hidden, 32, &random_), down(type, shape.hidden, shape.ffn, 32, &random_),
          head(type, shape.vocab, shape.hidden, 32, &random_);
      const auto norm = pair_->Copy(Random(static_cast<size_t>(shape.hidden)));
      const auto head_norm = pair_->Copy(Random(static_cast<size_t>(shape.head_dim)));
      const auto bias = pair_->Copy(Random(static_cast<size_t>(q_rows)));
      const auto x = pair_->Copy(Random(static_cast<size_t>(n * shape.hidden)));
      const auto qs = pair_->Copy(Random(static_cast<size_t>(n * q_rows)));
      const auto ks = pair_->Copy(Random(static_cast<size_t>(n * kv_rows)));
      const auto vs = pair_->Copy(Random(static_cast<size_t>(n * kv_rows)));
      const auto logits = pair_->Copy(Random(static_cast<size_t>(n * shape.vocab)));
      for (int i = 0; i < 2; ++i) {
        Device& d = *devices_[i];
        LayerMatrices w;
        w.attention_norm = norm.at[i], w.ffn_norm = norm.at[i], w.query_norm = head_norm.at[i];
        const DevicePtr<const float> biases[] = {bias.at[i], {}, {}};
        Matrix m;
        PrepareLayer(d, {q.w, k.w, v.w, o.w, gate.w, up.w, down.w}, {biases, 3}, {}, &w);
        if (HasFatalFailure()) return;
        ASSERT_TRUE(d.Prepare({&head.w, 1}, {}, MatrixUse::kProducts, &m).ok());
        const DeviceBytes scratch = pair_->Scratch(i, d.NetworkScratchBytes(shape, n));
        ASSERT_TRUE(
            d.Project(streams_[i].get(), {&shape, &w, x.at[i], n, qs.at[i], ks.at[i], vs.at[i], scratch})
                .ok());
        if (n % 2 == 1) w.activation = Activation::kGeluTanh, w.attention_post_norm = norm.at[i];
        ASSERT_TRUE(d.Finish(streams_[i].get(), {&shape, &w, qs.at[i], n, 0.5f, x.at[i], scratch}).ok());
        ASSERT_TRUE(
            d.Logits(streams_[i].get(), {&shape, norm.at[i], &m, x.at[i], n, 0.25f, logits.at[i], scratch})
                .ok());
        ASSERT_TRUE(
            d.Read(streams_[i].get(), x.at[i].As<const uint8_t>(), std::vector<uint8_t>(4).data(), 4).ok());
        FreeLayer(d, w);
        FreeMatrix(d, m);
      }
      // The processor rounds activations to eight bits in front of weights with codes; the other device
      // makes int8 of blocks besides.
      const double tolerance = HasCodes(type) ? 0.1 : 2e-5;
      const std::string what =
          "type " + std::to_string(static_cast<int>(type)) + ", rows " + std::to_string(n);
      pair_->ExpectNear(qs, tolerance, what + ", queries");
      pair_->ExpectNear(ks, tolerance, what + ", keys");
      pair_->ExpectNear(x, tolerance, what + ", residual");
      pair_->ExpectNear(logits, 2 * tolerance, what + ", logits");
      pair_->blocks.clear();
    }
  }
}

// Steps of one session: rows of many vectors, none of them whole to a warp; parts that end within the rows of
// a warp; norms, biases, a cap, every activation; two products, and the same bits in every order of blocks.
TEST_F(DeviceParity, OneRowOfEveryWeightType) {
  constexpr Activation kActivations[] = {Activation::kSilu, Activation::kGeluTanh,
                                         Activation::kClampedSwiglu};
  int turn = 0;
  for (const WeightType type : kTypes) {
    const Activation activation = kActivations[turn++ % 3];
    NetworkShape shape;
    shape.hidden = HasBlocks(type) ? 2304 : 2272, shape.ffn = 2560 + (HasBlocks(type) ? 0 : 32);
    shape.n_heads = 3, shape.n_kv_heads = 1, shape.head_dim = 34, shape.vocab = 131;
    const int32_t q_rows = shape.n_heads * shape.head_dim, kv_rows = shape.head_dim, h = shape.hidden;
    const FileWeight q(type, q_rows, h, 32, &random_), k(type, kv_rows, h, 32, &random_),
        v(type, kv_rows, h, 32, &random_), o(WeightType::kF32, h, q_rows, 0, &random_),
        gate(type, shape.ffn, h, 32, &random_), up(type, shape.ffn, h, 32, &random_),
        down(type, h, shape.ffn, 32, &random_), head(type, shape.vocab, h, 32, &random_);
    const auto norm = pair_->Copy(Random(static_cast<size_t>(h))),
               bias = pair_->Copy(Random(static_cast<size_t>(shape.ffn))),
               x = pair_->Copy(Random(static_cast<size_t>(h))),
               qs = pair_->Copy(Random(static_cast<size_t>(q_rows))),
               ks = pair_->Copy(Random(static_cast<size_t>(kv_rows))),
               vs = pair_->Copy(Random(static_cast<size_t>(kv_rows))),
               logits = pair_->Copy(Random(static_cast<size_t>(shape.vocab)));
    std::vector<std::vector<float>> results;
    const std::vector<float> before = pair_->Read(x, 0);
    for (int i : {0, 1, 1, 1}) {
#if defined(KVC_EMU)
      emu::GetOptions().order = static_cast<int>(results.size() % 3);
#endif
      Device& d = *devices_[i];
      LayerMatrices w;
      w.attention_norm = w.ffn_norm = norm.at[i], w.activation = activation;
      w.activation_gain = 1.7f, w.activation_limit = 0.5f;
      const DevicePtr<const float> biases[] = {bias.at[i], {}, {}};
      Matrix m;
      PrepareLayer(d, {q.w, k.w, v.w, o.w, gate.w, up.w, down.w}, {biases, 3}, {biases, 2}, &w);
      if (HasFatalFailure()) return;
      ASSERT_TRUE(d.Prepare({&head.w, 1}, {}, MatrixUse::kProducts, &m).ok());
      const DeviceBytes scratch = pair_->Scratch(i, d.NetworkScratchBytes(shape, 1));
      Stream* s = streams_[i].get();
      ASSERT_TRUE(d.Write(s, x.at[i].As<uint8_t>(), before.data(), 4 * h).ok());
      ASSERT_TRUE(d.Project(s, {&shape, &w, x.at[i], 1, qs.at[i], ks.at[i], vs.at[i], scratch}).ok());
      ASSERT_TRUE(d.Finish(s, {&shape, &w, qs.at[i], 1, 0.5f, x.at[i], scratch}).ok());
      LogitsArgs last{&shape, norm.at[i], &m, x.at[i], 1, 0.25f, logits.at[i], scratch};
      last.cap = 100;  // what is less would make errors of small logits large
      ASSERT_TRUE(d.Logits(s, last).ok());
      results.push_back(pair_->Read(x, i));
      FreeLayer(d, w);
      FreeMatrix(d, m);
    }
    EXPECT_EQ(results[1], results[2]);
    EXPECT_EQ(results[1], results[3]);
    const double tolerance = HasCodes(type) ? 0.1 : 2e-5;
    const std::string what = "type " + std::to_string(static_cast<int>(type)) + ", activation " +
                             std::to_string(static_cast<int>(activation));
    pair_->ExpectNear(qs, tolerance, what + ", queries");
    pair_->ExpectNear(vs, tolerance, what + ", values");
    pair_->ExpectNear(x, tolerance, what + ", residual");
    pair_->ExpectNear(logits, 2 * tolerance, what + ", logits");
    pair_->blocks.clear();
  }
}

// One row has kernels of its own; what they make is that of the row beside another. Exact beside the
// processor, which rounds activations in front of codes.
TEST_F(DeviceParity, OneRowIsAsOneOfTwo) {
  for (const WeightType type : kTypes) {
    NetworkShape shape;
    shape.hidden = shape.ffn = HasBlocks(type) ? 2304 : 2272;
    shape.n_heads = 1, shape.n_kv_heads = 1, shape.head_dim = 96;
    const int32_t h = shape.hidden, d = shape.head_dim;
    const FileWeight q(type, d, h, 32, &random_), k(type, d, h, 32, &random_), v(type, d, h, 32, &random_),
        o(WeightType::kF32, h, d, 0, &random_), gate(type, h, h, 32, &random_), up(type, h, h, 32, &random_),
        down(type, h, h, 32, &random_);
    const std::vector<float> x = Random(static_cast<size_t>(2 * h));
    const auto norm = pair_->Copy(Random(static_cast<size_t>(h)));
    Device& device = *devices_[1];
    LayerMatrices w;
    w.attention_norm = w.ffn_norm = norm.at[1];
    PrepareLayer(device, {q.w, k.w, v.w, o.w, gate.w, up.w, down.w}, {}, {}, &w);
    if (HasFatalFailure()) return;
    std::vector<float> got[2];
    for (const int32_t n : {1, 2}) {
      const auto rows = pair_->Copy(std::vector<float>(x.begin(), x.begin() + n * h)),
                 qs = pair_->Copy(Random(static_cast<size_t>(n * d))),
                 ks = pair_->Copy(Random(static_cast<size_t>(n * d))),
                 vs = pair_->Copy(Random(static_cast<size_t>(n * d)));
      const DeviceBytes scratch = pair_->Scratch(1, device.NetworkScratchBytes(shape, n));
      Stream* s = streams_[1].get();
      ASSERT_TRUE(device.Project(s, {&shape, &w, rows.at[1], n, qs.at[1], ks.at[1], vs.at[1], scratch}).ok());
      ASSERT_TRUE(device.Finish(s, {&shape, &w, qs.at[1], n, 1, rows.at[1], scratch}).ok());
      for (const auto* part : {&qs, &ks, &vs, &rows}) {
        const std::vector<float> all = pair_->Read(*part, 1);
        got[n - 1].insert(got[n - 1].end(), all.begin(), all.begin() + static_cast<int64_t>(all.size()) / n);
      }
    }
    ASSERT_EQ(got[0].size(), got[1].size());
    float most = 0;
    for (const float number : got[1]) most = std::max(most, std::fabs(number));
#if defined(KVC_EMU)
    // The same bits, but of codes, which one row meets as whole numbers (cuda/digits.h). On a GPU the
    // compiler chooses which products and sums are one operation.
    if (!HasCodes(type)) most = 0;
#endif
    for (size_t i = 0; i < got[0].size(); ++i)
      ASSERT_NEAR(got[0][i], got[1][i], 4e-6f * most) << "type " << static_cast<int>(type) << ", " << i;
    FreeLayer(device, w);
    pair_->blocks.clear();
  }
}

// A product whose matrices have different types: kernels are made for one.
TEST_F(DeviceParity, MatricesOfDifferentTypesInOneProduct) {
  NetworkShape shape;
  shape.hidden = 96, shape.ffn = 160, shape.n_heads = 6, shape.n_kv_heads = 2, shape.head_dim = 24;
  const int32_t q_rows = shape.n_heads * shape.head_dim, kv_rows = shape.n_kv_heads * shape.head_dim;
  const FileWeight q(WeightType::kInt8, q_rows, shape.hidden, 32, &random_),
      k(WeightType::kBf16, kv_rows, shape.hidden, 32, &random_),
      v(WeightType::kF16, kv_rows, shape.hidden, 32, &random_);
  const Weight qkv[] = {q.w, k.w, v.w};
  const auto norm = pair_->Copy(Random(static_cast<size_t>(shape.hidden)));
  for (const int32_t n : {3, 33}) {
    const auto x = pair_->Copy(Random(static_cast<size_t>(n * shape.hidden)));
    const auto qs = pair_->Copy(Random(static_cast<size_t>(n * q_rows)));
    const auto ks = pair_->Copy(Random(static_cast<size_t>(n * kv_rows)));
    const auto vs = pair_->Copy(Random(static_cast<size_t>(n * kv_rows)));
    for (int i = 0; i < 2; ++i) {
      Device& d = *devices_[i];
      LayerMatrices w;
      w.attention_norm = norm.at[i];
      ASSERT_TRUE(d.Prepare({qkv, 3}, {}, MatrixUse::kProducts, &w.qkv).ok());
      const DeviceBytes scratch = pair_->Scratch(i, d.NetworkScratchBytes(shape, n));
      ASSERT_TRUE(
          d.Project(streams_[i].get(), {&shape, &w, x.at[i], n, qs.at[i], ks.at[i], vs.at[i], scratch}).ok());
      ASSERT_TRUE(
          d.Read(streams_[i].get(), x.at[i].As<const uint8_t>(), std::vector<uint8_t>(4).data(), 4).ok());
      d.Free(w.qkv.memory, w.qkv.bytes);
    }
    pair_->ExpectNear(qs, 0.1, "queries, of codes");  // as in LayerOfEveryWeightType
    pair_->ExpectNear(ks, 2e-5, "keys, of bf16");
    pair_->ExpectNear(vs, 2e-5, "values, of f16");
  }
}

struct PromptCase {
  int32_t heads, group, d, base, n, window;
  bool seen, sinks;
};

// A layer with a prompt behind base entries of each head, and queries of its rows. Who sees those entries is
// drawn; the rows are seen by all. The first entry of every other head stands for several, where it is no
// row.
class PromptParity : public DeviceParity {
 protected:
  struct Layer {
    Pair::On<float> keys, values, q, sinks;
    Pair::On<uint32_t> seen;
    Pair::On<int32_t> positions;
    std::vector<int32_t> base, len;
    int32_t n_heads = 0;
    int64_t capacity = 0;
  };
  Layer Draw(const PromptCase& c) {
    Layer l;
    l.capacity = c.base + c.n + 7, l.n_heads = c.heads * c.group;
    std::vector<uint32_t> masks(static_cast<size_t>(c.heads * l.capacity), ~0u);
    for (size_t i = 0; i < masks.size(); ++i) {
      if (static_cast<int64_t>(i) % l.capacity < c.base) masks[i] = static_cast<uint32_t>(random_());
    }
    l.keys = pair_->Copy(Random(static_cast<size_t>(c.heads * l.capacity * c.d)));
    l.values = pair_->Copy(Random(static_cast<size_t>(c.heads * l.capacity * c.d)));
    l.q = pair_->Copy(Random(static_cast<size_t>(c.n * l.n_heads * c.d)));
    l.sinks = pair_->Copy(Random(static_cast<size_t>(l.n_heads), 3));
    l.seen = pair_->Copy(masks);
    std::vector<int32_t> positions(masks.size());
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i) % 1000;
    for (int64_t g = 0; g < c.heads && c.base > 0; g += 2)
      positions[static_cast<size_t>(g * l.capacity)] = -37;
    l.positions = pair_->Copy(positions);
    l.base.assign(static_cast<size_t>(c.heads), c.base), l.len.assign(l.base.size(), c.base + c.n);
    return l;
  }
  // As device i has it.
  static LayerView ViewOf(Layer* l, const PromptCase& c, int i) {
    LayerView view;
    view.n_kv_heads = c.heads, view.head_dim = c.d, view.capacity = l->capacity, view.has_seen = c.seen;
    view.keys = l->keys.at[i].As<uint8_t>(), view.values = l->values.at[i].As<uint8_t>(),
    view.seen = l->seen.at[i];
    view.positions = l->positions.at[i];
    view.len = l->len.data();
    return view;
  }
  static PromptAttentionArgs Attend(Layer* l, const PromptCase& c, int i, const Pair::On<float>& lse) {
    PromptAttentionArgs args{ViewOf(l, c, i),
                             {l->base.data(), 0, c.n},
                             l->n_heads,
                             c.window,
                             0.3f,
                             l->q.at[i],
                             {},
                             lse.at[i],
                             c.n};
    if (c.sinks) args.sinks = l->sinks.at[i];
    return args;
  }
  static ColumnArgs Fold(Layer* l, const PromptCase& c, int i, const Pair::On<float>& lse,
                         const Pair::On<float>& into, ColumnFold fold, int32_t limit) {
    return {ViewOf(l, c, i),
            {l->base.data(), 0, c.n},
            l->n_heads,
            limit,
            0.3f,
            l->q.at[i],
            lse.at[i],
            c.n,
            into.at[i],
            fold};
  }
};

TEST_F(PromptParity, AttentionOfPrompts) {
  for (const PromptCase& c :
       {PromptCase{1, 1, 8, 0, 1, 0, false, false}, PromptCase{2, 3, 16, 5, 40, 0, false, false},
        PromptCase{2, 2, 64, 33, 70, 0, true, false}, PromptCase{1, 7, 32, 0, 65, 16, false, false},
        PromptCase{1, 2, 256, 3, 20, 0, false, false}, PromptCase{2, 8, 64, 5, 40, 0, false, true},
        PromptCase{1, 2, 16, 0, 65, 16, false, true}, PromptCase{1, 2, 128, 40, 130, 0, false, false},
        PromptCase{1, 2, 80, 0, 129, 0, false, false}, PromptCase{1, 1, 6, 1, 66, 0, true, false},
        PromptCase{1, 2, 64, 100, 150, 48, false, false}}) {
    Layer layer = Draw(c);
    const size_t n_lse = static_cast<size_t>(layer.n_heads * c.n),
                 n_entries = static_cast<size_t>(c.heads * layer.capacity);
    const auto out = pair_->Copy(Random(n_lse * static_cast<size_t>(c.d)));
    const auto lse = pair_->Copy(Random(n_lse)), lse_alone = pair_->Copy(Random(n_lse));
    const auto sums = pair_->Copy(std::vector<float>(n_entries, 0.5f));
    const auto maxima = pair_->Copy(std::vector<float>(n_entries, 0.001f));
    const auto squares = pair_->Copy(std::vector<float>(n_entries, 0.25f));
    for (int i = 0; i < 2; ++i) {
      Device& d = *devices_[i];
      Stream* s = streams_[i].get();
      PromptAttentionArgs attend = Attend(&layer, c, i, lse);
      attend.out = out.at[i];
      ASSERT_TRUE(d.AttendPrompt(s, attend).ok());
      ASSERT_TRUE(d.AttendPrompt(s, Attend(&layer, c, i, lse_alone)).ok());
      if (c.window > 0) continue;
      ASSERT_TRUE(d.FoldColumns(s, Fold(&layer, c, i, lse, sums, ColumnFold::kSums, c.n)).ok());
      ASSERT_TRUE(d.FoldColumns(s, Fold(&layer, c, i, lse, maxima, ColumnFold::kMaxima, c.n)).ok());
      ASSERT_TRUE(d.FoldColumns(s, Fold(&layer, c, i, lse, squares, ColumnFold::kSquares, c.n)).ok());
    }
    const std::string what = "head size " + std::to_string(c.d) + (c.sinks ? ", sinks" : "");
    pair_->ExpectNear(out, 1e-5, what);
    pair_->ExpectNear(lse, 1e-5, what + ", log sum exp");
    pair_->ExpectNear(lse_alone, 1e-5, what + ", log sum exp alone");
    pair_->ExpectNear(sums, 1e-5, what + ", column sums");
    pair_->ExpectNear(maxima, 1e-5, what + ", column maxima");
    pair_->ExpectNear(squares, 1e-5, what + ", sums of squares");
    pair_->blocks.clear();
  }
}

// Both at once are the same as one after the other: an entry's largest probability, or the sum of the
// squares, over rows that all see it.
TEST_F(PromptParity, AttentionAndColumnsAtOnce) {
  for (const PromptCase& c :
       {PromptCase{2, 3, 16, 5, 40, 0, false, false}, PromptCase{2, 2, 64, 33, 70, 0, true, false},
        PromptCase{2, 8, 64, 5, 40, 0, false, true}, PromptCase{1, 2, 128, 140, 130, 0, false, false},
        PromptCase{1, 1, 6, 66, 66, 0, true, false}, PromptCase{1, 2, 32, 0, 20, 0, false, false}}) {
    Layer layer = Draw(c);
    const size_t n_lse = static_cast<size_t>(layer.n_heads * c.n), n_out = n_lse * static_cast<size_t>(c.d);
    const std::vector<float> before(static_cast<size_t>(c.heads * layer.capacity), 0.001f);
    const auto out = pair_->Copy(std::vector<float>(n_out)), apart = pair_->Copy(std::vector<float>(n_out));
    const auto lse = pair_->Copy(std::vector<float>(n_lse)),
               lse_apart = pair_->Copy(std::vector<float>(n_lse));
    const auto maxima = pair_->Copy(before), maxima_apart = pair_->Copy(before);
    const auto squares = pair_->Copy(before), squares_apart = pair_->Copy(before);
    for (int i = 0; i < 2; ++i) {
      Device& d = *devices_[i];
      Stream* s = streams_[i].get();
      PromptAttentionArgs attend = Attend(&layer, c, i, lse), attend_apart = Attend(&layer, c, i, lse_apart);
      attend.out = out.at[i], attend_apart.out = apart.at[i];
      const DeviceBytes scratch = pair_->Scratch(i, d.AttendAndFoldScratchBytes(c.n, layer.n_heads, c.base));
      ASSERT_TRUE(d.AttendAndFold(
                       s, {attend, Fold(&layer, c, i, lse, maxima, ColumnFold::kMaxima, 0), scratch, c.base})
                      .ok());
      ASSERT_TRUE(d.AttendAndFold(s, {attend, Fold(&layer, c, i, lse, squares, ColumnFold::kSquares, 0),
                                      scratch, c.base})
                      .ok());
      ASSERT_TRUE(d.AttendPrompt(s, attend_apart).ok());
      ASSERT_TRUE(
          d.FoldColumns(s, Fold(&layer, c, i, lse_apart, squares_apart, ColumnFold::kSquares, 0)).ok());
      ASSERT_TRUE(d.FoldColumns(s, Fold(&layer, c, i, lse_apart, maxima_apart, ColumnFold::kMaxima, 0)).ok());
      EXPECT_EQ(pair_->Read(out, i), pair_->Read(apart, i));
      EXPECT_EQ(pair_->Read(lse, i), pair_->Read(lse_apart, i));
    }
    const std::string what = "head size " + std::to_string(c.d);
    pair_->ExpectNear(out, 1e-5, what);
    pair_->ExpectNear(maxima, 1e-5, what + ", column maxima");
    pair_->ExpectNear(maxima_apart, 1e-5, what + ", column maxima apart");
    pair_->ExpectNear(squares, 1e-5, what + ", squares");
    const auto expect_alike = [&](const auto& together, const auto& in_turn) {
      for (int i = 0; i < 2; ++i) {
        const std::vector<float> at_once = pair_->Read(together, i), one_by_one = pair_->Read(in_turn, i);
        for (size_t t = 0; t < at_once.size(); ++t) ASSERT_NEAR(at_once[t], one_by_one[t], 1e-6) << t;
      }
    };
    expect_alike(maxima, maxima_apart);
    expect_alike(squares, squares_apart);
    pair_->blocks.clear();
  }
}

// Scores of keys, values and queries alone: heads of different lengths, one as short as a part, tokens
// missing between.
TEST_F(DeviceParity, ScoresWithoutAttention) {
  constexpr int32_t kHeads = 3, kGroup = 2, kLens[kHeads] = {300, 141, 19}, kCapacity = 310, kStride = 304,
                    kSink = 3;
  for (const int32_t d : {2, 16, 40, 128}) {
    for (const bool in_cache : {false, true}) {
      const size_t entries = static_cast<size_t>(kHeads * kCapacity);
      std::vector<int32_t> positions(entries), len(kLens, kLens + kHeads);
      for (size_t i = 0; i < entries; ++i) positions[i] = static_cast<int32_t>(i % kCapacity * 3 / 2);
      std::vector<float> raw = Random(entries * static_cast<size_t>(d));
      for (int32_t j = 0; j < d; ++j) raw[static_cast<size_t>(7 * d + j)] = 0;  // a key without direction
      const auto keys = pair_->Copy(raw), values = pair_->Copy(Random(raw.size()));
      const auto at = pair_->Copy(positions);
      constexpr int32_t kRows = 19;
      const auto queries = pair_->Copy(Random(static_cast<size_t>(kRows * kHeads * kGroup * d)));
      const Rope rope({}, d);
      for (const ScoreOp op : {ScoreOp::kKeyCosine, ScoreOp::kLag, ScoreOp::kExpected}) {
        ScoreProgram program;
        ScoreInstr& instr = program.Add(op, op == ScoreOp::kLag ? 2 : 0);
        instr.head = kSink, instr.size = 16;
        if (op == ScoreOp::kLag) program.Add(ScoreOp::kCopy, 0, 2);
        const auto scores = pair_->Copy(std::vector<float>(kHeads * kStride));
        const auto per_head = pair_->Copy(std::vector<float>(kHeads * kGroup * kStride));
        for (int i = 0; i < 2; ++i) {
          ScoreArgs a{};
          a.program = &program, a.n_heads = kHeads * kGroup, a.scale = 0.25f, a.stride = kStride;
          a.layer.n_kv_heads = kHeads, a.layer.head_dim = d, a.layer.capacity = kCapacity,
          a.layer.len = len.data();
          a.layer.keys = keys.at[i].As<uint8_t>(), a.layer.values = values.at[i].As<uint8_t>(),
          a.layer.positions = at.at[i];
          a.observed.n_rows = kRows, a.observed.n_new = kRows, a.observed.queries = queries.at[i];
          a.scores = scores.at[i], a.per_head = per_head.at[i];
          a.scratch = pair_->Scratch(
              i, devices_[i]->ScoreScratchBytes({&program, a.n_heads, kHeads, d, kRows, kStride}));
          a.turning = {&rope, d == 16 ? RopePairing::kInterleaved : RopePairing::kHalf, in_cache};
          ASSERT_TRUE(devices_[i]->Score(streams_[i].get(), a).ok());
        }
        const std::string what =
            "operation " + std::to_string(static_cast<int>(op)) + ", head size " + std::to_string(d);
        if (op == ScoreOp::kLag) {
          EXPECT_EQ(pair_->Read(scores, 0), pair_->Read(scores, 1)) << what;
        } else {
          pair_->ExpectNear(op == ScoreOp::kKeyCosine ? scores : per_head, 1e-5, what);
        }
      }
      pair_->blocks.clear();
    }
  }
}

// What recorded rows see: heads of different lengths, entries that query heads do not see, sinks, rows that
// are sharpened, more rows than a tile has.
TEST_F(DeviceParity, ScoresOfRows) {
  constexpr int kHeads = 3, kGroup = 2, kLens[kHeads] = {600, 341, 70}, kCapacity = 620, kStride = 608;
  const size_t entries = static_cast<size_t>(kHeads * kCapacity);
  for (const int32_t d : {6, 16, 64, 96, 128, 256}) {
    for (const int32_t rows : {5, 70}) {
      const bool seen = d % 64 == 0, sinks = rows == 5, gain = d == 16 || d == 128;
      std::vector<int32_t> positions(entries), len(kLens, kLens + kHeads);
      std::vector<uint32_t> masks(entries);
      for (size_t i = 0; i < entries; ++i) {
        positions[i] = static_cast<int32_t>(i % kCapacity);
        // The newest, those that were just read, are seen by all.
        const bool old = positions[i] + rows < kLens[i / kCapacity];
        masks[i] = old ? static_cast<uint32_t>(random_()) : ~0u;
      }
      const auto keys = pair_->Copy(Random(entries * static_cast<size_t>(d))), values = keys;
      const auto queries = pair_->Copy(Random(static_cast<size_t>(rows * kHeads * kGroup * d)));
      const auto at = pair_->Copy(positions);
      const auto mask = pair_->Copy(masks);
      const auto sink = pair_->Copy(Random(kHeads * kGroup, 2));
      ScoreProgram program;
      program.rows.n_rows = rows - 1;  // the newest of those that were recorded
      if (gain) program.rows.gain = RowGain::kLogLength, program.rows.gain_length = 64;
      program.Add(ScoreOp::kRows);
      const auto scores = pair_->Copy(std::vector<float>(kHeads * kStride));
      const auto per_head = pair_->Copy(std::vector<float>(kHeads * kGroup * kStride));
      for (int i = 0; i < 2; ++i) {
        ScoreArgs a{};
        a.program = &program, a.n_heads = kHeads * kGroup, a.scale = 0.25f, a.stride = kStride;
        a.layer.n_kv_heads = kHeads, a.layer.head_dim = d, a.layer.capacity = kCapacity,
        a.layer.len = len.data();
        a.layer.keys = keys.at[i].As<uint8_t>(), a.layer.values = values.at[i].As<uint8_t>(),
        a.layer.positions = at.at[i];
        a.layer.has_seen = seen, a.layer.seen = mask.at[i];
        a.observed.n_rows = rows, a.observed.n_new = rows, a.observed.queries = queries.at[i];
        a.scores = scores.at[i], a.per_head = per_head.at[i];
        if (sinks) a.sinks = sink.at[i];
        if (gain) a.cap = 3;
        a.scratch = pair_->Scratch(
            i, devices_[i]->ScoreScratchBytes({&program, a.n_heads, kHeads, d, rows, kStride}));
        ASSERT_TRUE(devices_[i]->Score(streams_[i].get(), a).ok());
      }
      pair_->ExpectNear(per_head, 1e-5, "head size " + std::to_string(d) + ", rows " + std::to_string(rows));
      pair_->blocks.clear();
    }
  }
}

// The same token from the same logits, whatever cuts them.
TEST_F(DeviceParity, Sampling) {
  int same = 0, all = 0;
  for (const int32_t n : {1, 33, 600, 5000}) {
    for (int draw = 0; draw < 24; ++draw) {
      std::vector<float> values = Random(static_cast<size_t>(n), 3);
      for (size_t i = 0; i + 5 < values.size(); i += 5) values[i] = values[i + 1];  // equal ones
      if (n > 40) values[7] = NAN, values[8] = INFINITY;
      const auto logits = pair_->Copy(values);
      const auto weights = pair_->Copy(std::vector<float>(static_cast<size_t>(n)));
      const int32_t repeated[] = {0}, tokens = n;
      const TokenBias biases[] = {{0, -1.0f}, {n / 2, 2.0f}, {n / 2, 1.0f}};
      std::vector<uint32_t> allowed(static_cast<size_t>((n + 31) / 32), 0xfffffff7u);
      int32_t token[2] = {-2, -2};
      for (int i = 0; i < 2; ++i) {
        SampleRow a;
        a.logits = logits.at[i];
        a.temperature = draw % 4 == 0 ? 0.0f : 0.7f;
        if (draw % 3 == 0) a.top_k = 10;
        if (draw % 5 == 0) a.top_p = 0.8f;
        if (draw % 7 == 0) a.min_p = 0.05f;
        if (draw % 2 == 0) a.repeated = {repeated, 1}, a.repeat_penalty = 1.3f;
        if (draw % 6 == 0) a.biases = {biases, 3};
        if (draw % 8 == 0) a.allowed = allowed.data();
        a.seed = 99, a.draw = draw;
        ASSERT_TRUE(devices_[i]->Sample(streams_[i].get(), {{&a, 1}, tokens, weights.at[i], &token[i]}).ok());
      }
      ++all, same += token[0] == token[1] ? 1 : 0;
      if (draw % 4 == 0) {
        EXPECT_EQ(token[0], token[1]) << n << " " << draw;
      }
      EXPECT_GE(token[1], 0);
      pair_->blocks.clear();
    }
  }
  EXPECT_GE(same, all - 1) << "a draw on the border of two tokens may fall to either side";
}

// Blocks and warps in any order, and kernels as late as can be or at once, give the same bits.
TEST_F(DeviceParity, OrderOfBlocksDoesNotShow) {
  constexpr int32_t kHeads = 2, kGroup = 3, kD = 16, kN = 70;
  const auto keys = pair_->Copy(Random(kHeads * kN * kD)), values = pair_->Copy(Random(kHeads * kN * kD)),
             q = pair_->Copy(Random(kN * kHeads * kGroup * kD));
  const auto positions = pair_->Copy(std::vector<int32_t>(kHeads * kN));
  const std::vector<int32_t> base(kHeads, 0);
  std::vector<int32_t> len(kHeads, kN);
  std::vector<float> first;
  for (int order = 0; order < 3; ++order) {
#if defined(KVC_EMU)
    emu::GetOptions().order = order, emu::GetOptions().eager = order == 1;
#endif
    const auto out = pair_->Copy(std::vector<float>(kN * kHeads * kGroup * kD));
    const auto sums = pair_->Copy(std::vector<float>(kHeads * kN));
    const auto lse = pair_->Copy(std::vector<float>(kHeads * kGroup * kN));
    LayerView layer;
    layer.n_kv_heads = kHeads, layer.head_dim = kD, layer.capacity = kN, layer.len = len.data();
    layer.keys = keys.at[1].As<uint8_t>(), layer.values = values.at[1].As<uint8_t>(),
    layer.positions = positions.at[1];
    const PromptRows all{base.data(), 0, kN};
    ASSERT_TRUE(devices_[1]
                    ->AttendPrompt(streams_[1].get(),
                                   {layer, all, kHeads * kGroup, 0, 0.3f, q.at[1], out.at[1], lse.at[1], kN})
                    .ok());
    ASSERT_TRUE(devices_[1]
                    ->FoldColumns(streams_[1].get(), {layer, all, kHeads * kGroup, kN, 0.3f, q.at[1],
                                                      lse.at[1], kN, sums.at[1], ColumnFold::kSums})
                    .ok());
    std::vector<float> now = pair_->Read(out, 1);
    const std::vector<float> more = pair_->Read(sums, 1);
    now.insert(now.end(), more.begin(), more.end());
    if (order == 0) first = now;
    EXPECT_EQ(first, now) << order;
  }
}

}  // namespace
}  // namespace kvc
