// Mixtures of experts: who is chosen, what a layer makes of it, and that nobody else's weights are read.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>

#include "lib/ops/cpu/cpu_device.h"
#include "lib/ops/cpu/experts.h"
#include "lib/ops/cpu/raw.h"
#include "tests/parity/cases.h"
#include "tests/support/counting_pool.h"

namespace kvc {
namespace {

using parity::MatMulData;

// Chosen experts and their weights by the definition, in double: sorted, not searched.
std::map<int32_t, double> Chosen(const std::vector<float>& logits, int32_t n_chosen, bool normalise) {
  const auto value = [&](int32_t e) {
    const double z = logits[static_cast<size_t>(e)];
    return std::isnan(z) ? -INFINITY : z;
  };
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return value(a) > value(b); });
  double all = 0, sum = 0;
  for (const int32_t e : order) all += std::exp(value(e) - value(order[0]));
  std::map<int32_t, double> weights;
  for (int32_t j = 0; j < n_chosen; ++j) {
    const int32_t e = order[static_cast<size_t>(j)];
    sum += weights[e] = std::exp(value(e) - value(order[0])) / all;
  }
  for (auto& [e, w] : weights) w /= normalise ? sum : 1;
  return weights;
}

void ExpectRoute(const KernelTable& table, std::vector<float> logits, int32_t n_chosen, bool normalise) {
  const std::map<int32_t, double> wanted = Chosen(logits, n_chosen, normalise);
  std::vector<int32_t> chosen(static_cast<size_t>(n_chosen), -1);
  std::vector<float> weights(static_cast<size_t>(n_chosen), NAN);
  cpu::Route(table, static_cast<int32_t>(logits.size()), n_chosen, normalise, logits.data(), chosen.data(),
             weights.data());
  size_t j = 0;
  for (const auto& [expert, weight] : wanted) {  // ascending
    ASSERT_EQ(expert, chosen[j]) << table.name;
    ASSERT_NEAR(weight, weights[j++], 1e-6) << table.name;
  }
}

TEST(Experts, TheLargestAreChosenAndTiesGoToTheLowerNumber) {
  for (const KernelTable* table : parity::Tables()) {
    parity::Random random(7);
    for (const int32_t n : {1, 2, 5, 8, 60, 128}) {
      for (int32_t n_chosen = 1; n_chosen <= n; n_chosen = 2 * n_chosen + 1) {
        for (const bool normalise : {false, true}) {
          ExpectRoute(*table, random.Floats(n, -8, 8), n_chosen, normalise);
          std::vector<float> ties = random.Floats(n, 0, 3);
          for (float& z : ties) z = std::floor(z);
          ExpectRoute(*table, ties, n_chosen, normalise);
        }
      }
    }
    ExpectRoute(*table, {0, 0, 0, 0}, 2, true);
    ExpectRoute(*table, {-INFINITY, 1, -INFINITY, 1}, 3, true);
    ExpectRoute(*table, {200, -200, 199, -200}, 4, false);
  }
}

// A model file is not asked for sense: whatever comes out of the products, numbers of experts are chosen.
TEST(Experts, SomeAreChosenWhateverTheLogits) {
  for (const std::vector<float>& logits :
       {std::vector<float>{NAN, NAN, NAN}, {INFINITY, NAN, INFINITY}, {-INFINITY, -INFINITY, NAN}}) {
    std::vector<float> line = logits;
    int32_t chosen[2] = {-1, -1};
    float weights[2];
    cpu::Route(BestKernels(), 3, 2, true, line.data(), chosen, weights);
    EXPECT_LE(0, chosen[0]);
    EXPECT_LT(chosen[0], chosen[1]);
    EXPECT_LT(chosen[1], 3);
  }
}

struct Shape {
  WeightType type;
  int32_t group, ffn, n_experts, n_chosen;
};
constexpr int32_t kHidden = 96;
// Sizes of experts that panels hold, and others.
const Shape kShapes[] = {{WeightType::kF32, 0, 32, 6, 2},     {WeightType::kF32, 0, 40, 9, 4},
                         {WeightType::kBf16, 0, 48, 1, 1},    {WeightType::kInt8, 32, 64, 16, 8},
                         {WeightType::kInt4, 32, 32, 300, 3}, {WeightType::kInt4, 8, 24, 5, 5}};

// Which bytes of weights the products read.
std::map<const uint8_t*, int64_t> g_read;
const KernelTable* g_counted = nullptr;

void Count(const MatMulArgs& a) {
  const int64_t row_bytes = WeightRowBytes(a.w->type, a.w->cols);
  const uint8_t* data = static_cast<const uint8_t*>(a.w->data) + a.row_begin * row_bytes;
  g_read[data] += (a.row_end - a.row_begin) * row_bytes;
}
void CountedRows(const MatMulArgs& a) { Count(a), g_counted->matmul(a); }
void CountedPanels(const MatMulArgs& a) { Count(a), g_counted->matmul_panels(a); }

