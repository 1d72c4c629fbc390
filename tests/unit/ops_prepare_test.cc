// The network over prepared weights: what Prepare takes, that a batch is its rows, and how often threads
// meet.
#include <gtest/gtest.h>

#include <array>
#include <memory>

#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/matmul.h"
#include "lib/ops/cpu/raw.h"
#include "tests/parity/cases.h"
#include "tests/support/counting_pool.h"

namespace kvc {
namespace {

using parity::MatMulData;
using test::CountingPool;

class TestDevice final : public cpu::CpuDevice {
 public:
  TestDevice(const KernelTable& kernels, int64_t* runs)
      : CpuDevice(std::make_unique<CountingPool>(runs), kernels) {}
  Status Allocate(int64_t bytes, const char* what, DeviceBytes* out) override {
    if (fail) return Error(Code::kMemory, "no memory for %s", what);
    held += bytes;
    return CpuDevice::Allocate(bytes, what, out);
  }
  // Memory apart from what this one watches would not be seen.
  Status AllocateWeights(int64_t bytes, DeviceBytes* out) override { return Allocate(bytes, "weights", out); }
  void Free(DeviceBytes at, int64_t bytes) override {
    held -= bytes;
    CpuDevice::Free(at, bytes);
  }
  bool fail = false;
  int64_t held = 0;
};

struct Kind {
  WeightType type;
  int32_t group;
};
constexpr Kind kF32{WeightType::kF32, 0}, kBf16{WeightType::kBf16, 0}, kF16{WeightType::kF16, 0},
    kInt8{WeightType::kInt8, 32}, kInt8Wide{WeightType::kInt8, 64}, kInt4{WeightType::kInt4, 32},
    kQ4K{WeightType::kQ4K, 32}, kQ6K{WeightType::kQ6K, 16};

// Of query, key, value, output, gate, up, down.
using Kinds = std::array<Kind, 7>;
constexpr Kinds All(Kind k) { return {k, k, k, k, k, k, k}; }
const Kinds kKinds[] = {
    All(kF32),
    All(kBf16),
    All(kF16),
    All(kInt8),
    All(kInt4),
    {kInt8, kInt4, kF32, kInt4, kInt8, kInt4, kBf16},          // one rounding serves all of each matrix
    {kInt8, kInt8Wide, kInt8, kF16, kInt8Wide, kInt4, kInt8},  // more than one is needed
    All(kQ4K),
    All(kQ6K),
    {kQ4K, kQ4K, kQ6K, kQ4K, kQ4K, kQ4K, kQ6K}};  // as files mix them

// A layer of random weights.
class Layer {
 public:
  Layer(TestDevice* device, const Kinds& kinds, bool norms) : device_(device) {
    shape.hidden = 192, shape.ffn = 320, shape.n_heads = 8, shape.n_kv_heads = 2, shape.head_dim = 24,
    shape.vocab = 70;
    if (HasBlocks(kinds[0].type)) shape.hidden = 256, shape.ffn = 512, shape.head_dim = 32;
    const int32_t queries = shape.n_heads * shape.head_dim, keys = shape.n_kv_heads * shape.head_dim;
    // Every input is a multiple of the groups.
    Fill({{kinds[0], queries}, {kinds[1], keys}, {kinds[2], keys}}, shape.hidden, &w.qkv);
    Fill({{kinds[3], shape.hidden}}, queries, &w.output);
    Fill({{kinds[4], shape.ffn}, {kinds[5], shape.ffn}}, shape.hidden, &w.gate_up);
    Fill({{kinds[6], shape.hidden}}, shape.ffn, &w.down);
    parity::Random random(5);
    vectors_ = random.Floats(4 * shape.hidden + 2 * shape.head_dim, 0.5f, 1.5f);
    const auto vector = [&](int64_t at) { return AddressOf<const float>(vectors_.data() + at); };
    w.attention_norm = vector(0), w.ffn_norm = vector(shape.hidden);
    if (!norms) return;
    w.attention_post_norm = vector(2 * shape.hidden), w.ffn_post_norm = vector(3 * shape.hidden);
    w.query_norm = vector(4 * shape.hidden), w.key_norm = vector(4 * shape.hidden + shape.head_dim);
    w.activation = Activation::kGeluTanh;
  }
  ~Layer() {
    for (const Matrix* m : {&w.qkv, &w.output, &w.gate_up, &w.down})
      if (m->bytes > 0) device_->Free(m->memory, m->bytes);
  }
  Layer(const Layer&) = delete;

