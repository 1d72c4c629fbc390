// gpt-oss: every softmax of attention has a sink, every second layer slides, experts with biases whose halves
// are cut off, in MXFP4; gate and up take turns row by row.
#include "models/convert/family.h"

namespace kvc {
namespace {

constexpr double kMostGain = 1e3, kMostLimit = 1e6;

Status EverySecond(const JsonObject&, const ModelConfig&, std::vector<bool>* layers) {
  SlideButEvery(2, layers);
  return {};
}

void SetActivation(double gain, double limit, ModelConfig* c) {
  c->activation = Activation::kClampedSwiglu;
  c->activation_gain = static_cast<float>(gain), c->activation_limit = static_cast<float>(limit);
}

Status Read(const JsonObject& object, ModelConfig* c) {
  double gain = 1.702, limit = 7;
  KVC_RETURN_IF_ERROR(object.Number("swiglu_alpha", 1e-3, kMostGain, &gain));
  KVC_RETURN_IF_ERROR(object.Number("swiglu_limit", 1e-3, kMostLimit, &limit));
  SetActivation(gain, limit, c);
  return {};
}

// What llama.cpp knows by the name of the architecture. It rounds the ends of YaRN's ramp, which the model
// does not.
Status ReadGguf(GgufMetadata* metadata, const std::string& p, ModelConfig* c) {
  SetActivation(1.702, 7, c);
  c->rope.whole_ramp = false;
  return ReadGgufWindows(metadata, p, 2, c);
}

using R = TensorRole;

}  // namespace

const Family& GptOss() {
  static const Family family = [] {
    Family f;
    f.name = f.gguf = "gpt-oss", f.hf = "GptOssForCausalLM";
    f.biases = Biases::kAllAndExperts;
    f.attention_sinks = true;
    f.experts = Family::kAlways, f.normalise_experts = true;
    f.default_theta = 150000;
    f.default_eps = 1e-5, f.default_window = 128;
    f.hf_names = {
        {"model.layers.%.self_attn.sinks", R::kAttentionSinks},
        {"model.layers.%.mlp.router.weight", R::kRouter},
        {"model.layers.%.mlp.router.bias", R::kRouterBias},
        {"model.layers.%.mlp.experts.gate_up_proj_blocks", R::kExpertGate, TensorName::kInterleavedGateUp},
        {"model.layers.%.mlp.experts.gate_up_proj_bias", R::kExpertGateBias, TensorName::kInterleavedGateUp},
        {"model.layers.%.mlp.experts.down_proj_blocks", R::kExpertDown},
        {"model.layers.%.mlp.experts.down_proj_bias", R::kExpertDownBias},
        // Without MXFP4 they are stored columns first.
        {"model.layers.%.mlp.experts.gate_up_proj", R::kExpertGate, TensorName::kInterleavedColumnsFirst},
        {"model.layers.%.mlp.experts.down_proj", R::kExpertDown, TensorName::kColumnsFirst}};
    f.gguf_names = {
        {"blk.%.attn_sinks.weight", R::kAttentionSinks}, {"blk.%.post_attention_norm.weight", R::kFfnNorm},
        {"blk.%.ffn_gate_inp.bias", R::kRouterBias},     {"blk.%.ffn_gate_exps.bias", R::kExpertGateBias},
        {"blk.%.ffn_up_exps.bias", R::kExpertUpBias},    {"blk.%.ffn_down_exps.bias", R::kExpertDownBias}};
    f.settings = {"num_experts",  "num_local_experts",      "swiglu_limit",
                  "swiglu_alpha", "initial_context_length", "experts_per_token"};
    f.slides = EverySecond, f.read = Read, f.read_gguf = ReadGguf;
    return f;
  }();
  return family;
}

}  // namespace kvc