class Layer {
 public:
  Layer(cpu::CpuDevice* device, const Shape& s, bool normalise)
      : s_(s),
        device_(device),
        output_({WeightType::kF32, kHidden, 16, 0, 1}),
        router_({WeightType::kF32, s.n_experts, kHidden, 0, 1}),
        gate_({s.type, s.n_experts * s.ffn, kHidden, s.group, 1}),
        up_({s.type, s.n_experts * s.ffn, kHidden, s.group, 2}),
        down_({s.type, s.n_experts * kHidden, s.ffn, s.group, 1}),
        norm_(parity::Random(5).Floats(kHidden, 0.5f, 1.5f)) {
    shape.hidden = kHidden, shape.ffn = s.ffn, shape.n_heads = shape.n_kv_heads = 1, shape.head_dim = 16;
    shape.n_experts = s.n_experts, shape.n_chosen = s.n_chosen;
    Prepare({&output_}, 1, &w.output), Prepare({&router_}, 1, &w.router);
    Prepare({&gate_, &up_}, s.n_experts, &w.gate_up), Prepare({&down_}, s.n_experts, &w.down);
    w.ffn_norm = AddressOf<const float>(norm_.data());
    w.normalise_experts = normalise;
  }
  ~Layer() {
    for (const Matrix* m : {&w.output, &w.router, &w.gate_up, &w.down})
      if (m->bytes > 0) device_->Free(m->memory, m->bytes);
  }

  // Attention gave nothing.
  std::vector<float> Run(const std::vector<float>& x, float scale = 1) const {
    const int32_t n = static_cast<int32_t>(x.size()) / kHidden;
    std::vector<float> out = x;
    const std::vector<float> attended(static_cast<size_t>(n) * 16, 0.0f);
    DeviceBytes scratch;
    const int64_t bytes = device_->NetworkScratchBytes(shape, n);
    EXPECT_TRUE(device_->Allocate(bytes, "scratch", &scratch).ok());
    EXPECT_TRUE(device_
                    ->Finish(nullptr, {&shape, &w, AddressOf<const float>(attended.data()), n, scale,
                                       AddressOf(out.data()), scratch})
                    .ok());
    device_->Free(scratch, bytes);
    return out;
  }

  // The logits of the router for the norm of a row.
  std::vector<float> Logits(const float* x) const {
    std::vector<float> logits;
    const std::vector<double> h = Normed(x);
    for (int32_t e = 0; e < s_.n_experts; ++e) logits.push_back(static_cast<float>(Dot(router_, e, h)));
    return logits;
  }

  // By the definition, in double; activations of codes are rounded as theirs says.
  std::vector<double> Expected(const float* x, double scale) const {
    const std::vector<double> h = Normed(x);
    std::vector<double> out(x, x + kHidden);
    const std::vector<double> input = Rounded(h);
    for (const auto& [e, weight] : Chosen(Logits(x), s_.n_chosen, w.normalise_experts)) {
      std::vector<double> inner;
      for (int32_t j = 0; j < s_.ffn; ++j) {
        const double gate = Dot(gate_, e * s_.ffn + j, input);
        inner.push_back(gate / (1 + std::exp(-gate)) * Dot(up_, e * s_.ffn + j, input));
      }
      inner = Rounded(inner);
      for (int32_t j = 0; j < kHidden; ++j)
        out[static_cast<size_t>(j)] += scale * weight * Dot(down_, e * kHidden + j, inner);
    }
    return out;
  }

  NetworkShape shape;
  LayerMatrices w;

 private:
  void Prepare(const std::vector<const MatMulData*>& parts, int32_t stack, Matrix* out) {
    std::vector<Weight> weights;
    for (const MatMulData* part : parts) weights.push_back(part->weight()), weights.back().stack = stack;
    ASSERT_TRUE(device_->Prepare(weights, {}, MatrixUse::kProducts, out).ok());
    ASSERT_EQ(device_->PreparedBytes(weights, MatrixUse::kProducts), out->bytes);
  }
  std::vector<double> Normed(const float* x) const {
    double squares = 0;
    for (int32_t j = 0; j < kHidden; ++j) squares += double{x[j]} * double{x[j]};
    std::vector<double> h;
    for (int32_t j = 0; j < kHidden; ++j)
      h.push_back(double{x[j]} / std::sqrt(squares / kHidden + double{shape.norm_eps}) *
                  double{norm_[static_cast<size_t>(j)]});
    return h;
  }
  std::vector<double> Rounded(std::vector<double> x) const {
    for (size_t at = 0; s_.group > 0 && at < x.size(); at += static_cast<size_t>(s_.group)) {
      double largest = 0;
      for (size_t j = at; j < at + static_cast<size_t>(s_.group); ++j)
        largest = std::max(largest, std::fabs(x[j]));
      const double step = largest > 0 ? largest / 127 : 1;
      for (size_t j = at; j < at + static_cast<size_t>(s_.group); ++j)
        x[j] = std::nearbyint(x[j] / step) * step;
    }
    return x;
  }
  static double Dot(const MatMulData& m, int32_t row, const std::vector<double>& x) {
    double sum = 0;
    for (size_t j = 0; j < x.size(); ++j) sum += m.WeightValue(row, static_cast<int32_t>(j)) * x[j];
    return sum;
  }