  // q, k, v of x, then x behind the layer whose attention gave x's first columns, in one vector.
  std::vector<float> Run(const std::vector<float>& x, int32_t n, float scale = 1) const {
    const size_t rows = static_cast<size_t>(n), queries = static_cast<size_t>(shape.n_heads * shape.head_dim),
                 keys = static_cast<size_t>(shape.n_kv_heads * shape.head_dim),
                 hidden = static_cast<size_t>(shape.hidden);
    std::vector<float> q(rows * queries, NAN), k(rows * keys, NAN), v(rows * keys, NAN), after = x;
    DeviceBytes scratch;
    const int64_t bytes = device_->NetworkScratchBytes(shape, n);
    EXPECT_TRUE(device_->Allocate(bytes, "scratch", &scratch).ok());
    EXPECT_TRUE(device_
                    ->Project(nullptr, {&shape, &w, AddressOf<const float>(x.data()), n, AddressOf(q.data()),
                                        AddressOf(k.data()), AddressOf(v.data()), scratch})
                    .ok());
    EXPECT_TRUE(device_
                    ->Finish(nullptr, {&shape, &w, AddressOf<const float>(q.data()), n, scale,
                                       AddressOf(after.data()), scratch})
                    .ok());
    device_->Free(scratch, bytes);
    std::vector<float> out;
    for (size_t i = 0; i < rows; ++i) {
      const auto add = [&](const std::vector<float>& from, size_t width) {
        out.insert(out.end(), from.begin() + static_cast<ptrdiff_t>(i * width),
                   from.begin() + static_cast<ptrdiff_t>((i + 1) * width));
      };
      add(q, queries), add(k, keys), add(v, keys), add(after, hidden);
    }
    return out;
  }

  NetworkShape shape;
  LayerMatrices w;

