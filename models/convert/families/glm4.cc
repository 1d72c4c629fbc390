// GLM-4: the first half of each head rotates, neighbours together; gate and up are one matrix. The models of
// 2025 (Glm4) have norms behind the blocks too.
#include "models/convert/family.h"

namespace kvc {
namespace {

using R = TensorRole;

Family Base() {
  Family f;
  f.hf_pairing = f.gguf_pairing = RopePairing::kInterleaved;
  f.biases = Biases::kOptionalQkv;
  f.rotated_share = 0.5, f.default_eps = 1.5625e-7;
  f.hf_names = {{"model.layers.%.mlp.gate_up_proj.weight", R::kGate, TensorName::kFusedGateUp}};
  f.gguf_names = {{"blk.%.ffn_up.weight", R::kGate, TensorName::kFusedGateUp}};
  f.settings = {"partial_rotary_factor"};
  return f;
}

}  // namespace

const Family& Glm() {
  static const Family family = [] {
    Family f = Base();
    f.name = "glm", f.hf = "GlmForCausalLM", f.gguf = "chatglm";
    f.gguf_names.push_back({"blk.%.attn_qkv.weight", R::kQuery, TensorName::kFusedQkv});
    f.gguf_names.push_back({"blk.%.attn_qkv.bias", R::kQueryBias, TensorName::kFusedQkv});
    return f;
  }();
  return family;
}

const Family& Glm4() {
  static const Family family = [] {
    Family f = Base();
    f.name = f.gguf = "glm4", f.hf = "Glm4ForCausalLM";
    f.norms_after = true;
    f.hf_names.push_back({"model.layers.%.post_self_attn_layernorm.weight", R::kAttentionPostNorm});
    f.hf_names.push_back({"model.layers.%.post_mlp_layernorm.weight", R::kFfnPostNorm});
    return f;
  }();
  return family;
}

}  // namespace kvc