  const Shape s_;
  cpu::CpuDevice* device_;
  const MatMulData output_, router_, gate_, up_, down_;
  const std::vector<float> norm_;
};

class CountingDevice final : public cpu::CpuDevice {
 public:
  CountingDevice(const KernelTable& kernels, int64_t* runs)
      : CpuDevice(std::make_unique<test::CountingPool>(runs), kernels) {}
};

std::vector<float> SomeRows(int32_t n) { return parity::Random(3).Floats(int64_t{n} * kHidden); }

std::vector<float> Row(const std::vector<float>& x, int32_t i) {
  return {x.begin() + i * kHidden, x.begin() + (i + 1) * kHidden};
}

TEST(Experts, ALayerGivesWhatItsDefinitionSays) {
  for (const KernelTable* table : parity::Tables()) {
    for (const Shape& s : kShapes) {
      for (const bool normalise : {false, true}) {
        int64_t runs = 0;
        CountingDevice device(*table, &runs);
        const Layer layer(&device, s, normalise);
        const std::vector<float> x = SomeRows(20), got = layer.Run(x, 0.5f);
        // A code of an activation may fall to the other side of a half; in bf16 each is off by up to 1/512.
        const double tolerance = s.group > 0 ? 2e-3 : parity::TakesPairs(*table, s.type) ? 1e-2 : 2e-5;
        for (int32_t i = 0; i < 20; i += 3) {
          const std::vector<double> wanted = layer.Expected(&x[static_cast<size_t>(i) * kHidden], 0.5);
          double largest = 1;
          for (const double v : wanted) largest = std::max(largest, std::fabs(v));
          for (size_t j = 0; j < kHidden; ++j) {
            ASSERT_NEAR(wanted[j], got[static_cast<size_t>(i) * kHidden + j], tolerance * largest)
                << table->name << " row " << i << " column " << j;
          }
        }
      }
    }
  }
}

TEST(Experts, ABatchIsItsRowsWhateverTheThreads) {
  for (const KernelTable* table : parity::Tables()) {
    for (const Shape& s : kShapes) {
      int64_t runs = 0;
      CountingDevice device(*table, &runs);
      auto pool = ThreadPool::Create(3);
      ASSERT_TRUE(pool.ok());
      cpu::CpuDevice threaded(std::move(pool.value()), *table);
      const Layer layer(&device, s, true), other(&threaded, s, true);
      const std::vector<float> x = SomeRows(300), all = layer.Run(x);
      EXPECT_EQ(all, other.Run(x)) << table->name;
      for (int32_t i = 0; i < 300; i += 23) ASSERT_EQ(Row(all, i), layer.Run(Row(x, i))) << table->name;
    }
  }
}

// What the gate and up matrices of the experts that `rows` chose take, and their down matrices.
int64_t BytesOfChosen(const Layer& layer, const Shape& s, const std::vector<float>& x) {
  std::map<int32_t, double> chosen;
  for (size_t i = 0; i < x.size(); i += kHidden)
    for (const auto& [e, w] : Chosen(layer.Logits(&x[i]), s.n_chosen, false)) chosen[e] = w;
  return static_cast<int64_t>(chosen.size()) *
         (2 * s.ffn * WeightRowBytes(s.type, kHidden) + kHidden * WeightRowBytes(s.type, s.ffn));
}

TEST(Experts, OnlyTheChosenAreReadAndOnceEach) {
  for (const KernelTable* table : parity::Tables()) {
    for (const Shape& s : kShapes) {
      KernelTable counting = *table;
      g_counted = table, counting.matmul = CountedRows, counting.matmul_panels = CountedPanels;
      int64_t runs = 0;
      CountingDevice device(counting, &runs);
      const Layer layer(&device, s, true);
      for (const int32_t n : {1, 2, 100}) {
        const std::vector<float> x = SomeRows(n);
        g_read.clear();
        layer.Run(x);
        int64_t read = 0;
        for (const auto& [data, bytes] : g_read) read += bytes;
        const int64_t others = 4 * (int64_t{kHidden} * 16 + int64_t{s.n_experts} * kHidden);
        EXPECT_EQ(others + BytesOfChosen(layer, s, x), read) << table->name << " " << n << " rows";
      }
    }
  }
}

TEST(Experts, AStepOfOneRowMeetsNoMoreThreadsThanItHasProducts) {
  int64_t runs = 0;
  CountingDevice device(BestKernels(), &runs);
  const Layer layer(&device, {WeightType::kF32, 0, 512, 8, 4}, true);
  runs = 0;
  layer.Run(SomeRows(1));
  EXPECT_LE(runs, 4);  // output, router, gate and up, down
  EXPECT_GE(runs, 2);
}

}  // namespace
}  // namespace kvc
