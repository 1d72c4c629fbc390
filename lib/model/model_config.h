// What kind of network a model file holds. Plain data; validated by ModelFile before anyone sees it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/limits.h"
#include "lib/ops/network_ops.h"
#include "lib/ops/rope.h"
#include "lib/ops/tensor.h"

namespace kvc {

// Tokens that a session which makes room for new ones counts: years of generation.
constexpr int32_t kMaxPosition = 1 << 30;

// What may differ from layer to layer.
struct LayerConfig {
  int32_t attention_window = 0;  // 0: a token sees all before it; else the newest so many
  int32_t rope = 0;              // 0: ModelConfig::rope; i: more_ropes[i - 1]; -1: no rotation
};

struct ModelConfig {
  std::string name, architecture;  // architecture: "llama", "qwen3", ...: for people; the flags below decide
  int32_t n_layers = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, hidden_size = 0, ffn_size = 0,
          vocab_size = 0;
  int32_t max_tokens = 0;  // trained context
  int32_t sliding_window =
      0;  // 0: none, or layers differ; else every layer sees only the newest so many tokens
  double norm_eps = 1e-5;
  RopeConfig rope;
  RopePairing rope_pairing = RopePairing::kHalf;
  bool qk_norm = false;    // RMS norm of q and k before RoPE, of each head
  bool tied_head = false;  // the output head is the embedding matrix
  float embedding_scale = 1, residual_scale = 1, logit_scale = 1;
  float attention_scale = 0;               // of attention logits; 0: 1 / sqrt(head_dim)
  float attention_cap = 0, logit_cap = 0;  // z becomes cap * tanh(z / cap), after the scale; 0: it stays
  // Norms in front of attention and feed-forward part, and of what these add. One of the two at least.
  bool norms_before = true, norms_after = false;
  bool wide_qk_norm = false;  // with qk_norm: over all heads of a token together
  bool own_qk_norms = false;  // with qk_norm: every head has weights of its own
  // Norms take the mean off and have biases, those of queries and keys apart; else all are RMS norms.
  bool layer_norms = false;
  // Every softmax of attention has one more logit, a learnt one of each query head, without a value.
  bool attention_sinks = false;
  float activation_gain = 0, activation_limit = 0;  // of Activation::kClampedSwiglu, else 0
  bool parallel_blocks = false;  // attention and feed-forward part read the same norm of the same x
  Activation activation = Activation::kSilu;
  // A mixture of experts in every layer, each with ffn_size; n_chosen of them work on a token. 0: none.
  int32_t n_experts = 0, n_chosen = 0;
  bool normalise_experts = false;      // the weights of those chosen are divided by their sum
  std::vector<RopeConfig> more_ropes;  // of layers that have one of their own
  // [n_layers], or empty: every layer has sliding_window, rope and activation. ModelFile fills it.
  std::vector<LayerConfig> layers;
  // Whether some layer has another window than sliding_window, or another rope than `rope`.
  bool layers_differ() const;
  // Whether a file of version 1 can hold it, or one below version 4.
  bool fits_version_1() const;
  bool fits_version_3() const;
};

// Per-head scores for head-budget methods, measured offline (methods.md 3).
struct HeadScoreTable {
  std::string name, estimator, dataset, tool, note;  // estimator "ssv" [L, G], "headkv-r2" [L, H], ...
  int32_t n_layers = 0, n_columns = 0;               // columns: G or H
  int64_t n_samples = 0, seed = 0;
  int32_t budget = 0, alpha = 0;  // alpha: chosen for CoKV on validation; 0 = not chosen
  std::vector<float> scores;      // [n_layers, n_columns]
};

enum class TensorRole : uint16_t {
  kEmbedding = 1,
  kFinalNorm = 2,
  kOutputHead = 3,
  kFinalNormBias = 4,
  kAttentionNorm = 10,
  kQuery = 11,
  kKey = 12,
  kValue = 13,
  kOutput = 14,
  kQueryBias = 15,
  kKeyBias = 16,
  kValueBias = 17,
  kOutputBias = 18,
  kQueryNorm = 19,
  kKeyNorm = 20,
  kAttentionPostNorm = 21,
  kAttentionNormBias = 22,
  kAttentionSinks = 23,
  kFfnNorm = 30,
  kGate = 31,
  kUp = 32,
  kDown = 33,
  kFfnPostNorm = 34,
  kFfnNormBias = 35,
  kRouter = 40,
  kExpertGate = 41,  // these three are stacks: expert 0's rows, then expert 1's, ..
  kExpertUp = 42,
  kExpertDown = 43,
  kRouterBias = 44,
  kExpertGateBias = 45,  // one row of each expert
  kExpertUpBias = 46,
  kExpertDownBias = 47,
};
const char* TensorRoleName(TensorRole role);  // "embedding", "attention_norm", ...; never null

// The shape a role must have under a config: [rows, cols], of stacks all rows; vectors are [1, n], or n of
// each of [rows] heads or experts. False: the config has no such tensor.
bool TensorShape(const ModelConfig& config, TensorRole role, int32_t* rows, int32_t* cols);
// Stacks hold a matrix for each expert.
bool IsStackRole(TensorRole role);
// How many matrices a tensor of this role holds: the experts of stacks, else 1.
int32_t StackOf(const ModelConfig& config, TensorRole role);
// Norms, biases and sinks are always f32; matrices may be any WeightType.
bool IsVectorRole(TensorRole role);
// There in all layers or in none, the config does not say.
bool IsBiasRole(TensorRole role);
// Files of versions below 4 have no such tensors.
bool IsVersion4Role(TensorRole role);

}  // namespace kvc
