// Activations of prompts that become f16 in front of products (KVC_CUDA_ROUND): the products are those of
// activations that were such numbers before, in rows of every magnitude. What it does to a model:
// gpu_rounding_test, reference_quantised_test.
#include <string>
#include <vector>

#include "lib/ops/weight_blocks.h"
#include "tests/emu/device_pair.h"
#include "tests/support/environment.h"

namespace kvc {
namespace {

constexpr char kSwitch[] = "KVC_CUDA_ROUND";
// Of the largest: second halves are zero where activations are numbers of f16. The emulated device adds them
// exactly; what tensor cores make of a sum and zeros is their affair.
#if defined(KVC_EMU)
constexpr double kSame = 0;
#else
constexpr double kSame = 2e-6;
#endif

std::vector<float> RoundedToF16(std::vector<float> x) {
  for (float& v : x) v = F16ToFloat(FloatToF16(v));
  return x;
}
std::vector<float> RoundedIf(bool rounds, std::vector<float> x) {
  return rounds ? RoundedToF16(std::move(x)) : x;
}
bool IsRounding(WeightType type) { return type != WeightType::kF32; }

// The first device is exact, the second one rounds.
class Rounding : public DeviceParity {
 protected:
  void SetUp() override {
    DeviceParity::SetUp();
    streams_[0] = std::move(streams_[1]), devices_[0] = std::move(devices_[1]);
    const test::KeptVariable kept(kSwitch);
    test::SetVariable(kSwitch, nullptr);
    devices_[1] = std::move(OpenDevice(kOther, 1).value());
    streams_[1] = std::move(devices_[1]->NewStream().value());
    pair_.reset(new Pair{{devices_[0].get(), devices_[1].get()}, {streams_[0].get(), streams_[1].get()}, {}});
  }
  // Activations of which the exact device gets what rounding makes of them.
  Pair::On<float> Activations(size_t n, bool rounded) {
    const std::vector<float> x = Random(n);
    const Pair::On<float> both = pair_->Copy(x);
    const std::vector<float> first = rounded ? RoundedToF16(x) : x;
    EXPECT_TRUE(
        devices_[0]
            ->Write(streams_[0].get(), both.at[0].As<uint8_t>(), first.data(), static_cast<int64_t>(4 * n))
            .ok());
    return both;
  }
  // What device i makes of n rows x: logits by a head whose scratch is that of such a layer, and rows of it
  // as a table.
  static NetworkShape ShapeOf(const FileWeight& head) {
    NetworkShape shape;
    shape.hidden = shape.ffn = shape.head_dim = head.w.cols, shape.n_heads = shape.n_kv_heads = 1;
    shape.vocab = head.w.rows;
    return shape;
  }
  std::vector<float> LogitsOf(int i, const FileWeight& head, const Pair::On<float>& x, int32_t n) {
    Device& d = *devices_[i];
    const NetworkShape shape = ShapeOf(head);
    const auto logits = pair_->Copy(std::vector<float>(static_cast<size_t>(n * shape.vocab)));
    Matrix m;
    EXPECT_TRUE(d.Prepare({&head.w, 1}, {}, MatrixUse::kProducts, &m).ok());
    const DeviceBytes scratch = pair_->Scratch(i, d.NetworkScratchBytes(shape, n));
    EXPECT_TRUE(d.Logits(streams_[i].get(), {&shape, {}, &m, x.at[i], n, 1, logits.at[i], scratch}).ok());
    std::vector<float> out = pair_->Read(logits, i);  // waits
    d.Free(m.memory, m.bytes);
    return out;
  }
  std::vector<float> RowsOf(int i, const FileWeight& table, Span<const int32_t> tokens) {
    Device& d = *devices_[i];
    const NetworkShape shape = ShapeOf(table);
    const int32_t n = static_cast<int32_t>(tokens.size());
    const auto rows = pair_->Copy(std::vector<float>(static_cast<size_t>(n * shape.hidden)));
    Matrix m;
    EXPECT_TRUE(d.Prepare({&table.w, 1}, {}, MatrixUse::kProducts, &m).ok());
    EXPECT_TRUE(d.Embed(streams_[i].get(), {&shape, &m, tokens.data(), n, 1, rows.at[i]}).ok());
    std::vector<float> out = pair_->Read(rows, i);
    d.Free(m.memory, m.bytes);
    return out;
  }
  void ExpectEqual(const Pair::On<float>& x, const std::string& what) {
    EXPECT_EQ(pair_->Read(x, 0), pair_->Read(x, 1)) << what;
  }
};

// Column c of row r, by the definition of the types.
double Element(const FileWeight& w, int32_t r, int32_t c) {
  const int64_t at = int64_t{r} * w.w.cols + c;
  if (HasBlocks(w.w.type)) {
    WeightBlock block;
    ReadBlock(w.w, r, c / kBlockColumns, &block);
    const int32_t i = c % kBlockColumns, g = i / w.w.group;
    return static_cast<double>(block.scale[g]) * block.code[i] - static_cast<double>(block.least[g]);
  }
  const uint16_t* halves = reinterpret_cast<const uint16_t*>(w.data.data());
  if (w.w.type == WeightType::kBf16) return static_cast<double>(Bf16ToFloat(halves[at]));
  if (w.w.type == WeightType::kF16) return static_cast<double>(F16ToFloat(halves[at]));
  const double scale = static_cast<double>(
      F16ToFloat(w.scales[static_cast<size_t>(r * (w.w.cols / w.w.group) + c / w.w.group)]));
  if (w.w.type == WeightType::kInt8) return static_cast<int8_t>(w.data[static_cast<size_t>(at)]) * scale;
  const uint8_t two = w.data[static_cast<size_t>(at / 2)];
  return (static_cast<int8_t>(two << (c % 2 == 0 ? 4 : 0)) >> 4) * scale;
}

struct ProductCase {
  int32_t n, hidden, heads, group;
};
// Tiles that are whole and not; columns that are no whole stages, and no whole vectors; groups of fewer
// columns than a stage has; enough blocks for tiles of 128 tokens on every multiprocessor, with tokens left
// over.
constexpr ProductCase kCases[] = {{9, 96, 6, 32},    {33, 64, 6, 32},    {70, 48, 5, 16},
                                  {300, 96, 20, 32}, {257, 40, 17, 8},   {400, 104, 16, 8},
                                  {129, 38, 3, 0},   {300, 256, 12, 32}, {8, 96, 6, 32}};

TEST_F(Rounding, ProductsAreThoseOfRoundedActivations) {
  for (const WeightType type : kTypes) {
    for (ProductCase c : kCases) {
      if (HasBlocks(type)) c.hidden = 256;
      if (HasCodes(type) && (c.group == 0 || c.hidden % c.group != 0)) continue;
      const bool rounds = IsRounding(type) && c.n > 8;
      NetworkShape shape;
      shape.hidden = c.hidden, shape.ffn = 32, shape.n_heads = c.heads, shape.n_kv_heads = 2;
      shape.head_dim = 24, shape.vocab = 140;
      const int32_t q_rows = c.heads * 24, kv_rows = 48;
      const FileWeight q(type, q_rows, c.hidden, c.group, &random_),
          k(type, kv_rows, c.hidden, c.group, &random_), v(type, kv_rows, c.hidden, c.group, &random_),
          head(type, shape.vocab, c.hidden, c.group, &random_);
      const auto size = [&](int32_t width) { return static_cast<size_t>(c.n * width); };
      const auto bias = pair_->Copy(Random(static_cast<size_t>(q_rows))),
                 x = Activations(size(c.hidden), rounds);
      const auto qs = pair_->Copy(Random(size(q_rows))), ks = pair_->Copy(Random(size(kv_rows))),
                 vs = pair_->Copy(Random(size(kv_rows))), logits = pair_->Copy(Random(size(shape.vocab)));
      for (int i = 0; i < 2; ++i) {
        Device& d = *devices_[i];
        Stream* s = streams_[i].get();
        LayerMatrices w;
        Matrix m;
        const Weight qkv[] = {q.w, k.w, v.w};
        const DevicePtr<const float> biases[] = {bias.at[i], {}, {}};
        ASSERT_TRUE(d.Prepare({qkv, 3}, {biases, 3}, MatrixUse::kProducts, &w.qkv).ok());
        ASSERT_TRUE(d.Prepare({&head.w, 1}, {}, MatrixUse::kProducts, &m).ok());
        const DeviceBytes scratch = pair_->Scratch(i, d.NetworkScratchBytes(shape, c.n));
        ASSERT_TRUE(d.Project(s, {&shape, &w, x.at[i], c.n, qs.at[i], ks.at[i], vs.at[i], scratch}).ok());
        LogitsArgs last{&shape, {}, &m, x.at[i], c.n, 0.25f, logits.at[i], scratch};
        last.cap = 100;
        ASSERT_TRUE(d.Logits(s, last).ok());
        pair_->Read(logits, i);  // waits
        d.Free(w.qkv.memory, w.qkv.bytes), d.Free(m.memory, m.bytes);
      }
      const std::string what = "type " + std::to_string(static_cast<int>(type)) + ", rows " +
                               std::to_string(c.n) + ", columns " + std::to_string(c.hidden);
      if (type == WeightType::kQ4K && rounds) {  // weights are rounded too: Q4KIsItsBlocks
        pair_->ExpectNear(qs, 5e-4, what), pair_->ExpectNear(logits, 5e-4, what);
      } else if (!rounds) {
        for (const auto* y : {&qs, &ks, &vs, &logits}) ExpectEqual(*y, what);
      } else {
        // Scales for 16 columns: more than 16 rows of two numbers are added up in another order.
        const bool narrow = type == WeightType::kQ6K || (type == WeightType::kInt8 && c.group == 16);
        const double same = narrow && c.n > 16 && c.n < 256 ? 2e-6 : kSame;
        pair_->ExpectNear(qs, same, what + ", queries"), pair_->ExpectNear(ks, same, what + ", keys");
        pair_->ExpectNear(vs, same, what + ", values"), pair_->ExpectNear(logits, same, what + ", logits");
      }
      if (rounds && !HasBlocks(type)) {
        const std::vector<float> rows = pair_->Read(x, 0), got = pair_->Read(vs, 1);
        double most = 0, apart = 0;
        for (int32_t t = 0; t < c.n; ++t) {
          for (int32_t r = 0; r < kv_rows; ++r) {
            double sum = 0;
            for (int32_t j = 0; j < c.hidden; ++j)
              sum += Element(v, r, j) * static_cast<double>(rows[static_cast<size_t>(t * c.hidden + j)]);
            const double ours = static_cast<double>(got[static_cast<size_t>(t * kv_rows + r)]);
            most = std::max(most, std::fabs(sum)), apart = std::max(apart, std::fabs(sum - ours));
          }
        }
        EXPECT_LE(apart, 2e-5 * most) << what << ", by the definition";
      }
      pair_->blocks.clear();
    }
  }
}

#if defined(KVC_EMU)
// Whether columns were cut into parts since the last time.
bool WasCut() {
  bool any = false;
  for (const std::string& kernel : emu::GetCalls().kernels)
    any |= kernel.find("join_few") != std::string::npos;
  emu::GetCalls().kernels.clear();
  return any;
}
void ExpectCut(bool cut) { EXPECT_EQ(WasCut(), cut); }
#else
bool WasCut() { return true; }
void ExpectCut(bool) {}
#endif

// Products of few rows, by the definition: tiles of 16, 32 and 64 tokens, full and not; columns in parts
// (gemm_few.cu), the last of which is shorter and ends in the middle of a stage, and in one; groups of one
// scale and of several in a stage. Up to eight rows keep 22 bits. The same bits in two runs, whatever the
// order of blocks.
TEST_F(Rounding, FewRowsByTheDefinition) {
  constexpr int32_t kOutputs = 140;  // two blocks, of which the second is not full
  const struct {
    WeightType type;
    int32_t cols, group;
  } matrices[] = {
      {WeightType::kF16, 1112, 0},    {WeightType::kBf16, 1112, 0},  {WeightType::kF16, 200, 0},
      {WeightType::kInt8, 1120, 32},  {WeightType::kInt4, 1120, 32}, {WeightType::kInt8, 1152, 64},
      {WeightType::kInt4, 1152, 128}, {WeightType::kInt8, 96, 96},   {WeightType::kInt4, 32, 32},
      {WeightType::kInt8, 1136, 16},  {WeightType::kInt8, 48, 48},   {WeightType::kInt8, 80, 16}};
  for (const int32_t n : {5, 8, 9, 16, 17, 32, 33, 64, 65, 255}) {
    for (const auto& m : matrices) {
      const FileWeight head(m.type, kOutputs, m.cols, m.group, &random_);
      SCOPED_TRACE(testing::Message()
                   << "type " << static_cast<int>(m.type) << ", " << m.cols << " columns, " << n << " rows");
      const std::vector<float> exact = Random(static_cast<size_t>(n * m.cols)),
                               rows = n <= 8 ? exact : RoundedToF16(exact);
      const auto x = pair_->Copy(rows);
      WasCut();
      const std::vector<float> got = LogitsOf(1, head, x, n);
      ExpectCut(m.cols > 1000);
      double most = 0, apart = 0;
      std::vector<double> weights(static_cast<size_t>(m.cols));
      for (int32_t r = 0; r < kOutputs; ++r) {
        for (int32_t c = 0; c < m.cols; ++c) weights[static_cast<size_t>(c)] = Element(head, r, c);
        for (int32_t t = 0; t < n; ++t) {
          double sum = 0;
          for (int32_t c = 0; c < m.cols; ++c)
            sum += weights[static_cast<size_t>(c)] *
                   static_cast<double>(rows[static_cast<size_t>(t * m.cols + c)]);
          const double d = std::fabs(sum - static_cast<double>(got[static_cast<size_t>(t * kOutputs + r)]));
          most = std::max(most, std::fabs(sum)), apart = d <= apart ? apart : d;
        }
      }
      EXPECT_LE(apart, (n <= 8 ? 2e-6 : 2e-5) * most);
#if defined(KVC_EMU)
      emu::GetOptions().order = 1 + n % 2, emu::GetOptions().eager = n % 2 == 0;
#endif
      EXPECT_EQ(LogitsOf(1, head, x, n), got);
#if defined(KVC_EMU)
      emu::GetOptions() = {};
#endif
      pair_->blocks.clear();
    }
  }
}

// What parts give is added once, and a bias too: by the definition.
TEST_F(Rounding, FewRowsAddTheirPartsOnce) {
  constexpr int32_t kHeads = 8, kD = 128, kCols = kHeads * kD, kHidden = 160;
  for (const int32_t n : {9, 40}) {
    NetworkShape shape;
    shape.hidden = kHidden, shape.ffn = 32, shape.n_heads = kHeads, shape.n_kv_heads = 1, shape.head_dim = kD;
    const FileWeight o(WeightType::kF16, kHidden, kCols, 0, &random_);
    FileWeight half(WeightType::kF16, 32, kHidden, 0, &random_),
        down(WeightType::kF16, kHidden, 32, 0, &random_);
    for (FileWeight* w : {&half, &down}) std::fill(w->data.begin(), w->data.end(), uint8_t{0});
    const std::vector<float> rows = RoundedToF16(Random(static_cast<size_t>(n * kCols))),
                             before = Random(static_cast<size_t>(n * kHidden)), of_bias = Random(kHidden);
    const auto attended = pair_->Copy(rows), x = pair_->Copy(before), bias = pair_->Copy(of_bias),
               norm = pair_->Copy(Random(kHidden));
    Device& d = *devices_[1];
    LayerMatrices w;
    w.ffn_norm = norm.at[1];
    const DevicePtr<const float> biases[] = {bias.at[1]};
    const Weight halves[] = {half.w, half.w};
    ASSERT_TRUE(d.Prepare({&o.w, 1}, {biases, 1}, MatrixUse::kProducts, &w.output).ok());
    ASSERT_TRUE(d.Prepare({halves, 2}, {}, MatrixUse::kProducts, &w.gate_up).ok());
    ASSERT_TRUE(d.Prepare({&down.w, 1}, {}, MatrixUse::kProducts, &w.down).ok());
    const DeviceBytes scratch = pair_->Scratch(1, d.NetworkScratchBytes(shape, n));
    WasCut();
    ASSERT_TRUE(d.Finish(streams_[1].get(), {&shape, &w, attended.at[1], n, 0.5f, x.at[1], scratch}).ok());
    const std::vector<float> got = pair_->Read(x, 1);
    ExpectCut(true);
    for (int32_t t = 0; t < n; ++t) {
      for (int32_t r = 0; r < kHidden; ++r) {
        double sum = static_cast<double>(of_bias[static_cast<size_t>(r)]);
        for (int32_t c = 0; c < kCols; ++c)
          sum += Element(o, r, c) * static_cast<double>(rows[static_cast<size_t>(t * kCols + c)]);
        const auto i = static_cast<size_t>(t * kHidden + r);
        ASSERT_NEAR(got[i], static_cast<double>(before[i]) + 0.5 * sum, 5e-4) << t << ", " << r;
      }
    }
    for (const Matrix* m : {&w.output, &w.gate_up, &w.down}) d.Free(m->memory, m->bytes);
    pair_->blocks.clear();
  }
}

// y += scale * what a product gives. The feed-forward part behind it is nothing.
TEST_F(Rounding, ResidualsAreNotRounded) {
  for (const WeightType type : {WeightType::kF16, WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
    for (const int32_t n : {20, 300}) {
      NetworkShape shape;
      shape.hidden = 416, shape.ffn = 32, shape.n_heads = 3, shape.n_kv_heads = 1, shape.head_dim = 32;
      const FileWeight o(type, shape.hidden, 96, 32, &random_);
      FileWeight half(type, shape.ffn, shape.hidden, 32, &random_),
          down(type, shape.hidden, 32, 32, &random_);
      for (FileWeight* w : {&half, &down}) std::fill(w->data.begin(), w->data.end(), uint8_t{0});
      const auto attended = Activations(static_cast<size_t>(n * 96), true);
      const auto x = pair_->Copy(Random(static_cast<size_t>(n * shape.hidden)));
      const auto norm = pair_->Copy(Random(static_cast<size_t>(shape.hidden)));
      for (int i = 0; i < 2; ++i) {
        Device& d = *devices_[i];
        LayerMatrices w;
        const Weight halves[] = {half.w, half.w};
        w.ffn_norm = norm.at[i];
        ASSERT_TRUE(d.Prepare({&o.w, 1}, {}, MatrixUse::kProducts, &w.output).ok());
        ASSERT_TRUE(d.Prepare({halves, 2}, {}, MatrixUse::kProducts, &w.gate_up).ok());
        ASSERT_TRUE(d.Prepare({&down.w, 1}, {}, MatrixUse::kProducts, &w.down).ok());
        const DeviceBytes scratch = pair_->Scratch(i, d.NetworkScratchBytes(shape, n));
        ASSERT_TRUE(
            d.Finish(streams_[i].get(), {&shape, &w, attended.at[i], n, 0.5f, x.at[i], scratch}).ok());
        pair_->Read(x, i);
        for (const Matrix* m : {&w.output, &w.gate_up, &w.down}) d.Free(m->memory, m->bytes);
      }
      pair_->ExpectNear(x, kSame, "type " + std::to_string(static_cast<int>(type)));
      pair_->blocks.clear();
    }
  }
}

// Row i of x, times 2^exponent(i), gives with both devices what the row gave, times that: exactly in f32,
// which lies far from its ends here.
TEST_F(Rounding, RowsOfEveryMagnitude) {
  constexpr int32_t kHidden = 96, kRows = 72;
  static constexpr int kExponents[] = {0, -50, -40, -20, -3, 13, 15, 16, 40, 100};
  for (const WeightType type : {WeightType::kF16, WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
    for (const int32_t n : {20, 280}) {
      const FileWeight head(type, kRows, kHidden, 32, &random_);
      std::vector<float> rows = Random(static_cast<size_t>(n * kHidden));
      const auto exponent = [](size_t i) { return kExponents[i / kHidden % std::size(kExponents)]; };
      std::vector<float> moved = rows;
      for (size_t i = 0; i < moved.size(); ++i) moved[i] = std::ldexp(rows[i], exponent(i));
      const auto x = pair_->Copy(rows), y = pair_->Copy(moved);
      for (int i = 0; i < 2; ++i) {
        const std::vector<float> before = LogitsOf(i, head, x, n), after = LogitsOf(i, head, y, n);
        for (size_t row = 0; row < after.size(); row += kRows) {
          const int e = kExponents[row / kRows % std::size(kExponents)];
          double most = 0, apart = 0;
          for (size_t j = row; j < row + kRows; ++j) {
            const double a = static_cast<double>(before[j]),
                         b = std::ldexp(static_cast<double>(after[j]), -e);
            most = std::max(most, std::fabs(a));
            apart = std::fabs(a - b) <= apart ? apart : std::fabs(a - b);
          }
          // Numbers below 2^-14 are nearer or farther as the row lies.
          ASSERT_LE(apart, 1e-6 * most)
              << "type " << static_cast<int>(type) << ", device " << i << ", 2^" << e;
        }
      }
      pair_->blocks.clear();
    }
  }
}

// A row that is not finite is its own affair.
TEST_F(Rounding, RowsThatAreNotFinite) {
  constexpr int32_t kHidden = 64, kRows = 40, kTokens = 30;
  const FileWeight head(WeightType::kBf16, kRows, kHidden, 0, &random_);
  const std::vector<float> rows = Random(kTokens * kHidden);
  std::vector<float> broken = rows;
  broken[3 * kHidden + 5] = std::nanf(""), broken[7 * kHidden] = INFINITY;
  const std::vector<float> results[2] = {LogitsOf(1, head, pair_->Copy(rows), kTokens),
                                         LogitsOf(1, head, pair_->Copy(broken), kTokens)};
  for (size_t i = 0; i < results[0].size(); ++i) {
    const size_t row = i / kRows;
    if (row == 3 || row == 7) {
      EXPECT_FALSE(std::isfinite(results[1][i])) << row;
    } else {
      EXPECT_EQ(results[1][i], results[0][i]) << row;
    }
  }
}

// Weights of bf16 become f16 when they are prepared: those of every magnitude, in products of one row, of
// some and of many, and as the rows of a table. Times a power of two they give the same bits, times that.
TEST_F(Rounding, WeightsOfEveryMagnitude) {
  constexpr int32_t kHidden = 96, kRows = 52;
  const FileWeight head(WeightType::kBf16, kRows, kHidden, 0, &random_);
  const int32_t tokens[] = {51, 0, 7};
  for (const int32_t n : {1, 5, 40}) {
    const auto x = pair_->Copy(Random(static_cast<size_t>(n * kHidden)));
    std::vector<float> products, rows;
    for (const int exponent : {0, -70, -45, -14, 8, 20, 100}) {
      SCOPED_TRACE(testing::Message() << n << " rows, 2^" << exponent);
      FileWeight moved = head;
      uint16_t* numbers = reinterpret_cast<uint16_t*>(moved.data.data());
      for (int32_t i = 0; i < kRows * kHidden; ++i)
        numbers[i] = FloatToBf16(std::ldexp(Bf16ToFloat(numbers[i]), exponent));
      moved.w.data = moved.data.data();
      std::vector<float> of_products = LogitsOf(1, moved, x, n), of_rows = RowsOf(1, moved, {tokens, 3});
      for (float& v : of_products) v = std::ldexp(v, -exponent);
      for (float& v : of_rows) v = std::ldexp(v, -exponent);
      if (exponent == 0) products = of_products, rows = of_rows;
      EXPECT_EQ(of_products, products);
      EXPECT_EQ(of_rows, rows);
      for (size_t t = 0; t < 3; ++t) {
        for (size_t i = 0; i < kHidden; ++i)
          EXPECT_EQ(static_cast<double>(rows[t * kHidden + i]),
                    Element(head, tokens[t], static_cast<int32_t>(i)));
      }
    }
    pair_->blocks.clear();
  }
}

// q4_k and q6_k by the definition of their blocks: with up to 255 rows what is lost is what f16 has not of a
// group's scale and offset, with more that and what it has not of a weight.
class BlocksRounding : public Rounding, public testing::WithParamInterface<WeightType> {};

TEST_P(BlocksRounding, AreTheirBlocks) {
  constexpr int32_t kHidden = 512, kRows = 40;
  const bool of_four = GetParam() == WeightType::kQ4K;
  NetworkShape shape;
  shape.hidden = shape.ffn = kHidden, shape.n_heads = 1, shape.n_kv_heads = 1, shape.head_dim = 64;
  shape.vocab = kRows;
  const FileWeight head(GetParam(), kRows, kHidden, 0, &random_);
  const int32_t tokens[] = {39, 0, 7};
  for (const bool fits : {false, true}) {
    shape.fine_codes = fits;  // else there is no room to decode it
    for (const int32_t n : {1, 5, 8, 9, 40, 300}) {
      const auto x = Activations(static_cast<size_t>(n * kHidden), true);
      const auto logits = pair_->Copy(std::vector<float>(static_cast<size_t>(n * kRows)));
      const auto embedded = pair_->Copy(std::vector<float>(3 * kHidden));
      const std::vector<float> rows = RoundedToF16(pair_->Read(x, 0));
      for (int i = 0; i < 2; ++i) {
        SCOPED_TRACE(testing::Message() << n << " rows, device " << i << fits);
        Device& d = *devices_[i];
        Stream* s = streams_[i].get();
        Matrix m;
        ASSERT_TRUE(d.Prepare({&head.w, 1}, {}, MatrixUse::kProducts, &m).ok());
        // 5 bits a weight, or 9.
        EXPECT_EQ(m.bytes, kRows * (of_four ? kHidden / 2 + kHidden / 32 * 4 : kHidden + kHidden / 16 * 2));
        const DeviceBytes scratch = pair_->Scratch(i, d.NetworkScratchBytes(shape, n));
        ASSERT_TRUE(d.Logits(s, {&shape, {}, &m, x.at[i], n, 1, logits.at[i], scratch}).ok());
        ASSERT_TRUE(d.Embed(s, {&shape, &m, tokens, 3, 1, embedded.at[i]}).ok());
        const std::vector<float> got = pair_->Read(logits, i), table = pair_->Read(embedded, i);
        d.Free(m.memory, m.bytes);
        const std::vector<float> x_of = i == 0 ? rows : RoundedIf(n > 8, pair_->Read(x, 1));
        double most = 0, apart = 0, most_weight = 0, weights_apart = 0;
        for (int32_t r = 0; r < kRows; ++r) {
          for (int32_t t = 0; t < n; ++t) {
            double sum = 0;
            for (int32_t j = 0; j < kHidden; ++j)
              sum += Element(head, r, j) * static_cast<double>(x_of[static_cast<size_t>(t * kHidden + j)]);
            const double ours = static_cast<double>(got[static_cast<size_t>(t * kRows + r)]);
            most = std::max(most, std::fabs(sum)), apart = std::max(apart, std::fabs(sum - ours));
          }
        }
        for (int32_t t = 0; t < 3; ++t) {
          for (int32_t j = 0; j < kHidden; ++j) {
            const double want = Element(head, tokens[t], j);
            most_weight = std::max(most_weight, std::fabs(want));
            weights_apart =
                std::max(weights_apart,
                         std::fabs(want - static_cast<double>(table[static_cast<size_t>(t * kHidden + j)])));
          }
        }
        EXPECT_LE(apart, (of_four ? 3e-4 : 4e-4) * most);
        EXPECT_LE(weights_apart, most_weight / 2048);
      }
      pair_->blocks.clear();
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, BlocksRounding, testing::Values(WeightType::kQ4K, WeightType::kQ6K));

// Experts, who are chosen by logits that nobody rounds: of weights that do not round every bit is the same.
TEST_F(Rounding, ExpertsAreChosenAsWithoutIt) {
  for (const WeightType type : kTypes) {
    for (const int32_t n : {9, 200}) {
      NetworkShape shape;
      shape.hidden = shape.ffn = 256, shape.n_heads = shape.n_kv_heads = 1, shape.head_dim = 16;
      shape.n_experts = 5, shape.n_chosen = 2;
      const FileWeight output(WeightType::kF32, 256, 16, 0, &random_),
          router(WeightType::kBf16, 5, 256, 0, &random_);
      FileWeight gate(type, 5 * 256, 256, 32, &random_), up(type, 5 * 256, 256, 32, &random_),
          down(type, 5 * 256, 256, 32, &random_);
      gate.w.stack = up.w.stack = down.w.stack = 5;
      const auto attended = pair_->Copy(Random(static_cast<size_t>(n * 16)));
      const auto x = pair_->Copy(Random(static_cast<size_t>(n * 256)));
      const auto norm = pair_->Copy(Random(256));
      for (int i = 0; i < 2; ++i) {
        Device& d = *devices_[i];
        LayerMatrices w;
        const Weight halves[] = {gate.w, up.w};
        w.ffn_norm = norm.at[i];
        ASSERT_TRUE(d.Prepare({&output.w, 1}, {}, MatrixUse::kProducts, &w.output).ok());
        ASSERT_TRUE(d.Prepare({&router.w, 1}, {}, MatrixUse::kProducts, &w.router).ok());
        ASSERT_TRUE(d.Prepare({halves, 2}, {}, MatrixUse::kProducts, &w.gate_up).ok());
        ASSERT_TRUE(d.Prepare({&down.w, 1}, {}, MatrixUse::kProducts, &w.down).ok());
        const DeviceBytes scratch = pair_->Scratch(i, d.NetworkScratchBytes(shape, n));
        ASSERT_TRUE(
            d.Finish(streams_[i].get(), {&shape, &w, attended.at[i], n, 0.5f, x.at[i], scratch}).ok());
        pair_->Read(x, i);
        for (const Matrix* m : {&w.output, &w.router, &w.gate_up, &w.down}) d.Free(m->memory, m->bytes);
      }
      const std::string what = "type " + std::to_string(static_cast<int>(type));
      if (IsRounding(type)) {
        EXPECT_NE(pair_->Read(x, 0), pair_->Read(x, 1)) << what;
        pair_->ExpectNear(x, 1.0 / 2048, what);  // what f16 has of a number
      } else {
        ExpectEqual(x, what);
      }
      pair_->blocks.clear();
    }
  }
}

}  // namespace
}  // namespace kvc
