// OLMo 2 and 3: norms behind the blocks instead of before them, and of all heads of queries and keys
// together; 3 has windows in three of four layers.
#include "models/convert/family.h"

namespace kvc {
namespace {

Status ThreeOfFour(const JsonObject&, const ModelConfig&, std::vector<bool>* layers) {
  SlideButEvery(4, layers);
  return {};
}

// GGUF has both under one name; those with windows have plain frequencies in layers that slide.
Status ReadGguf(GgufMetadata* metadata, const std::string& p, ModelConfig* c) {
  if (c->sliding_window == 0) return {};
  KVC_RETURN_IF_ERROR(ReadGgufWindows(metadata, p, 4, c));
  RopeConfig plain;
  plain.theta = c->rope.theta;
  KVC_RETURN_IF_ERROR(metadata->Number(p + "rope.freq_base_swa", 1, 1e12, &plain.theta));
  c->more_ropes = {plain};
  for (LayerConfig& layer : c->layers) layer.rope = layer.attention_window > 0 ? 1 : 0;
  return {};
}

using R = TensorRole;

Family Base() {
  Family f;
  f.biases = Biases::kOptionalAll;
  f.qk_norm = f.wide_qk_norm = true;
  f.norms_before = false, f.norms_after = true;
  f.hf_names = {{"model.layers.%.post_attention_layernorm.weight", R::kAttentionPostNorm},
                {"model.layers.%.post_feedforward_layernorm.weight", R::kFfnPostNorm}};
  f.default_theta = 500000;
  f.default_eps = 1e-5;
  return f;
}

}  // namespace

const Family& Olmo2() {
  static const Family family = [] {
    Family f = Base();
    f.name = f.gguf = "olmo2", f.hf = "Olmo2ForCausalLM";
    f.read_gguf = ReadGguf;
    f.whole_attn_factor = true;  // llama.cpp's converter wrote config.json's attention_factor there
    return f;
  }();
  return family;
}

const Family& Olmo3() {
  static const Family family = [] {
    Family f = Base();
    f.name = "olmo3", f.hf = "Olmo3ForCausalLM";
    f.default_window = 4096;
    f.ropes_by_type = true;
    f.slides = ThreeOfFour;
    return f;
  }();
  return family;
}

}  // namespace kvc
