// Models that are opened as trusted: all is verified but what the weights hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kvc/kvc.h"
#include "lib/model/model_file.h"
#include "tests/support/tiny_model.h"

namespace kvc {
namespace {

using test::AlignedBytes;
using test::TinyModelOptions;

Result<std::unique_ptr<ModelFile>> Open(const AlignedBytes& bytes, bool trusted) {
  return ModelFile::OpenMemory(bytes.data(), static_cast<int64_t>(bytes.size()), nullptr, trusted);
}

class Trusted : public ::testing::TestWithParam<WeightType> {
 protected:
  static TinyModelOptions Options() {
    TinyModelOptions o;
    o.n_layers = 1, o.n_heads = 1, o.n_kv_heads = 1, o.head_dim = 8, o.hidden_size = 8, o.ffn_size = 8;
    o.vocab_size = 259, o.tied_head = true, o.type = GetParam(), o.group = 8;
    return o;
  }
};

TEST_P(Trusted, OnlyChangedBytesOfWeightsPass) {
  AlignedBytes bytes = test::TinyModelBytes(Options());
  std::vector<bool> of_weights(bytes.size());
  {
    const auto file = std::move(Open(bytes, true).value());
    for (const TensorEntry& t : file->tensors())
      std::fill_n(of_weights.begin() + t.offset, static_cast<size_t>(t.size), true);
  }
  ASSERT_GT(std::count(of_weights.begin(), of_weights.end(), true), 1000);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] ^= 0x41;
    const Status status = Open(bytes, true).status();
    ASSERT_EQ(status.code(), of_weights[i] ? Code::kOk : Code::kBadModel) << "byte " << i;
    bytes[i] ^= 0x41;
  }
}

// What others compute from it is not this file's own, whoever verified it.
TEST_P(Trusted, IsTheSameModel) {
  const AlignedBytes bytes = test::TinyModelBytes(Options());
  const auto trusted = std::move(Open(bytes, true).value()), verified = std::move(Open(bytes, false).value());
  EXPECT_EQ(trusted->fingerprint(), verified->fingerprint());
  EXPECT_EQ(trusted->weight_bytes(), verified->weight_bytes());
  EXPECT_EQ(trusted->DescribeJson(), verified->DescribeJson());
}

INSTANTIATE_TEST_SUITE_P(Types, Trusted, ::testing::Values(WeightType::kF32, WeightType::kInt4));

kvc_status OpenThroughApi(const AlignedBytes& bytes, int32_t trusted, kvc_model** model) {
  kvc_model_params params{};
  params.struct_size = sizeof params;
  params.n_threads = 2, params.trusted = trusted;
  return kvc_model_open_memory(bytes.data(), static_cast<int64_t>(bytes.size()), "cpu", &params, model);
}

// Weights of nothing but set bits: NaN, or codes and scales nobody writes. Every method meets them.
TEST(TrustedModel, AnyWeightsEndInAStatus) {
  for (const WeightType type :
       {WeightType::kF32, WeightType::kBf16, WeightType::kInt8, WeightType::kInt4, WeightType::kQ4K}) {
    for (const int32_t n_experts : {0, 4}) {
      TinyModelOptions options;
      options.type = type, options.n_experts = n_experts, options.n_chosen = n_experts / 2;
      if (HasBlocks(type)) options.hidden_size = options.ffn_size = 256;
      AlignedBytes bytes = test::TinyModelBytes(options);
      {
        const auto file = std::move(Open(bytes, true).value());
        for (const TensorEntry& t : file->tensors())
          std::memset(bytes.data() + t.offset, 0xff, static_cast<size_t>(t.size));
      }
      kvc_model* model = nullptr;
      ASSERT_EQ(OpenThroughApi(bytes, 0, &model), KVC_E_BAD_MODEL);
      ASSERT_EQ(OpenThroughApi(bytes, 1, &model), KVC_OK) << kvc_last_error();
      for (const char* spec : {"full", "snapkv:budget=8,window=4", "h2o:budget=8",
                               "ada-snapkv:budget=8,window=4", "tova:budget=8", "cokv-document:budget=8",
                               "weightedkv:budget=8", "spindlekv:budget=40", "keydiff:budget=8"}) {
        kvc_policy* policy = nullptr;
        kvc_session* session = nullptr;
        ASSERT_EQ(kvc_policy_create(spec, &policy), KVC_OK) << kvc_last_error();
        ASSERT_EQ(kvc_session_create(model, policy, nullptr, &session), KVC_OK) << kvc_last_error();
        kvc_policy_close(policy);
        std::vector<int32_t> tokens(64);
        for (int32_t i = 0; i < 64; ++i) tokens[static_cast<size_t>(i)] = i * 37 % 256;
        kvc_status status = kvc_session_prefill(session, tokens.data(), 64);
        int32_t token = 0;
        if (status == KVC_OK) status = kvc_session_step(session, &token);
        EXPECT_EQ(status, KVC_E_BAD_MODEL) << spec << " type " << static_cast<int>(type);
        kvc_session_close(session);
      }
      kvc_model_close(model);
    }
  }
}

// One number that is none, in a model whose weights are sound: what is rounded to codes on the way to the
// logits does not make it one.
TEST(TrustedModel, OneNanReachesTheLogits) {
  for (const WeightType type : {WeightType::kF32, WeightType::kInt8, WeightType::kInt4, WeightType::kQ4K}) {
    for (const TensorRole role : {TensorRole::kAttentionNorm, TensorRole::kFfnNorm, TensorRole::kFinalNorm}) {
      TinyModelOptions options;
      options.type = type;
      if (HasBlocks(type)) options.hidden_size = options.ffn_size = 256;
      AlignedBytes bytes = test::TinyModelBytes(options);
      {
        const auto file = std::move(Open(bytes, true).value());
        const float nan = NAN;
        for (const TensorEntry& t : file->tensors()) {
          if (t.role == role && t.layer <= 0) std::memcpy(bytes.data() + t.offset + 20, &nan, sizeof nan);
        }
      }
      kvc_model* model = nullptr;
      kvc_session* session = nullptr;
      ASSERT_EQ(OpenThroughApi(bytes, 1, &model), KVC_OK) << kvc_last_error();
      ASSERT_EQ(kvc_session_create(model, nullptr, nullptr, &session), KVC_OK) << kvc_last_error();
      const int32_t tokens[] = {5, 90, 17};
      ASSERT_EQ(kvc_session_prefill(session, tokens, 3), KVC_OK) << kvc_last_error();
      int32_t token = 0;
      EXPECT_EQ(kvc_session_step(session, &token), KVC_E_BAD_MODEL) << TensorRoleName(role);
      kvc_session_close(session);
      kvc_model_close(model);
    }
  }
}

TEST(TrustedModel, IsYesOrNo) {
  const AlignedBytes bytes = test::TinyModelBytes({});
  for (const int32_t value : {-1, 2, 1 << 30}) {
    kvc_model* model = nullptr;
    EXPECT_EQ(OpenThroughApi(bytes, value, &model), KVC_E_INVALID);
    EXPECT_NE(std::strstr(kvc_last_error(), "trusted is"), nullptr) << kvc_last_error();
  }
}

}  // namespace
}  // namespace kvc
