// A file cut at any byte, or with any byte changed, is refused; so is one whose hashes are right but not its
// claims.
#include <gtest/gtest.h>

#include <array>
#include <fstream>
#include <functional>
#include <cstring>
#include <limits>
#include <sstream>

#include "lib/base/half.h"
#include "lib/model/model_file.h"
#include "tests/support/raw_model_file.h"
#include "tests/support/tiny_model.h"

namespace kvc {
namespace {

using test::AlignedBytes;
using test::RawModelFile;
using test::TinyModelOptions;

Status OpenStatus(const AlignedBytes& bytes, size_t n) {
  return ModelFile::OpenMemory(bytes.data(), static_cast<int64_t>(n), nullptr).status();
}

// The message says what is the matter with the file, in one of the documented words.
bool SaysWhy(const Status& status) {
  for (const char* word : {"truncated", "damaged", "newer version", "unsupported"}) {
    if (status.message().find(std::string("model in memory: ") + word) == 0) return true;
  }
  return false;
}

TinyModelOptions Smallest(WeightType type) {
  TinyModelOptions o;
  o.n_layers = 1, o.n_heads = 1, o.n_kv_heads = 1, o.head_dim = 8, o.hidden_size = 8, o.ffn_size = 8;
  o.vocab_size = 259;
  o.tied_head = true, o.type = type, o.group = 8;
  return o;
}

class Damage : public ::testing::TestWithParam<WeightType> {};

TEST_P(Damage, AnyCutIsRefused) {
  const AlignedBytes bytes = test::TinyModelBytes(Smallest(GetParam()));
  ASSERT_TRUE(OpenStatus(bytes, bytes.size()).ok());
  for (size_t n = 0; n < bytes.size(); ++n) {
    // Short ones in a block of their own size, where a read beyond the end would be seen.
    const AlignedBytes copy = n < 4096 ? AlignedBytes(bytes.data(), n) : AlignedBytes();
    const Status status = OpenStatus(n < 4096 ? copy : bytes, n);
    ASSERT_EQ(status.code(), Code::kBadModel) << "cut at " << n;
    ASSERT_NE(status.message().find("truncated"), std::string::npos)
        << "cut at " << n << ": " << status.message();
  }
}

TEST_P(Damage, AnyChangedByteIsRefused) {
  AlignedBytes bytes = test::TinyModelBytes(Smallest(GetParam()));
  for (size_t i = 0; i < bytes.size(); ++i) {
    const uint8_t old = bytes[i];
    bytes[i] = static_cast<uint8_t>(old ^ (i % 3 == 0 ? 0x01 : i % 3 == 1 ? 0x80 : 0xff));
    const Status status = OpenStatus(bytes, bytes.size());
    ASSERT_EQ(status.code(), Code::kBadModel) << "byte " << i;
    ASSERT_TRUE(SaysWhy(status)) << "byte " << i << ": " << status.message();
    bytes[i] = old;
  }
  ASSERT_TRUE(OpenStatus(bytes, bytes.size()).ok());
}

INSTANTIATE_TEST_SUITE_P(Types, Damage, ::testing::Values(WeightType::kF32, WeightType::kInt4));

TEST(ModelFileDamage, EveryValueOfEveryHeaderByteIsRefused) {
  AlignedBytes bytes = test::TinyModelBytes(Smallest(WeightType::kF32));
  for (size_t i = 0; i < 40; ++i) {
    const uint8_t old = bytes[i];
    for (int value = 0; value < 256; ++value) {
      if (value == old) continue;
      bytes[i] = static_cast<uint8_t>(value);
      const Status status = OpenStatus(bytes, bytes.size());
      ASSERT_EQ(status.code(), Code::kBadModel) << i;
      ASSERT_TRUE(SaysWhy(status)) << status.message();
    }
    bytes[i] = old;
  }
}

TEST(ModelFileDamage, BytesBehindTheEndAreRefused) {
  const AlignedBytes bytes = test::TinyModelBytes(Smallest(WeightType::kF32));
  std::vector<uint8_t> longer(bytes.data(), bytes.data() + bytes.size());
  longer.push_back(0);
  const Status status = OpenStatus(AlignedBytes(longer.data(), longer.size()), longer.size());
  EXPECT_NE(status.message().find("damaged: the file has"), std::string::npos) << status.message();
}

TEST(ModelFileDamage, ANewerVersionNamesBothNumbers) {
  RawModelFile raw = RawModelFile::Tiny({});
  raw.version = 7;
  const AlignedBytes bytes = raw.Build();
  const Status status = OpenStatus(bytes, bytes.size());
  EXPECT_EQ(status.code(), Code::kBadModel);
  EXPECT_NE(status.message().find("newer version: the file has version 7, this library reads up to 6"),
            std::string::npos)
      << status.message();
}

// Changes that leave every hash right. Each names what is wrong and where.
struct Rule {
  const char* name;
  std::function<void(RawModelFile*)> change;
  const char* message;
  Code code = Code::kBadModel;
};

TensorPlan* Find(RawModelFile* raw, TensorRole role, int32_t layer) {
  for (TensorPlan& plan : raw->tensors) {
    if (plan.role == role && plan.layer == layer) return &plan;
  }
  return nullptr;
}

void Remove(RawModelFile* raw, TensorRole role, int32_t layer) {
  const auto index = Find(raw, role, layer) - raw->tensors.data();
  raw->tensors.erase(raw->tensors.begin() + index);
  raw->section_bytes.erase(raw->section_bytes.begin() + index);
}

void SetFloat(RawModelFile* raw, TensorRole role, int32_t layer, size_t element, float value) {
  const auto index = static_cast<size_t>(Find(raw, role, layer) - raw->tensors.data());
  std::memcpy(raw->section_bytes[index].data() + 4 * element, &value, 4);
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
ModelConfig& Config(RawModelFile* r) { return r->content.config; }
TokenizerSpec& Tok(RawModelFile* r) { return r->content.tokenizer; }
HeadScoreTable& Scores(RawModelFile* r) { return r->content.head_scores[0]; }

const Rule kConfigRules[] = {
    {"no layers", [](RawModelFile* r) { Config(r).n_layers = 0; }, "n_layers is 0, outside 1 to 1024"},
    {"layers", [](RawModelFile* r) { Config(r).n_layers = 1025; }, "n_layers is 1025"},
    {"more layers", [](RawModelFile* r) { Config(r).n_layers = 3, r->content.head_scores.clear(); },
     "attention_norm of layer 2 is missing"},
    {"heads", [](RawModelFile* r) { Config(r).n_heads = -4; }, "n_heads is -4"},
    {"group of heads", [](RawModelFile* r) { Config(r).n_kv_heads = 3; },
     "n_heads 4 is not a multiple of n_kv_heads 3"},
    {"shared KV head",
     [](RawModelFile* r) {
       Config(r).n_heads = 258, Config(r).n_kv_heads = 2, r->content.head_scores.clear();
     },
     "unsupported: n_heads 258 with n_kv_heads 2: 129 query heads share a KV head, the limit is 128",
     Code::kUnsupported},
    {"head size", [](RawModelFile* r) { Config(r).head_dim = 12; }, "unsupported: head_dim 12",
     Code::kUnsupported},
    {"huge head", [](RawModelFile* r) { Config(r).head_dim = 1 << 30; }, "head_dim is 1073741824"},
    {"hidden", [](RawModelFile* r) { Config(r).hidden_size = INT32_MAX; }, "hidden_size is 2147483647"},
    {"ffn", [](RawModelFile* r) { Config(r).ffn_size = 0; }, "ffn_size is 0"},
    {"vocabulary", [](RawModelFile* r) { Config(r).vocab_size = INT32_MAX; }, "vocab_size is 2147483647"},
    {"other vocabulary", [](RawModelFile* r) { Config(r).vocab_size = 300; },
     "262 pieces, the vocabulary 300"},
    {"context", [](RawModelFile* r) { Config(r).max_tokens = 0; }, "max_tokens is 0"},
    {"window", [](RawModelFile* r) { Config(r).sliding_window = -1; }, "sliding_window is -1"},
    {"eps", [](RawModelFile* r) { Config(r).norm_eps = 0; },
     "norm_eps is 0, it must be at least 1.17549e-38"},
    {"eps that f32 does not have", [](RawModelFile* r) { Config(r).norm_eps = 1e-50; }, "norm_eps is 1e-50"},
    {"eps NaN", [](RawModelFile* r) { Config(r).norm_eps = kNan; }, "norm_eps is nan"},
    {"large eps", [](RawModelFile* r) { Config(r).norm_eps = 2; }, "norm_eps is 2"},
    {"theta", [](RawModelFile* r) { Config(r).rope.theta = kInf; }, "rope theta is inf"},
    {"tiny factor",
     [](RawModelFile* r) { Config(r).rope.scaling = RopeScaling::kLinear, Config(r).rope.factor = 1e-308; },
     "no finite rotation of dimension"},
    {"attention factor",
     [](RawModelFile* r) {
       Config(r).rope = {1e4, RopeScaling::kYarn, 8, 1, 4, 32, 1, 1e-30, 8192, true, 0, {}};
     },
     "cos and sin are scaled by 1e-30, outside 0.001 to 1000"},
    {"factor",
     [](RawModelFile* r) { Config(r).rope.scaling = RopeScaling::kLinear, Config(r).rope.factor = -1; },
     "rope factor is -1"},
    {"llama3",
     [](RawModelFile* r) {
       Config(r).rope = {1e4, RopeScaling::kLlama3, 8, 4, 4, 32, 1, 0, 8192, true, 0, {}};
     },
     "high_freq_factor 4 is not above"},
    {"yarn",
     [](RawModelFile* r) {
       Config(r).rope = {1e4, RopeScaling::kYarn, 8, 1, 4, 1, 32, 0, 8192, true, 0, {}};
     },
     "beta_fast 1 is below"},
    {"yarn length",
     [](RawModelFile* r) { Config(r).rope = {1e4, RopeScaling::kYarn, 8, 1, 4, 32, 1, 0, 0, true, 0, {}}; },
     "original_max_tokens is 0"},
    {"scaling", [](RawModelFile* r) { Config(r).rope.scaling = static_cast<RopeScaling>(9); },
     "unsupported: RoPE scaling 9", Code::kUnsupported},
    {"pairing", [](RawModelFile* r) { Config(r).rope_pairing = static_cast<RopePairing>(9); },
     "unsupported: RoPE pairing 9", Code::kUnsupported},
    {"scale", [](RawModelFile* r) { Config(r).embedding_scale = 0; }, "embedding_scale is 0"},
    {"negative scale", [](RawModelFile* r) { Config(r).residual_scale = -1; }, "residual_scale is -1"},
    {"scale NaN", [](RawModelFile* r) { Config(r).logit_scale = static_cast<float>(kNan); },
     "logit_scale is nan"},
    {"attention scale", [](RawModelFile* r) { Config(r).attention_scale = 1e30f; },
     "attention_scale is 1e+30"},
    {"cap", [](RawModelFile* r) { Config(r).attention_cap = -50; }, "attention_cap is -50"},
    {"logit cap", [](RawModelFile* r) { Config(r).logit_cap = static_cast<float>(kInf); },
     "logit_cap is inf"},
    {"activation", [](RawModelFile* r) { Config(r).activation = static_cast<Activation>(9); },
     "unsupported: activation 9", Code::kUnsupported},
    {"no norms", [](RawModelFile* r) { Config(r).norms_before = false; }, "norms neither before nor after"},
    {"norms behind", [](RawModelFile* r) { Config(r).norms_after = true; },
     "attention_post_norm of layer 0 is missing"},
    {"wide norms of nothing", [](RawModelFile* r) { Config(r).wide_qk_norm = true; },
     "wide_qk_norm without qk_norm"},
    {"rotated", [](RawModelFile* r) { Config(r).rope.rotated = 18; },
     "the number of rotated dimensions is 18, outside 0 to 16"},
    {"odd rotation", [](RawModelFile* r) { Config(r).rope.rotated = 3; },
     "3 rotated dimensions are no pairs"},
    {"divisors of nothing",
     [](RawModelFile* r) {
       Config(r).rope.divisors = {1, 1};
     },
     "2 divisors"},
    {"too few divisors",
     [](RawModelFile* r) {
       Config(r).rope.scaling = RopeScaling::kDivisors, Config(r).rope.divisors = {1, 1};
     },
     "2 divisors"},
    {"divisor",
     [](RawModelFile* r) {
       Config(r).rope.scaling = RopeScaling::kDivisors, Config(r).rope.divisors.assign(8, 1.f);
       Config(r).rope.divisors[3] = 0;
     },
     "a divisor of rope is 0"},
    {"many divisors", [](RawModelFile* r) { Config(r).rope.divisors.assign(1000, 1.f); },
     "rope has 1000 divisors, the limit is 512"},
    {"ropes", [](RawModelFile* r) { Config(r).more_ropes.resize(16); },
     "the model has 17 ropes, the limit is 16"},
    {"second rope",
     [](RawModelFile* r) { Config(r).more_ropes.resize(1), Config(r).more_ropes[0].theta = -1; },
     "rope theta is -1"},
    {"rope of a layer",
     [](RawModelFile* r) {
       Config(r).layers = {{0, 0}, {0, 1}};
     },
     "the rope of a layer is 1, outside -1 to 0"},
    {"window of a layer",
     [](RawModelFile* r) {
       Config(r).layers = {{0, 0}, {-7, 0}};
     },
     "the window of a layer is -7"},
    {"layers that are not there",
     [](RawModelFile* r) {
       Config(r).layers = {{0, 0}, {7, 0}, {0, 0}};
     },
     "layer_windows has 3 and layer_ropes 3 entries for 2 layers"},
    {"experts", [](RawModelFile* r) { Config(r).n_experts = 1025; }, "n_experts is 1025, outside 0 to 1024"},
    {"negative experts", [](RawModelFile* r) { Config(r).n_experts = -1; }, "n_experts is -1"},
    {"chosen of nothing", [](RawModelFile* r) { Config(r).n_chosen = 1; },
     "the number of experts of a token is 1, outside 0 to 0"},
    {"none chosen", [](RawModelFile* r) { Config(r).n_experts = 4; },
     "the number of experts of a token is 0, outside 1 to 4"},
    {"more chosen than there are", [](RawModelFile* r) { Config(r).n_experts = 4, Config(r).n_chosen = 5; },
     "the number of experts of a token is 5, outside 1 to 4"},
    {"normalised nothing", [](RawModelFile* r) { Config(r).normalise_experts = true; },
     "normalise_experts without experts"},
    {"experts that are not there", [](RawModelFile* r) { Config(r).n_experts = 4, Config(r).n_chosen = 2; },
     "tensor gate of layer 0: the config has no such tensor"},
    {"long name", [](RawModelFile* r) { Config(r).name.assign(70000, 'x'); },
     "name has 70000 bytes, the limit is 65536"},
};

const Rule kTokenizerRules[] = {
    {"kind", [](RawModelFile* r) { Tok(r).kind = static_cast<TokenizerKind>(3); },
     "unsupported: tokenizer kind 3", Code::kUnsupported},
    {"piece kind", [](RawModelFile* r) { Tok(r).piece_kinds[7] = static_cast<PieceKind>(9); },
     "tokenizer piece 7 has kind 9", Code::kUnsupported},
    {"piece kinds", [](RawModelFile* r) { Tok(r).piece_kinds.pop_back(); }, "262 pieces and 261 piece kinds"},
    {"scores",
     [](RawModelFile* r) {
       Tok(r).scores = {1, 2};
     },
     "262 pieces and 2 scores"},
    {"score", [](RawModelFile* r) { Tok(r).scores.assign(262, 0.f), Tok(r).scores[9] = kInf; },
     "piece 9 is not finite"},
    {"odd merges",
     [](RawModelFile* r) {
       Tok(r).merges = {1, 2, 3};
     },
     "merge has only one side"},
    {"merge",
     [](RawModelFile* r) {
       Tok(r).merges = {1, 2, 3, 262};
     },
     "tokenizer merge 1 names piece 262 of 262"},
    {"negative merge",
     [](RawModelFile* r) {
       Tok(r).merges = {-1, 2};
     },
     "tokenizer merge 0 names piece -1"},
    {"bos", [](RawModelFile* r) { Tok(r).bos = 262; }, "token bos is 262, outside -1 to 261"},
    {"eos", [](RawModelFile* r) { Tok(r).eos = -2; }, "token eos is -2"},
    {"stop",
     [](RawModelFile* r) {
       Tok(r).stop_tokens = {1, -1};
     },
     "stop token is -1"},
    {"begin",
     [](RawModelFile* r) {
       Tok(r).begin_tokens = {1, 262};
     },
     "begin token is 262, outside 0 to 261"},
    {"negative begin", [](RawModelFile* r) { Tok(r).begin_tokens = {-1}; }, "begin token is -1"},
    {"begin tokens", [](RawModelFile* r) { Tok(r).begin_tokens.assign(17, 1); },
     "17 begin tokens, the limit is 16"},
    {"patterns", [](RawModelFile* r) { Tok(r).patterns.assign(17, "a"); }, "17 patterns, the limit is 16"},
    {"pattern", [](RawModelFile* r) { Tok(r).patterns.assign(2, std::string(2049, 'a')); },
     "4098 bytes of patterns, the limit is 4096"},
    {"byte patterns", [](RawModelFile* r) { Tok(r).n_byte_patterns = 17; }, "byte_patterns is 17, outside 0"},
    {"no byte patterns", [](RawModelFile* r) { Tok(r).n_byte_patterns = -1; }, "byte_patterns is -1"},
    {"long piece", [](RawModelFile* r) { Tok(r).pieces[260].assign(1025, 'a'); },
     "tokenizer piece 260 has 1025 bytes, the limit is 1024"},
    {"empty piece", [](RawModelFile* r) { Tok(r).pieces[65].clear(); }, "tokenizer piece 65 is empty"},
    {"stop tokens", [](RawModelFile* r) { Tok(r).stop_tokens.assign(1025, 1); },
     "1025 stop tokens, the limit is 1024"},
    {"turn", [](RawModelFile* r) { r->content.turn_format.user_prefix.assign(65537, 'a'); },
     "turn format has 65537"},
    {"answer", [](RawModelFile* r) { r->content.turn_format.answer_prefix = std::string(65537, 'a'); },
     "turn format has 65537"},
    {"trim", [](RawModelFile* r) { r->content.turn_format.trim = 128; }, "trim is 128", Code::kUnsupported},
    {"system turns",
     [](RawModelFile* r) { r->content.turn_format.system_turns = static_cast<SystemTurns>(3); },
     "system_turns is 3", Code::kUnsupported},
};

const Rule kScoreRules[] = {
    {"name", [](RawModelFile* r) { Scores(r).name.clear(); }, "a head-score table has no name"},
    {"twice", [](RawModelFile* r) { r->content.head_scores.push_back(Scores(r)); },
     "tiny-ssv is there twice"},
    {"layers", [](RawModelFile* r) { Scores(r).n_layers = 1; }, "tiny-ssv: shape [1, 2]"},
    {"columns", [](RawModelFile* r) { Scores(r).n_columns = 3; }, "tiny-ssv: shape [2, 3]"},
    {"count", [](RawModelFile* r) { Scores(r).scores.pop_back(); }, "tiny-ssv: 3 scores, its shape needs 4"},
    {"NaN", [](RawModelFile* r) { Scores(r).scores[3] = kNan; },
     "the score of layer 1, column 1 is not finite"},
    {"samples", [](RawModelFile* r) { Scores(r).n_samples = -1; },
     "tiny-ssv: n_samples, budget or alpha is negative"},
    {"alpha", [](RawModelFile* r) { Scores(r).alpha = -1; }, "n_samples, budget or alpha is negative"},
    {"tables", [](RawModelFile* r) { r->content.head_scores.resize(65); },
     "65 head-score tables, the limit is 64"},
};

const Rule kTensorRules[] = {
    {"missing", [](RawModelFile* r) { Remove(r, TensorRole::kKey, 1); }, "tensor key of layer 1 is missing"},
    {"no embedding", [](RawModelFile* r) { Remove(r, TensorRole::kEmbedding, -1); },
     "tensor embedding is missing"},
    {"no head", [](RawModelFile* r) { Remove(r, TensorRole::kOutputHead, -1); },
     "tensor output_head is missing"},
    {"head of a tied model", [](RawModelFile* r) { Config(r).tied_head = true; },
     "tensor output_head: the config has no such tensor"},
    {"twice", [](RawModelFile* r) { Find(r, TensorRole::kKey, 1)->layer = 0; },
     "tensor key of layer 0 is there twice"},
    {"layer", [](RawModelFile* r) { Find(r, TensorRole::kKey, 1)->layer = 2; },
     "tensor key: layer 2 of a model of 2"},
    {"no layer", [](RawModelFile* r) { Find(r, TensorRole::kKey, 1)->layer = -1; }, "tensor key: layer -1"},
    {"layer of the model", [](RawModelFile* r) { Find(r, TensorRole::kFinalNorm, -1)->layer = 0; },
     "tensor final_norm: layer 0"},
    {"role", [](RawModelFile* r) { Find(r, TensorRole::kKey, 1)->role = static_cast<TensorRole>(5); },
     "unsupported: tensor role 5", Code::kUnsupported},
    {"large role",
     [](RawModelFile* r) { Find(r, TensorRole::kKey, 1)->role = static_cast<TensorRole>(60000); },
     "unsupported: tensor role 60000", Code::kUnsupported},
    {"one bias",
     [](RawModelFile* r) {
       r->tensors.push_back({TensorRole::kKeyBias, 1, WeightType::kF32, 1, 32, 0});
       r->section_bytes.emplace_back(128);
     },
     "tensor key_bias of layer 0 is missing, other layers have it"},
    {"norm of no head",
     [](RawModelFile* r) {
       r->tensors.push_back({TensorRole::kKeyNorm, 1, WeightType::kF32, 1, 16, 0});
       r->section_bytes.emplace_back(64);
     },
     "tensor key_norm of layer 1: the config has no such tensor"},
    {"sinks missing", [](RawModelFile* r) { Config(r).attention_sinks = true; },
     "tensor attention_sinks of layer 0 is missing"},
    {"sinks of a model without",
     [](RawModelFile* r) {
       r->tensors.push_back({TensorRole::kAttentionSinks, 1, WeightType::kF32, 1, 4, 0});
       r->section_bytes.emplace_back(16);
     },
     "tensor attention_sinks of layer 1: the config has no such tensor"},
    {"shape of sinks",
     [](RawModelFile* r) {
       Config(r).attention_sinks = true;
       for (int32_t layer : {0, 1}) {
         r->tensors.push_back({TensorRole::kAttentionSinks, layer, WeightType::kF32, 1, 3, 0});
         r->section_bytes.emplace_back(12);
       }
     },
     "tensor attention_sinks of layer 0: shape [1, 3], the config needs [1, 4]"},
    {"a sink that is not finite",
     [](RawModelFile* r) {
       Config(r).attention_sinks = true;
       for (int32_t layer : {0, 1}) {
         r->tensors.push_back({TensorRole::kAttentionSinks, layer, WeightType::kF32, 1, 4, 0});
         r->section_bytes.emplace_back(16);
       }
       SetFloat(r, TensorRole::kAttentionSinks, 1, 2, kInf);
     },
     "tensor attention_sinks of layer 1: the value at row 0, column 2 is NaN or infinite"},
    {"a clamped activation without its limit",
     [](RawModelFile* r) {
       Config(r).activation = Activation::kClampedSwiglu, Config(r).activation_gain = 1;
     },
     "activation_gain and activation_limit are for a clamped activation"},
    {"a limit of another activation", [](RawModelFile* r) { Config(r).activation_limit = 7; },
     "activation_gain and activation_limit are for a clamped activation"},
    {"bias of experts that are not there",
     [](RawModelFile* r) {
       r->tensors.push_back({TensorRole::kExpertUpBias, 1, WeightType::kF32, 1, 64, 0});
       r->section_bytes.emplace_back(256);
     },
     "tensor expert_up_bias of layer 1: the config has no such tensor"},
    {"norms without their biases", [](RawModelFile* r) { Config(r).layer_norms = true; },
     "tensor final_norm_bias is missing"},
    {"layer norms behind the blocks",
     [](RawModelFile* r) { Config(r).layer_norms = Config(r).norms_after = true; },
     "layer norms behind the blocks or over all heads are not supported", Code::kUnsupported},
    {"bias of a norm that has none",
     [](RawModelFile* r) {
       r->tensors.push_back({TensorRole::kFfnNormBias, 1, WeightType::kF32, 1, 32, 0});
       r->section_bytes.emplace_back(128);
     },
     "tensor ffn_norm_bias of layer 1: the config has no such tensor"},
    {"own norms of heads without norms", [](RawModelFile* r) { Config(r).own_qk_norms = true; },
     "own_qk_norms without qk_norm"},
    {"a norm that parallel blocks have not", [](RawModelFile* r) { Config(r).parallel_blocks = true; },
     "tensor ffn_norm of layer 0: the config has no such tensor"},
    {"parallel blocks with norms behind them",
     [](RawModelFile* r) { Config(r).parallel_blocks = Config(r).norms_after = true; },
     "parallel blocks with norms behind them or experts are not supported", Code::kUnsupported},
    {"shape",
     [](RawModelFile* r) {
       TensorPlan* t = Find(r, TensorRole::kQuery, 1);
       std::swap(t->rows, t->cols);
     },
     "tensor query of layer 1: shape [32, 64], the config needs [64, 32]"},
    {"type", [](RawModelFile* r) { Find(r, TensorRole::kQuery, 0)->type = static_cast<WeightType>(9); },
     "unsupported: tensor query of layer 0: weight type 9", Code::kUnsupported},
    {"norm type", [](RawModelFile* r) { Find(r, TensorRole::kFfnNorm, 0)->type = WeightType::kF16; },
     "tensor ffn_norm of layer 0: type f16, norms and biases are f32"},
    {"other type", [](RawModelFile* r) { Find(r, TensorRole::kQuery, 0)->type = WeightType::kF16; },
     "tensor query of layer 0: its section has 8192 bytes, shape [64, 32] in f16 needs 4096"},
    {"group of f32", [](RawModelFile* r) { Find(r, TensorRole::kQuery, 0)->group = 16; },
     "group 16, type f32 has none"},
    {"group",
     [](RawModelFile* r) {
       Find(r, TensorRole::kQuery, 0)->type = WeightType::kInt8, Find(r, TensorRole::kQuery, 0)->group = 24;
     },
     "group 24 does not divide 32 columns"},
    {"no group", [](RawModelFile* r) { Find(r, TensorRole::kQuery, 0)->type = WeightType::kInt4; },
     "unsupported: tensor query of layer 0: groups of 0 columns, the range is 8 to 65536",
     Code::kUnsupported},
    {"small group",
     [](RawModelFile* r) {
       Find(r, TensorRole::kQuery, 0)->type = WeightType::kInt8, Find(r, TensorRole::kQuery, 0)->group = 4;
     },
     "groups of 4 columns, the range is 8 to 65536", Code::kUnsupported},
    {"negative group",
     [](RawModelFile* r) {
       Find(r, TensorRole::kQuery, 0)->type = WeightType::kInt8, Find(r, TensorRole::kQuery, 0)->group = -32;
     },
     "groups of -32 columns", Code::kUnsupported},
    {"large group",
     [](RawModelFile* r) {
       Config(r).ffn_size = 1 << 17;
       for (TensorPlan& t : r->tensors) TensorShape(Config(r), t.role, &t.rows, &t.cols);
       Find(r, TensorRole::kDown, 0)->type = WeightType::kInt8,
                                  Find(r, TensorRole::kDown, 0)->group = 1 << 17;
     },
     "tensor down of layer 0: groups of 131072 columns, the range is 8 to 65536", Code::kUnsupported},
    {"odd group",
     [](RawModelFile* r) {
       Config(r).hidden_size = 33;
       for (TensorPlan& t : r->tensors) TensorShape(Config(r), t.role, &t.rows, &t.cols);
       Find(r, TensorRole::kQuery, 0)->type = WeightType::kInt4, Find(r, TensorRole::kQuery, 0)->group = 11;
     },
     "group 11 is odd"},
    {"NaN in a norm", [](RawModelFile* r) { SetFloat(r, TensorRole::kFfnNorm, 1, 3, kNan); },
     "tensor ffn_norm of layer 1: the value at row 0, column 3 is NaN or infinite"},
    {"infinity in a matrix", [](RawModelFile* r) { SetFloat(r, TensorRole::kDown, 0, 31 * 64 + 63, -kInf); },
     "tensor down of layer 0: the value at row 31, column 63 is NaN or infinite"},
};

// Section 0 is the embedding, 1 the first norm of 128 bytes, 2 the first query matrix.
template <typename F>
std::function<void(RawModelFile*)> Section(F change) {
  return [change](RawModelFile* r) {
    r->edit_sections = [change](std::vector<SectionEntry>* s) { change(*s); };
  };
}
using Entries = std::vector<SectionEntry>;
const Rule kSectionRules[] = {
    {"outside", Section([](Entries& s) { s[1].size = uint64_t{1} << 40; }), "section 1 (1099511627776 bytes"},
    {"far", Section([](Entries& s) { s[1].offset = ~uint64_t{0} - 4095; }), "is outside the file"},
    {"overflow", Section([](Entries& s) { s[1].offset = 8192, s[1].size = ~uint64_t{0} - 4096; }),
     "is outside the file"},
    {"negative", Section([](Entries& s) { s[1].size = uint64_t(-128); }), "is outside the file"},
    {"alignment", Section([](Entries& s) { s[1].offset += 64; }), "section 1 at"},
    {"shared", Section([](Entries& s) { s[1].offset = s[2].offset; }), "overlaps what ends at"},
    {"header", Section([](Entries& s) { s[1].offset = 0; }), "overlaps what ends at"},
    {"short", Section([](Entries& s) { s[1].size = 64; }), "is padding and must be 0"},
    {"short at the end", Section([](Entries& s) { s.back().size -= 4; }), "the last section ends at"},
    {"kind", Section([](Entries& s) { s[1].kind = 2; }),
     "tensor attention_norm of layer 0: section 1 is not a tensor's"},
    {"gone", Section([](Entries& s) { s.pop_back(); }), "the last section ends at"},
    {"checksum", Section([](Entries& s) { s[2].checksum ^= 1; }), "tensor query of layer 0 (bytes"},
};

template <size_t N>
void CheckRules(const Rule (&rules)[N]) {
  for (const Rule& rule : rules) {
    SCOPED_TRACE(rule.name);
    RawModelFile raw = RawModelFile::Tiny({});
    rule.change(&raw);
    const AlignedBytes bytes = raw.Build();
    const Status status = OpenStatus(bytes, bytes.size());
    EXPECT_EQ(status.code(), rule.code);
    EXPECT_TRUE(SaysWhy(status)) << status.message();
    EXPECT_NE(status.message().find(rule.message), std::string::npos) << status.message();
  }
}

TEST(ModelFileRules, Config) { CheckRules(kConfigRules); }
TEST(ModelFileRules, Tokenizer) { CheckRules(kTokenizerRules); }
TEST(ModelFileRules, HeadScores) { CheckRules(kScoreRules); }
TEST(ModelFileRules, Tensors) { CheckRules(kTensorRules); }
TEST(ModelFileRules, Sections) { CheckRules(kSectionRules); }

TEST(ModelFileRules, NotFiniteIsFoundInEveryFloatFormatAndInScales) {
  const std::pair<WeightType, uint16_t> kinds[] = {{WeightType::kF16, FloatToF16(kInf)},
                                                   {WeightType::kBf16, 0xff80},
                                                   {WeightType::kInt8, FloatToF16(kNan)},
                                                   {WeightType::kInt4, 0xfc00}};
  for (const auto& [type, bits] : kinds) {
    TinyModelOptions options;
    options.type = type;
    RawModelFile raw = RawModelFile::Tiny(options);
    std::vector<uint8_t>& bytes = raw.section_bytes.back();  // the output head [262, 32]; scales come last
    std::memcpy(bytes.data() + bytes.size() - 2, &bits, 2);
    const AlignedBytes file = raw.Build();
    const Status status = OpenStatus(file, file.size());
    const bool coded = type == WeightType::kInt8 || type == WeightType::kInt4;
    const char* where =
        coded ? "tensor output_head: the scale at row 261, group 1" : "the value at row 261, column 31";
    EXPECT_NE(status.message().find(where), std::string::npos) << status.message();
  }
}

// Single changes to the directory's bytes with all hashes repaired: whatever they do, it ends in a status.
TEST(ModelFileRules, AnyChangedDirectoryByteWithRightHashesIsHandled) {
  const AlignedBytes original = test::TinyModelBytes(Smallest(WeightType::kInt8));
  uint64_t directory_bytes;
  std::memcpy(&directory_bytes, original.data() + 8, 8);
  int n_refused = 0;
  for (size_t i = 40; i < 40 + directory_bytes; i += 3) {
    for (const uint8_t flip : {0x01, 0xff}) {
      AlignedBytes bytes = original;
      bytes[i] ^= flip;
      RepairHashes(&bytes);
      const Status status = OpenStatus(bytes, bytes.size());
      if (status.ok()) continue;
      ++n_refused;
      ASSERT_TRUE(SaysWhy(status)) << i << ": " << status.message();
    }
  }
  EXPECT_GT(n_refused, 300);
}

// Files that were, or could be, a finding: each line of the list names one and a part of the message.
TEST(ModelFileRules, KnownBadFilesAreRefused) {
  const std::string folder = KVC_TEST_DATA "/bad/model_file/";
  std::ifstream list(folder + "expected.txt");
  std::string line;
  int n_files = 0;
  while (std::getline(list, line)) {
    const size_t space = line.find(' ');
    ASSERT_NE(space, std::string::npos) << line;
    const std::string name = line.substr(0, space);
    MemoryMeter meter(0);
    const Status status = ModelFile::Open(folder + name, &meter).status();
    EXPECT_FALSE(status.ok()) << name;
    EXPECT_NE(status.message().find(line.substr(space + 1)), std::string::npos)
        << name << ": " << status.message();
    ++n_files;
  }
  EXPECT_GT(n_files, 5);
}

}  // namespace
}  // namespace kvc
