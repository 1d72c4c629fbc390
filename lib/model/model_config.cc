#include "lib/model/model_config.h"

namespace kvc {

const char* TensorRoleName(TensorRole role) {
  switch (role) {
    case TensorRole::kEmbedding:
      return "embedding";
    case TensorRole::kFinalNorm:
      return "final_norm";
    case TensorRole::kOutputHead:
      return "output_head";
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
    case TensorRole::kFfnNorm:
      return "ffn_norm";
    case TensorRole::kGate:
      return "gate";
    case TensorRole::kUp:
      return "up";
    case TensorRole::kDown:
      return "down";
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
    case TensorRole::kAttentionNorm:
    case TensorRole::kFfnNorm:
    case TensorRole::kOutputBias:
      return shape(1, hidden);
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
    case TensorRole::kKeyNorm:
      return config.qk_norm && shape(1, config.head_dim);
    case TensorRole::kGate:
    case TensorRole::kUp:
      return shape(config.ffn_size, hidden);
    case TensorRole::kDown:
      return shape(hidden, config.ffn_size);
  }
  return false;
}

bool IsVectorRole(TensorRole role) {
  switch (role) {
    case TensorRole::kFinalNorm:
    case TensorRole::kAttentionNorm:
    case TensorRole::kFfnNorm:
    case TensorRole::kQueryBias:
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
    case TensorRole::kOutputBias:
    case TensorRole::kQueryNorm:
    case TensorRole::kKeyNorm:
      return true;
    default:
      return false;
  }
}

}  // namespace kvc