 private:
  void Fill(const std::vector<std::pair<Kind, int32_t>>& parts, int32_t cols, Matrix* out) {
    std::vector<Weight> weights;
    std::vector<DevicePtr<const float>> biases;
    for (const auto& [kind, rows] : parts) {
      data_.push_back(std::make_unique<MatMulData>(parity::MatMulCase{kind.type, rows, cols, kind.group, 1}));
      weights.push_back(data_.back()->weight());
      biases.push_back(AddressOf(parts.size() == 3 ? data_.back()->args.bias : nullptr));
    }
    const int64_t before = device_->held;
    ASSERT_TRUE(device_->Prepare(weights, biases, MatrixUse::kProducts, out).ok());
    EXPECT_EQ(device_->PreparedBytes(weights, MatrixUse::kProducts), device_->held - before);
    EXPECT_EQ(device_->held - before, out->bytes);
  }
  TestDevice* device_;
  std::vector<std::unique_ptr<MatMulData>> data_;
  std::vector<float> vectors_;
};

TEST(Network, ABatchIsItsRows) {
  for (const KernelTable* table : parity::Tables()) {
    for (const Kinds& kinds : kKinds) {
      for (bool norms : {false, true}) {
        int64_t runs = 0;
        TestDevice device(*table, &runs);
        const Layer layer(&device, kinds, norms);
        const size_t hidden = static_cast<size_t>(layer.shape.hidden);
        const std::vector<float> x = parity::Random(3).Floats(150 * layer.shape.hidden);
        const std::vector<float> all = layer.Run(x, 150, norms ? 0.5f : 1.0f);
        const size_t width = all.size() / 150;
        for (size_t i = 0; i < 150; i += 7) {
          const std::vector<float> row(x.begin() + static_cast<ptrdiff_t>(i * hidden),
                                       x.begin() + static_cast<ptrdiff_t>((i + 1) * hidden));
          const std::vector<float> one = layer.Run(row, 1, norms ? 0.5f : 1.0f);
          ASSERT_EQ(0, std::memcmp(one.data(), &all[i * width], 4 * width)) << table->name << " row " << i;
        }
      }
    }
  }
}

// Kernels that are nobody's but the reference's leave the weights where they lie.
TEST(Network, PreparedWeightsGiveTheReferencesNumbers) {
  for (const Kinds& kinds : kKinds) {
    int64_t runs = 0;
    TestDevice plain(ReferenceKernels(), &runs);
    const Layer reference(&plain, kinds, true);
    EXPECT_EQ(0, plain.held);
    const std::vector<float> x = parity::Random(4).Floats(3 * reference.shape.hidden);
    const std::vector<float> wanted = reference.Run(x, 3);
    for (const KernelTable* table : parity::Tables()) {
      TestDevice device(*table, &runs);
      const Layer layer(&device, kinds, true);
      EXPECT_EQ(table->prefers_panels, device.held > 0);
      const std::vector<float> got = layer.Run(x, 3);
      // A code of an activation may fall to the other side of a half: a step of 1/127 of one of 32 products.
      // Where activations become bf16 each is off by up to 1/512 of itself.
      const double tolerance = table->round_row != nullptr ? 5e-2 : 2e-2;
      for (size_t i = 0; i < wanted.size(); ++i)
        ASSERT_NEAR(wanted[i], got[i], tolerance) << table->name << " " << i;
    }
  }
}

TEST(Network, ThreadsMeetFourTimesALayerBesideAttention) {
  for (const Kind& kind : {kF32, kInt8, kInt4, kQ4K}) {
    int64_t runs = 0;
    TestDevice device(BestKernels(), &runs);
    const Layer layer(&device, All(kind), false);
    const std::vector<float> x = parity::Random(3).Floats(layer.shape.hidden);
    runs = 0;
    layer.Run(x, 1);
    // A product this small may be done at once; none takes more than one meeting.
    EXPECT_LE(runs, 4);
    EXPECT_GE(runs, 1);
  }
}

TEST(Prepare, StoredPanelsAndRowsForLookUpStayWhereTheyAre) {
  int64_t runs = 0;
  TestDevice device(BestKernels(), &runs);
  for (const Kind& kind : {kF32, kBf16, kInt8, kInt4, kQ4K, kQ6K}) {
    const MatMulData data({kind.type, 40, 256, kind.group, 1});
    const parity::PackedWeight packed(data.weight());
    Matrix m;
    EXPECT_EQ(0, device.PreparedBytes({&packed.weight, 1}, MatrixUse::kProducts));
    ASSERT_TRUE(device.Prepare({&packed.weight, 1}, {}, MatrixUse::kProducts, &m).ok());
    EXPECT_EQ(packed.weight.data, PartOf(m, 0).data);
    EXPECT_EQ(0, m.bytes);
    ASSERT_TRUE(device.Prepare({&data.weight(), 1}, {}, MatrixUse::kRows, &m).ok());
    EXPECT_EQ(data.weight().data, PartOf(m, 0).data);
    EXPECT_EQ(0, m.bytes);
  }
  EXPECT_EQ(0, device.held);
}

TEST(Prepare, ShapesThatPanelsDoNotFitStayInRowMajor) {
  int64_t runs = 0;
  TestDevice device(BestKernels(), &runs);
  const MatMulData data({WeightType::kInt4, 40, 60, 20, 1});
  Matrix m;
  ASSERT_TRUE(device.Prepare({&data.weight(), 1}, {}, MatrixUse::kProducts, &m).ok());
  EXPECT_EQ(data.weight().data, PartOf(m, 0).data);
  EXPECT_EQ(0, device.held);
}

TEST(Prepare, FailsWithoutMemoryAndHoldsNothing) {
  int64_t runs = 0;
  TestDevice device(BestKernels(), &runs);
  if (!BestKernels().prefers_panels) GTEST_SKIP() << "nothing is packed for these kernels";
  const MatMulData data({WeightType::kInt8, 40, 64, 32, 1});
  Matrix m;
  device.fail = true;
  const Status status = device.Prepare({&data.weight(), 1}, {}, MatrixUse::kProducts, &m);
  EXPECT_EQ(Code::kMemory, status.code());
  EXPECT_EQ(0, m.bytes);
  EXPECT_EQ(0, device.held);
}

TEST(Prepare, AMatrixInPanelsIsATableToo) {
  for (const KernelTable* table : parity::Tables()) {
    for (const Kind& kind : {kF32, kF16, kBf16, kInt8, kInt4, kQ4K, kQ6K}) {
      int64_t runs = 0;
      TestDevice device(*table, &runs);
      const MatMulData data({kind.type, 70, 256, kind.group, 1});
      Matrix packed, plain;
      ASSERT_TRUE(device.Prepare({&data.weight(), 1}, {}, MatrixUse::kProducts, &packed).ok());
      ASSERT_TRUE(device.Prepare({&data.weight(), 1}, {}, MatrixUse::kRows, &plain).ok());
      NetworkShape shape;
      shape.hidden = 256;
      const int32_t tokens[] = {69, 0, 17, 15, 16, 69};
      std::vector<float> a(6 * 256, NAN), b(6 * 256, NAN);
      ASSERT_TRUE(device.Embed(nullptr, {&shape, &packed, tokens, 6, 3.0f, AddressOf(a.data())}).ok());
      ASSERT_TRUE(device.Embed(nullptr, {&shape, &plain, tokens, 6, 3.0f, AddressOf(b.data())}).ok());
      EXPECT_EQ(a, b) << table->name;
      if (packed.bytes > 0) device.Free(packed.memory, packed.bytes);
    }
  }
}

}  // namespace
}  // namespace kvc
