// StableLM 3B, StableLM 2 and 12B: layer norms with biases, a quarter of each head rotates. 12B has norms of
// its own for every query and key head, and blocks side by side.
#include "models/convert/family.h"

namespace kvc {
namespace {

Status Read(const JsonObject& object, ModelConfig* c) {
  c->norm_eps = 1e-5;
  KVC_RETURN_IF_ERROR(object.Number("layer_norm_eps", 0, 1, &c->norm_eps));
  KVC_RETURN_IF_ERROR(object.Bool("qk_layernorm", &c->qk_norm));
  c->own_qk_norms = c->qk_norm;
  return object.Bool("use_parallel_residual", &c->parallel_blocks);
}

// use_parallel_residual is written as true where a config.json does not say, which means false.
Status ReadGguf(GgufMetadata* metadata, const std::string& p, ModelConfig* c) {
  bool ignored = false;
  KVC_RETURN_IF_ERROR(metadata->Bool(p + "use_parallel_residual", &ignored));
  return metadata->Number(p + "attention.layer_norm_epsilon", 0, 1, &c->norm_eps);
}

void SettleGguf(const std::function<bool(const char*)>& has, ModelConfig* c) {
  c->parallel_blocks = !has("blk.0.ffn_norm.weight");
  c->qk_norm = c->own_qk_norms = has("blk.0.attn_q_norm.weight");
}

using R = TensorRole;

}  // namespace

const Family& StableLm() {
  static const Family family = [] {
    Family f;
    f.name = f.gguf = "stablelm", f.hf = "StableLmForCausalLM";
    f.biases = Biases::kUseQkv;
    f.layer_norms = true;
    f.rotated_share = 0.25;
    f.hf_names = {{"model.norm.bias", R::kFinalNormBias},
                  {"model.layers.%.input_layernorm.bias", R::kAttentionNormBias},
                  {"model.layers.%.post_attention_layernorm.bias", R::kFfnNormBias},
                  {"model.layers.%.self_attn.q_layernorm.norms.#.weight", R::kQueryNorm},
                  {"model.layers.%.self_attn.k_layernorm.norms.#.weight", R::kKeyNorm}};
    f.gguf_names = {{"output_norm.bias", R::kFinalNormBias},
                    {"blk.%.attn_norm.bias", R::kAttentionNormBias},
                    {"blk.%.ffn_norm.bias", R::kFfnNormBias}};
    f.settings = {"partial_rotary_factor", "layer_norm_eps",        "norm_eps",      "use_qkv_bias",
                  "qk_layernorm",          "use_parallel_residual", "hidden_dropout"};
    f.read = Read, f.read_gguf = ReadGguf, f.settle_gguf = SettleGguf;
    return f;
  }();
  return family;
}

}  // namespace kvc
