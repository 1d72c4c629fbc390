#include "tests/support/stored_vectors.h"

#include <algorithm>
#include <cmath>

#include "lib/base/half.h"
#include "lib/compress/storage_plan.h"
#include "lib/ops/cpu/kernel_table.h"
#include "tests/support/tiny_session.h"

namespace kvc::test {
namespace {

std::vector<float> InHalves(std::vector<float> x) {
  for (float& v : x) v = F16ToFloat(FloatToF16(v));
  return x;
}

std::vector<float> InCodes(KvType type, int32_t group, const std::vector<float>& x) {
  const VectorFormat f{type, static_cast<int32_t>(x.size()), group};
  std::vector<uint8_t> codes(static_cast<size_t>(CodeBytes(type, f.d)));
  std::vector<uint16_t> scales(x.size() / static_cast<size_t>(group));
  std::vector<float> out(x.size());
  ReferenceKernels().encode_vectors(f, x.data(), 1, codes.data(), scales.data());
  ReferenceKernels().decode_vectors(f, codes.data(), scales.data(), 1, out.data());
  return out;
}

// All that may be stored of a vector: it waits in f16 for its code, or not; and where entries left, what was
// coded may wait again. A code of what codes say is the same code.
std::vector<std::vector<float>> FormsOf(const std::vector<KvType>& types, int32_t group,
                                        const std::vector<float>& x) {
  constexpr int kMostMoves = 16;
  std::vector<std::vector<float>> forms;
  for (const KvType type : types) {
    for (const bool waits_first : {true, false}) {
      std::vector<float> form = x;
      for (int i = 0; i < kMostMoves; ++i) {
        form = (i % 2 == 0) == waits_first ? InHalves(form) : InCodes(type, group, form);
        if (std::find(forms.begin(), forms.end(), form) == forms.end()) forms.push_back(form);
      }
    }
  }
  return forms;
}

// The types a head may have: where bits go by its score, any.
std::vector<KvType> TypesOf(const Policy& policy, bool values) {
  const int32_t kv = policy.Int(OptionId::kKv), of_values = policy.Int(OptionId::kKvValues);
  if (kv != kStoreInt8 && kv != kStoreInt4) return {KvType::kInt8, KvType::kInt4};
  const KvType keys = kv == kStoreInt8 ? KvType::kInt8 : KvType::kInt4;
  if (!values || of_values == kValuesSame) return {keys};
  return {of_values == kValuesInt8   ? KvType::kInt8
          : of_values == kValuesInt4 ? KvType::kInt4
                                     : KvType::kInt2};
}

using Rows = std::vector<std::vector<float>>;

Rows RowsOf(const std::vector<float>& flat, size_t d) {
  Rows rows;
  for (auto at = flat.begin(); at != flat.end(); at += static_cast<std::ptrdiff_t>(d))
    rows.emplace_back(at, at + static_cast<std::ptrdiff_t>(d));
  return rows;
}

double Length(const std::vector<float>& x, const std::vector<float>* from = nullptr) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double off = double{x[i]} - (from == nullptr ? 0 : (*from)[i]);
    sum += off * off;
  }
  return std::sqrt(sum);
}

// The first row that is none of its token's forms; -1: all are.
int FirstOther(const Rows& stored, const std::vector<KvType>& types, int32_t group, const Rows& vectors,
               const std::vector<int32_t>& tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Rows forms = FormsOf(types, group, vectors[static_cast<size_t>(tokens[i])]);
    if (std::find(forms.begin(), forms.end(), stored[i]) == forms.end()) return static_cast<int>(i);
  }
  return -1;
}

