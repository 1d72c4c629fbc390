// The cases of the kernel parity tests, with their data; bench/op_bench measures the same ones.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "lib/base/half.h"
#include "lib/ops/cpu/kernel_table.h"
#include "lib/ops/weight_panels.h"
#include "tests/support/split_mix.h"

namespace kvc::parity {

class Random : public test::SplitMix64 {
 public:
  using SplitMix64::SplitMix64;
  float Uniform(float low, float high) {
    return low + static_cast<float>(Bits() >> 40) * 0x1p-24f * (high - low);
  }
  std::vector<float> Floats(int64_t n, float low = -1, float high = 1) {
    std::vector<float> v(static_cast<size_t>(n));
    for (float& x : v) x = Uniform(low, high);
    return v;
  }
};

inline const std::vector<const KernelTable*>& Tables() {
  static const std::vector<const KernelTable*> all = [] {
    const KernelTable* tables[8];
    const int n = RunnableKernels(tables, 8);
    return std::vector<const KernelTable*>(tables, tables + n);
  }();
  return all;
}

// Those, and on x86 the products of AVX-VNNI in AVX-512's encoding where the processor has that one
// (avxvnni_evex.cc, linked to the tests that call this).
std::vector<const KernelTable*> ProductTables();

// The value of a half by its definition, apart from lib/base/half.h.
inline double HalfValue(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const double size = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return h & 0x8000 ? -size : size;
}
inline double Bf16Value(uint16_t h) { return BitsToFloat(static_cast<uint32_t>(h) << 16); }

inline const char* TypeName(WeightType type) { return InfoOf(type).name; }

inline double HalfAt(const uint8_t* p) { return HalfValue(static_cast<uint16_t>(p[0] | p[1] << 8)); }

// Column c of a block as GGML's documentation of its blocks says, apart from lib/ops/weight_blocks.h.
struct Difference {
  double product, least;
};
inline Difference Q4KParts(const uint8_t* block, int32_t c) {
  const uint8_t* q = block + 4;
  const int32_t j = c / 32;
  int scale = q[j] & 63, least = q[j + 4] & 63;
  if (j >= 4) {
    scale = (q[j + 4] & 0xf) | (q[j - 4] >> 6) << 4;
    least = q[j + 4] >> 4 | (q[j] >> 6) << 4;
  }
  const int byte = block[16 + c / 64 * 32 + c % 32], code = c / 32 % 2 == 0 ? byte & 0xf : byte >> 4;
  return {HalfAt(block) * scale * code, HalfAt(block + 2) * least};  // its value is their difference
}
inline double Q6KValue(const uint8_t* block, int32_t c) {
  const uint8_t *low = block + c / 128 * 64, *high = block + 128 + c / 128 * 32;
  const int l = c % 32, quarter = c % 128 / 32;
  const int byte = low[l + quarter % 2 * 32], nibble = quarter < 2 ? byte & 0xf : byte >> 4;
  const int code = (nibble | (high[l] >> (2 * quarter) & 3) << 4) - 32;
  return HalfAt(block + 208) * static_cast<int8_t>(block[192 + c / 16]) * code;
}

struct MatMulCase {
  WeightType type;
  int32_t rows, cols, group, n;
};

inline std::vector<MatMulCase> MatMulCases() {
  std::vector<MatMulCase> cases;
  for (WeightType type : {WeightType::kF32, WeightType::kF16, WeightType::kBf16}) {
    for (int32_t n = 1; n <= 9; ++n) cases.push_back({type, 37, 67, 0, n});
    for (int32_t cols : {1, 7, 8, 15, 16, 33, 64, 160, 1027}) cases.push_back({type, 13, cols, 0, 5});
    for (int32_t n : {1, 49}) cases.push_back({type, 130, 512, 0, n});
  }
  for (WeightType type : {WeightType::kInt8, WeightType::kInt4}) {
    for (int32_t n = 1; n <= 9; ++n) cases.push_back({type, 37, 96, 32, n});
    for (int32_t group : {8, 16, 20, 32, 64, 128, 256, 512, 1024})
      cases.push_back({type, 19, 3 * group, group, group % 64 == 0 ? 2 : 3});
    for (int32_t n : {1, 2, 49}) cases.push_back({type, 130, 1056, 32, n});
  }
  for (WeightType type : {WeightType::kQ4K, WeightType::kQ6K}) {
    const int32_t group = InfoOf(type).group;
    for (int32_t n = 1; n <= 9; ++n) cases.push_back({type, 37, 512, group, n});
    for (int32_t n : {1, 2, 49}) cases.push_back({type, 130, 768, group, n});
  }
  return cases;
}

// The columns that share a scale, in tests of every type.
inline int32_t GroupFor(WeightType type) {
  return !HasCodes(type) ? 0 : HasBlocks(type) ? InfoOf(type).group : 32;
}

// Shapes whose speed matters: a layer's product of a step and of a prompt, and a matrix beyond the caches.
inline std::vector<MatMulCase> LargeMatMulCases() {
  std::vector<MatMulCase> cases;
  for (WeightType type :
       {WeightType::kF32, WeightType::kF16, WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
    const int32_t group = GroupFor(type);
    for (int32_t n : {1, 256}) cases.push_back({type, 512, 1024, group, n});
    if (group > 0) cases.push_back({type, 512, 1024, 128, 256});
    cases.push_back({type, 8192, 4096, group, 1});
  }
  return cases;
}

// Whether these kernels read rows of round_row for panels of this type.
inline bool TakesPairs(const KernelTable& table, WeightType type) {
  return type == WeightType::kBf16 && table.round_row != nullptr;
}

// The same product from token t on, for n tokens.
inline MatMulArgs FromToken(MatMulArgs a, int32_t t, int32_t n) {
  const int64_t groups = a.w->group > 0 ? a.w->cols / a.w->group : 0, cols = a.w->cols;
  a.n = n, a.x += t * a.x_stride, a.y += t * a.y_stride;
  if (a.xb != nullptr) a.xb += t * int64_t{PairedColumns(a.w->cols)};
  if (groups > 0) a.xq += t * cols, a.xs += t * groups, a.sums += t * groups;
  return a;
}

// A matrix product with its operands. Codes take all their values, the most negative too.
class MatMulData {
 public:
  explicit MatMulData(const MatMulCase& c) : shape(c) {
    Random random(static_cast<uint64_t>(c.rows * 131 + c.cols * 7 + c.n));
    const int64_t count = int64_t{c.rows} * c.cols;
    x_ = random.Floats(int64_t{c.n} * c.cols);
    bias_ = random.Floats(c.rows);
    y.assign(static_cast<size_t>(c.n) * static_cast<size_t>(c.rows), NAN);
    weight_.type = c.type, weight_.rows = c.rows, weight_.cols = c.cols, weight_.group = c.group;
    data_.resize(static_cast<size_t>(c.rows * WeightRowBytes(c.type, c.cols)));
    if (c.group == 0) {
      for (int64_t i = 0; i < count; ++i) SetFloat(i, random.Uniform(-1, 1));
    } else {
      for (uint8_t& b : data_) b = static_cast<uint8_t>(random.Bits() >> 33);
      for (int64_t i = 0; InfoOf(c.type).scales_apart && i < count / c.group; ++i)
        scales_.push_back(FloatToF16(random.Uniform(0.001f, 0.01f)));
      if (HasBlocks(c.type)) SetBlockScales(&random);
      for (int64_t i = 0; i < int64_t{c.n} * c.cols; ++i)
        xq_.push_back(static_cast<int8_t>(random.Bits() % 255 - 127));
      xs_ = random.Floats(int64_t{c.n} * c.cols / c.group, 0.001f, 0.02f);
      for (size_t i = 0; i < xq_.size(); i += static_cast<size_t>(c.group)) {
        sums_.push_back(0);
        for (size_t j = i; j < i + static_cast<size_t>(c.group); ++j) sums_.back() += xq_[j];
      }
    }
    for (int32_t t = 0; c.type == WeightType::kBf16 && t < c.n; ++t) {
      for (int32_t k = 0; k < PairedColumns(c.cols); ++k)
        xb_.push_back(k < c.cols ? FloatToBf16(x_[static_cast<size_t>(t) * c.cols + k]) : 0);
    }
    weight_.data = data_.data(), weight_.scales = scales_.data();
    args.w = &weight_, args.x = x_.data(), args.xq = xq_.data(), args.xs = xs_.data(),
    args.bias = bias_.data();
    args.y = y.data(), args.x_stride = c.cols, args.y_stride = c.rows, args.n = c.n;
    args.row_begin = 0, args.row_end = c.rows, args.sums = sums_.data();
    args.xb = xb_.empty() ? nullptr : xb_.data();
  }
  MatMulData(const MatMulData&) = delete;

  double WeightValue(int32_t row, int32_t col) const {
    const int64_t i = int64_t{row} * shape.cols + col;
    uint16_t half;
    switch (shape.type) {
      case WeightType::kF32: {
        float f;
        std::memcpy(&f, &data_[static_cast<size_t>(i) * 4], 4);
        return f;
      }
      case WeightType::kF16:
        std::memcpy(&half, &data_[static_cast<size_t>(i) * 2], 2);
        return HalfValue(half);
      case WeightType::kBf16:
        std::memcpy(&half, &data_[static_cast<size_t>(i) * 2], 2);
        return Bf16Value(half);
      case WeightType::kInt8:
        return static_cast<int8_t>(data_[static_cast<size_t>(i)]) * Scale(row, col);
      case WeightType::kQ4K:
        return Q4KParts(BlockAt(row, col), col % 256).product - Q4KParts(BlockAt(row, col), col % 256).least;
      case WeightType::kQ6K:
        return Q6KValue(BlockAt(row, col), col % 256);
      case WeightType::kInt4:
        break;
    }
    const int row_bytes = (shape.cols + 1) / 2;
    const int nibble = data_[static_cast<size_t>(row * row_bytes + col / 2)] >> (col % 2 * 4) & 15;
    return (nibble >= 8 ? nibble - 16 : nibble) * Scale(row, col);
  }
  // The sum of the sizes of what WeightValue is the difference of.
  double WeightSize(int32_t row, int32_t col) const {
    if (shape.type != WeightType::kQ4K) return std::fabs(WeightValue(row, col));
    const Difference parts = Q4KParts(BlockAt(row, col), col % 256);
    return std::fabs(parts.product) + std::fabs(parts.least);
  }
  // pairs: as round_row leaves it.
  double Activation(int32_t token, int32_t col, bool pairs = false) const {
    const size_t i = static_cast<size_t>(token) * static_cast<size_t>(shape.cols) + static_cast<size_t>(col);
    if (pairs) return Bf16Value(FloatToBf16(x_[i]));
    return shape.group == 0 ? x_[i] : xq_[i] * static_cast<double>(xs_[i / static_cast<size_t>(shape.group)]);
  }
  double Bias(int32_t row) const { return bias_[static_cast<size_t>(row)]; }
  const Weight& weight() const { return weight_; }
  std::string Name() const {
    return std::string(TypeName(shape.type)) + " rows " + std::to_string(shape.rows) + " cols " +
           std::to_string(shape.cols) + (shape.group > 0 ? " group " + std::to_string(shape.group) : "") +
           " n " + std::to_string(shape.n);
  }

  MatMulCase shape;
  MatMulArgs args{};
  std::vector<float> y;  // [n, rows]

 private:
  void SetFloat(int64_t i, float f) {
    const uint16_t half = shape.type == WeightType::kF16 ? FloatToF16(f) : FloatToBf16(f);
    if (shape.type == WeightType::kF32) {
      std::memcpy(&data_[static_cast<size_t>(i) * 4], &f, 4);
    } else {
      std::memcpy(&data_[static_cast<size_t>(i) * 2], &half, 2);
    }
  }
  const uint8_t* BlockAt(int32_t row, int32_t col) const {
    const WeightTypeInfo& info = InfoOf(shape.type);
    const int64_t block = int64_t{row} * (shape.cols / info.block) + col / info.block;
    return data_.data() + block * info.block_bytes;
  }
  // The halves of blocks, of either sign; the bytes around them are any.
  void SetBlockScales(Random* random) {
    const WeightTypeInfo& info = InfoOf(shape.type);
    for (size_t at = 0; at < data_.size(); at += static_cast<size_t>(info.block_bytes)) {
      const bool q4 = shape.type == WeightType::kQ4K;
      for (size_t i = 0; i < (q4 ? 2u : 1u); ++i) {
        const float size = q4 ? 0.001f : 0.0003f;
        const uint16_t half = FloatToF16(random->Uniform(-size / 2, size));
        std::memcpy(&data_[at + (q4 ? 0 : 208) + 2 * i], &half, 2);
      }
    }
  }
  double Scale(int32_t row, int32_t col) const {
    return HalfValue(scales_[static_cast<size_t>((int64_t{row} * shape.cols + col) / shape.group)]);
  }

  Weight weight_;
  std::vector<uint8_t> data_;
  std::vector<uint16_t> scales_;
  std::vector<float> x_, bias_, xs_;
  std::vector<int8_t> xq_;
  std::vector<uint16_t> xb_;
  std::vector<int32_t> sums_;
};

// A weight in panels, in memory of its own.
class PackedWeight {
 public:
  explicit PackedWeight(const Weight& from) {
    lines_.resize(static_cast<size_t>(PlaceOf(ShapeInPanels(from)).n_bytes + 63) / 64);
    uint8_t* at = lines_.data()->bytes;
    for (int32_t p = 0; p < PanelsOf(from.rows); ++p) PackPanel(from, p, at);
    weight = PanelsAt(from, at);
  }
  PackedWeight(const PackedWeight&) = delete;
  Weight weight;

 private:
  struct alignas(64) Line {
    uint8_t bytes[64];
  };
  std::vector<Line> lines_;
};

// Causal attention: n_q rows, the first of which sees first_visible + 1 keys.
struct RowsCase {
  int32_t n_q, first_visible, d, window;
  float cap = 0;
};

inline std::vector<RowsCase> RowsCases() {
  std::vector<RowsCase> cases;
  for (int32_t d = 8; d <= 256; d += 8) cases.push_back({7, 60, d, 0});
  for (int32_t n = 1; n <= 9; ++n) cases.push_back({n, 0, 64, 0});
  for (int32_t first : {0, 1, 62, 63, 64, 65, 127, 200}) cases.push_back({70, first, 32, 0});
  for (int32_t window : {1, 3, 63, 64, 65, 500}) cases.push_back({150, 40, 48, window});
  cases.push_back({100, 300, 128, 0});
  cases.push_back({70, 65, 40, 0, 3});
  cases.push_back({70, 65, 40, 48, 0.75f});
  return cases;
}

inline std::vector<RowsCase> LargeRowsCases() {
  return {{256, 0, 64, 0}, {256, 768, 64, 0}, {256, 768, 128, 0}};
}

// Queries, keys and values of one head; rows are apart by more than D, as the engine has them.
struct RowsData {
  explicit RowsData(const RowsCase& c)
      : shape(c),
        n_keys(c.first_visible + c.n_q),
        stride(c.d + 24),
        scale(1 / std::sqrt(static_cast<float>(c.d))) {
    Random random(static_cast<uint64_t>(c.n_q * 1009 + c.first_visible * 31 + c.d));
    q = random.Floats(c.n_q * stride, -2, 2);
    k = random.Floats(int64_t{n_keys} * c.d, -2, 2);
    v = random.Floats(int64_t{n_keys} * c.d);
  }
  double Logit(int32_t row, int32_t key, double factor = 1) const {
    double sum = 0;
    for (int32_t j = 0; j < shape.d; ++j) {
      sum += static_cast<double>(q[static_cast<size_t>(row * stride + j)]) *
             k[static_cast<size_t>(key * shape.d + j)];
    }
    const double z = sum * scale;
    return factor * (shape.cap > 0 ? shape.cap * std::tanh(z / shape.cap) : z) +
           (key == 0 ? double{first_logit} : 0);
  }
  PrefillAttentionArgs Prefill(float* out, float* lse) const {
    PrefillAttentionArgs a{
        q.data(), k.data(),     v.data(), out, lse, stride, stride, shape.n_q, shape.first_visible,
        shape.d,  shape.window, scale};
    a.cap = shape.cap, a.first_logit = first_logit;
    return a;
  }

  float first_logit = 0;
  RowsCase shape;
  int32_t n_keys;
  int64_t stride;
  float scale;
  std::vector<float> q, k, v;
};

struct AttendCase {
  KvType type;
  int32_t n, g, d;
  float cap = 0;
  int32_t group = 0;  // of codes
  KvType value_type = KvType::kInt8;

  KvType values() const { return group > 0 ? value_type : type; }
};

inline std::vector<AttendCase> AttendCases() {
  std::vector<AttendCase> cases;
  for (KvType type : {KvType::kF32, KvType::kF16, KvType::kBf16}) {
    for (int32_t d = 8; d <= 256; d += 8) cases.push_back({type, 16, 2, d});
    for (int32_t n : {0, 1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 130}) cases.push_back({type, n, 3, 64});
    for (int32_t g = 1; g <= 9; ++g) cases.push_back({type, 64, g, 64});
    cases.push_back({type, 64, 8, 128});
    cases.push_back({type, 37, 5, 72, 2});
  }
  for (const KvType type : {KvType::kInt8, KvType::kInt4}) {
    for (const KvType values : {KvType::kInt8, KvType::kInt4, KvType::kInt2}) {
      for (const int32_t group : {16, 32, 64, 128}) {
        for (int32_t d = group; d <= 256; d += group) cases.push_back({type, 21, 3, d, 0, group, values});
      }
      for (int32_t n : {0, 1, 2, 3, 4, 5, 63, 64, 65, 130}) cases.push_back({type, n, 3, 64, 0, 32, values});
      for (int32_t g = 1; g <= 9; ++g) cases.push_back({type, 64, g, 64, 0, 32, values});
      cases.push_back({type, 37, 5, 80, 2, 16, values});
      for (const int32_t d : {640, 1024}) cases.push_back({type, 70, 2, d, 0, 16, values});  // of many groups
    }
  }
  return cases;
}

struct AttendData {
  explicit AttendData(const AttendCase& c) : shape(c) {
    Random random(static_cast<uint64_t>(c.n * 1009 + c.g * 31 + c.d));
    q = random.Floats(int64_t{c.g} * c.d, -2, 2);
    Store(random.Floats(int64_t{c.n} * c.d, -2, 2), c.type, &k, &k_scales, &k_values);
    Store(random.Floats(int64_t{c.n} * c.d), c.values(), &v, &v_scales, &v_values);
    for (int64_t i = 0; i < int64_t{c.g} * c.n; ++i) visible.push_back(random.Bits() % 3 != 0);
    Reset();
  }
  void Reset() {
    m.assign(static_cast<size_t>(shape.g), -INFINITY);
    l.assign(static_cast<size_t>(shape.g), 0);
    acc.assign(q.size(), 0);
    logits.assign(visible.size(), NAN);
  }
  // Entries [begin, end) as one tile.
  AttendTileArgs Args(bool masked, int32_t begin, int32_t end) {
    AttendTileArgs a{};
    a.group = shape.group, a.value_type = shape.value_type;
    a.q = q.data(), a.k = k.data() + begin * CodeBytes(shape.type, shape.d),
    a.v = v.data() + begin * CodeBytes(shape.values(), shape.d);
    if (shape.group > 0) {
      const int64_t scales = begin * (shape.d / shape.group);
      a.k_scales = k_scales.data() + scales, a.v_scales = v_scales.data() + scales;
    }
    a.visible = masked ? visible.data() + begin : nullptr, a.visible_stride = shape.n;
    a.logits = logits.data() + begin, a.logits_stride = shape.n;
    a.m = m.data(), a.l = l.data(), a.acc = acc.data();
    a.first_logit = begin == 0 ? first_logit : 0;
    a.type = shape.type, a.n = end - begin, a.g = shape.g, a.d = shape.d;
    a.scale = 1 / std::sqrt(static_cast<float>(shape.d)), a.cap = shape.cap;
    return a;
  }

  float first_logit = 0;
  AttendCase shape;
  std::vector<float> q, m, l, acc, logits;
  std::vector<uint8_t> k, v, visible;  // k, v: stored form; visible [g, n]
  std::vector<uint16_t> k_scales, v_scales;
  std::vector<double> k_values, v_values;  // what the stored form means

 private:
  void Store(const std::vector<float>& in, KvType type, std::vector<uint8_t>* out,
             std::vector<uint16_t>* scales, std::vector<double>* values) const {
    if (shape.group > 0) return Encode(in, type, out, scales, values);
    const size_t bytes = type == KvType::kF32 ? 4 : 2;
    out->resize(in.size() * bytes + 1);  // never without an address
    for (size_t i = 0; i < in.size(); ++i) {
      const uint16_t half = shape.type == KvType::kF16 ? FloatToF16(in[i]) : FloatToBf16(in[i]);
      std::memcpy(&(*out)[i * bytes], shape.type == KvType::kF32 ? static_cast<const void*>(&in[i]) : &half,
                  bytes);
      values->push_back(shape.type == KvType::kF32   ? static_cast<double>(in[i])
                        : shape.type == KvType::kF16 ? HalfValue(half)
                                                     : Bf16Value(half));
    }
  }
  // codec_test holds the codec against the definition.
  void Encode(const std::vector<float>& in, KvType type, std::vector<uint8_t>* out,
              std::vector<uint16_t>* scales, std::vector<double>* values) const {
    const VectorFormat format{type, shape.d, shape.group};
    out->resize(static_cast<size_t>(shape.n * CodeBytes(type, shape.d)) + 1);
    scales->resize(static_cast<size_t>(shape.n) * static_cast<size_t>(shape.d / shape.group) + 1);
    std::vector<float> decoded(in.size());
    const KernelTable& ref = ReferenceKernels();
    ref.encode_vectors(format, in.data(), shape.n, out->data(), scales->data());
    ref.decode_vectors(format, out->data(), scales->data(), shape.n, decoded.data());
    values->assign(decoded.begin(), decoded.end());
  }
};

}  // namespace kvc::parity
