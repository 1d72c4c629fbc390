// Phi-3, Phi-3.5 and Phi-4: queries, keys and values in one matrix, and gate and up; LongRoPE; Phi-4-mini
// rotates a part of each head.
#include <algorithm>

#include "models/convert/family.h"

namespace kvc {
namespace {

Status AllSlide(const JsonObject&, const ModelConfig&, std::vector<bool>* layers) {
  std::fill(layers->begin(), layers->end(), true);
  return {};
}

using R = TensorRole;

}  // namespace

const Family& Phi3() {
  static const Family family = [] {
    Family f;
    f.name = f.gguf = "phi3", f.hf = "Phi3ForCausalLM";
    f.default_eps = 1e-5;
    f.rotated_share = 0;
    f.hf_names = {{"model.layers.%.self_attn.qkv_proj.weight", R::kQuery, TensorName::kFusedQkv},
                  {"model.layers.%.mlp.gate_up_proj.weight", R::kGate, TensorName::kFusedGateUp}};
    f.gguf_names = {{"blk.%.attn_qkv.weight", R::kQuery, TensorName::kFusedQkv},
                    {"blk.%.ffn_up.weight", R::kGate, TensorName::kFusedGateUp}};
    f.settings = {"partial_rotary_factor"};
    f.slides = AllSlide;
    return f;
  }();
  return family;
}

}  // namespace kvc