// Keys that are turned by their slot: the first that is too far from that of its token. They are coded as
// they were turned when they came, and once more when the first entry left and they lost that. A coding moves
// a number by half a step of its group, the largest by what its scale was rounded by besides (a sixteenth of
// a step of 127), and no step is above |k| / Q: of d numbers, twice, that is sqrt(d) |k| / Q and an eighth.
int FirstFar(const Rows& stored, const std::vector<KvType>& types, const Rows& turned) {
  const double q = types.back() == KvType::kInt8 ? 127 : 7;
  for (size_t i = 0; i < stored.size(); ++i) {
    const double d = static_cast<double>(turned[i].size());
    if (Length(stored[i], &turned[i]) > std::sqrt(d) * Length(turned[i]) / q * 9 / 8)
      return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

TokenVectors VectorsOfTokens(const std::shared_ptr<const Model>& model) {
  TokenVectors all;
  for (int32_t token = 0; token < model->config().vocab_size; ++token) {
    const auto s = NewSession(model, "full:kv=f32");
    std::vector<float> keys, values;
    EXPECT_TRUE(s->Prefill({&token, 1}, true).ok());  // at position 0 nothing is turned
    EXPECT_TRUE(s->Keys(0, 0, &keys).ok() && s->Values(0, 0, &values).ok());
    all.keys.push_back(std::move(keys)), all.values.push_back(std::move(values));
  }
  return all;
}

std::string CheckStored(const Session& s, const Policy& policy, const TokenVectors& vectors,
                        const std::vector<int32_t>& tokens) {
  const ModelConfig& c = s.model().config();
  const size_t d = static_cast<size_t>(c.head_dim), size = tokens.size() * d;
  const int32_t group = policy.Int(OptionId::kQuantGroup);
  const std::vector<KvType> of_values = TypesOf(policy, true), of_keys = TypesOf(policy, false);
  std::vector<float> keys, values;
  if (!s.Keys(0, 0, &keys).ok() || !s.Values(0, 0, &values).ok() || keys.size() != size ||
      values.size() != size)
    return "other entries than kept";
  const int value = FirstOther(RowsOf(values, d), of_values, group, vectors.values, tokens);
  if (value >= 0) return "value " + std::to_string(value) + " is not its token's";
  if (policy.Int(OptionId::kKeyAxis) == 1) return "";
  const bool turned = c.layers.empty() || c.layers[0].rope >= 0;
  const bool by_slot = !policy.keeps_all() && policy.positions == PositionMode::kInCache;
  int key = -1;
  if (!turned) {
    key = FirstOther(RowsOf(keys, d), of_keys, group, vectors.keys, tokens);
  } else if (by_slot) {
    const std::shared_ptr<const Model> model(&s.model(), [](const Model*) {});
    const auto full = NewSession(model, "full:kv=f32");
    std::vector<float> of_full;
    if (!full->Prefill(tokens, true).ok() || !full->Keys(0, 0, &of_full).ok())
      return "no keys to compare with";
    key = FirstFar(RowsOf(keys, d), of_keys, RowsOf(of_full, d));
  }
  return key < 0 ? "" : "key " + std::to_string(key) + " is not its token's";
}

std::string SameStorage(const Policy& policy) {
  const int32_t kv = policy.Int(OptionId::kKv), values = policy.Int(OptionId::kKvValues);
  if (kv != kStoreInt8 && kv != kStoreInt4) return "";
  std::string spec = kv == kStoreInt8 ? "full:kv=int8" : "full:kv=int4";
  if (values != kValuesSame)
    spec += values == kValuesInt8   ? ",kv_values=int8"
            : values == kValuesInt4 ? ",kv_values=int4"
                                    : ",kv_values=int2";
  return spec + ",quant_group=" + std::to_string(policy.Int(OptionId::kQuantGroup)) +
         ",residual=" + std::to_string(Residual(policy)) +
         (policy.Int(OptionId::kKeyAxis) == 1 ? ",key_axis=channel" : "");
}

bool SameEntries(const Session& a, const Session& b) {
  std::vector<float> of_a, of_b;
  const bool values = a.Values(0, 0, &of_a).ok() && b.Values(0, 0, &of_b).ok() && of_a == of_b;
  return values && a.Keys(0, 0, &of_a).ok() && b.Keys(0, 0, &of_b).ok() && of_a == of_b;
}

}  // namespace kvc::test
