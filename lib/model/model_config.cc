#include "lib/model/model_config.h"

#include <algorithm>

namespace kvc {

bool ModelConfig::layers_differ() const {
  return std::any_of(layers.begin(), layers.end(), [this](const LayerConfig& l) {
    return l.attention_window != sliding_window || l.rope != 0;
  });
}

bool ModelConfig::fits_version_1() const {
  const bool plain = embedding_scale == 1 && residual_scale == 1 && logit_scale == 1 &&
                     attention_scale == 0 && attention_cap == 0 && logit_cap == 0;
  const bool one_rope = rope.scaling != RopeScaling::kDivisors && rope.rotated == 0 && more_ropes.empty();
  return plain && one_rope && norms_before && !norms_after && !wide_qk_norm &&
         activation == Activation::kSilu && n_experts == 0 && !layers_differ() && fits_version_3();
}

bool ModelConfig::fits_version_3() const {
  const bool whole = rope.whole_ramp && std::all_of(more_ropes.begin(), more_ropes.end(),
                                                    [](const RopeConfig& r) { return r.whole_ramp; });
  return whole && !layer_norms && !own_qk_norms && !parallel_blocks && !attention_sinks &&
         activation != Activation::kClampedSwiglu;
}

const char* TensorRoleName(TensorRole role) {
  switch (role) {
    case TensorRole::kEmbedding:
      return "embedding";
    case TensorRole::kFinalNorm:
      return "final_norm";
    case TensorRole::kOutputHead:
      return "output_head";
    case TensorRole::kFinalNormBias:
      return "final_norm_bias";
    case TensorRole::kAttentionNorm:
      return "attention_norm";
    case TensorRole::kQuery:
      return "query";
    case TensorRole::kKey:
      return "key";
    case TensorRole::kValue:
      return "value";
    case TensorRole::kOutput:
      return "output";
    case TensorRole::kQueryBias:
      return "query_bias";
    case TensorRole::kKeyBias:
      return "key_bias";
    case TensorRole::kValueBias:
      return "value_bias";
    case TensorRole::kOutputBias:
      return "output_bias";
    case TensorRole::kQueryNorm:
      return "query_norm";
    case TensorRole::kKeyNorm:
      return "key_norm";
    case TensorRole::kAttentionPostNorm:
      return "attention_post_norm";
    case TensorRole::kAttentionNormBias:
      return "attention_norm_bias";
    case TensorRole::kAttentionSinks:
      return "attention_sinks";
    case TensorRole::kFfnPostNorm:
      return "ffn_post_norm";
    case TensorRole::kFfnNormBias:
      return "ffn_norm_bias";
    case TensorRole::kFfnNorm:
      return "ffn_norm";
    case TensorRole::kGate:
      return "gate";
    case TensorRole::kUp:
      return "up";
    case TensorRole::kDown:
      return "down";
    case TensorRole::kRouter:
      return "router";
    case TensorRole::kExpertGate:
      return "expert_gate";
    case TensorRole::kExpertUp:
      return "expert_up";
    case TensorRole::kExpertDown:
      return "expert_down";
    case TensorRole::kRouterBias:
      return "router_bias";
    case TensorRole::kExpertGateBias:
      return "expert_gate_bias";
    case TensorRole::kExpertUpBias:
      return "expert_up_bias";
    case TensorRole::kExpertDownBias:
      return "expert_down_bias";
  }
  return "unknown";
}

bool TensorShape(const ModelConfig& config, TensorRole role, int32_t* rows, int32_t* cols) {
  const int32_t q = config.n_heads * config.head_dim, kv = config.n_kv_heads * config.head_dim;
  const int32_t hidden = config.hidden_size;
  const auto shape = [rows, cols](int32_t r, int32_t c) {
    *rows = r, *cols = c;
    return true;
  };
  switch (role) {
    case TensorRole::kEmbedding:
      return shape(config.vocab_size, hidden);
    case TensorRole::kOutputHead:
      return !config.tied_head && shape(config.vocab_size, hidden);
    case TensorRole::kFinalNorm:
    case TensorRole::kOutputBias:
      return shape(1, hidden);
    case TensorRole::kAttentionNorm:
      return config.norms_before && shape(1, hidden);
    case TensorRole::kFfnNorm:
      return config.norms_before && !config.parallel_blocks && shape(1, hidden);
    case TensorRole::kFinalNormBias:
    case TensorRole::kAttentionNormBias:
      return config.layer_norms && shape(1, hidden);
    case TensorRole::kFfnNormBias:
      return config.layer_norms && !config.parallel_blocks && shape(1, hidden);
    case TensorRole::kAttentionPostNorm:
    case TensorRole::kFfnPostNorm:
      return config.norms_after && shape(1, hidden);
    case TensorRole::kQuery:
      return shape(q, hidden);
    case TensorRole::kKey:
    case TensorRole::kValue:
      return shape(kv, hidden);
    case TensorRole::kOutput:
      return shape(hidden, q);
    case TensorRole::kQueryBias:
      return shape(1, q);
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
      return shape(1, kv);
    case TensorRole::kQueryNorm:
      if (config.own_qk_norms) return config.qk_norm && shape(config.n_heads, config.head_dim);
      return config.qk_norm && shape(1, config.wide_qk_norm ? q : config.head_dim);
    case TensorRole::kKeyNorm:
      if (config.own_qk_norms) return config.qk_norm && shape(config.n_kv_heads, config.head_dim);
      return config.qk_norm && shape(1, config.wide_qk_norm ? kv : config.head_dim);
    case TensorRole::kGate:
    case TensorRole::kUp:
      return config.n_experts == 0 && shape(config.ffn_size, hidden);
    case TensorRole::kDown:
      return config.n_experts == 0 && shape(hidden, config.ffn_size);
    case TensorRole::kRouter:
      return config.n_experts > 0 && shape(config.n_experts, hidden);
    case TensorRole::kExpertGate:
    case TensorRole::kExpertUp:
      return config.n_experts > 0 && shape(config.n_experts * config.ffn_size, hidden);
    case TensorRole::kExpertDown:
      return config.n_experts > 0 && shape(config.n_experts * hidden, config.ffn_size);
    case TensorRole::kAttentionSinks:
      return config.attention_sinks && shape(1, config.n_heads);
    case TensorRole::kRouterBias:
      return config.n_experts > 0 && shape(1, config.n_experts);
    case TensorRole::kExpertGateBias:
    case TensorRole::kExpertUpBias:
      return config.n_experts > 0 && shape(config.n_experts, config.ffn_size);
    case TensorRole::kExpertDownBias:
      return config.n_experts > 0 && shape(config.n_experts, hidden);
  }
  return false;
}

bool IsStackRole(TensorRole role) {
  return role == TensorRole::kExpertGate || role == TensorRole::kExpertUp || role == TensorRole::kExpertDown;
}

int32_t StackOf(const ModelConfig& config, TensorRole role) {
  return IsStackRole(role) ? config.n_experts : 1;
}

bool IsVectorRole(TensorRole role) {
  switch (role) {
    case TensorRole::kFinalNorm:
    case TensorRole::kAttentionNorm:
    case TensorRole::kFfnNorm:
    case TensorRole::kAttentionPostNorm:
    case TensorRole::kFfnPostNorm:
    case TensorRole::kQueryBias:
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
    case TensorRole::kOutputBias:
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm:
    case TensorRole::kFinalNormBias:
    case TensorRole::kAttentionNormBias:
    case TensorRole::kFfnNormBias:
    case TensorRole::kAttentionSinks:
      return true;
    default:
      return role >= TensorRole::kRouterBias && role <= TensorRole::kExpertDownBias;
  }
}

bool IsBiasRole(TensorRole role) {
  return (role >= TensorRole::kQueryBias && role <= TensorRole::kOutputBias) ||
         (role >= TensorRole::kRouterBias && role <= TensorRole::kExpertDownBias);
}

bool IsVersion4Role(TensorRole role) {
  return role == TensorRole::kFinalNormBias || role == TensorRole::kAttentionNormBias ||
         role == TensorRole::kAttentionSinks || role == TensorRole::kFfnNormBias ||
         (role >= TensorRole::kRouterBias && role <= TensorRole::kExpertDownBias);
}

}  // namespace kvc
