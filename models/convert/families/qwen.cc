// Qwen 2, 2.5 and 3, and 3 with experts.
#include "lib/base/limits.h"
#include "models/convert/family.h"

namespace kvc {
namespace {

// A switch, and the first layer that slides.
Status FromLayerOn(const JsonObject& object, const ModelConfig&, std::vector<bool>* layers) {
  bool on = false;
  int32_t first = 28;  // of the configurations that do not say
  KVC_RETURN_IF_ERROR(object.Bool("use_sliding_window", &on));
  KVC_RETURN_IF_ERROR(object.Int("max_window_layers", 0, INT32_MAX, &first));
  for (size_t i = 0; on && i < layers->size(); ++i) (*layers)[i] = i >= static_cast<size_t>(first);
  return {};
}

// The switch alone.
Status AllWhereOn(const JsonObject& object, const ModelConfig&, std::vector<bool>* layers) {
  bool on = false;
  KVC_RETURN_IF_ERROR(object.Bool("use_sliding_window", &on));
  layers->assign(layers->size(), on);
  return {};
}

// Qwen3-Coder says what all of them have.
Status ReadMoe(const JsonObject& object, ModelConfig*) {
  bool norms = true;
  KVC_RETURN_IF_ERROR(object.Bool("use_qk_norm", &norms));
  if (norms) return {};
  return Error(Code::kUnsupported, "%s: use_qk_norm = false is not supported", object.where().c_str());
}

// llama.cpp divides by the sum whatever the model; every published one says so too. Files of Qwen3-Coder say
// that they have no experts for every token.
Status ReadMoeGguf(GgufMetadata* metadata, const std::string& prefix, ModelConfig* c) {
  c->normalise_experts = true;
  int32_t shared = 0;
  KVC_RETURN_IF_ERROR(metadata->Int(prefix + "expert_shared_feed_forward_length", 0, INT32_MAX, &shared));
  if (shared == 0) return {};
  return Error(Code::kUnsupported, "%s: %sexpert_shared_feed_forward_length = %d is not supported",
               metadata->where().c_str(), prefix.c_str(), shared);
}

}  // namespace

const Family& Qwen2() {
  static const Family family = [] {
    Family f;
    f.name = f.gguf = "qwen2", f.hf = "Qwen2ForCausalLM";
    f.default_window = 4096, f.switched_windows = true;
    f.biases = Biases::kQkv;
    f.slides = FromLayerOn;
    return f;
  }();
  return family;
}

const Family& Qwen3() {
  static const Family family = [] {
    Family f;
    f.name = f.gguf = "qwen3", f.hf = "Qwen3ForCausalLM";
    f.default_window = 4096, f.switched_windows = true;
    f.biases = Biases::kOptionalAll, f.qk_norm = true;
    f.slides = FromLayerOn;
    return f;
  }();
  return family;
}

const Family& Qwen3Moe() {
  static const Family family = [] {
    Family f;
    f.name = f.gguf = "qwen3moe", f.hf = "Qwen3MoeForCausalLM";
    f.default_window = 4096, f.switched_windows = true;
    f.biases = Biases::kOptionalAll, f.qk_norm = true;
    f.slides = AllWhereOn;
    f.experts = Family::kAlways;
    f.settings = {"num_experts", "num_local_experts", "moe_intermediate_size", "norm_topk_prob",
                  "use_qk_norm"};
    f.read = ReadMoe;
    f.read_gguf = ReadMoeGguf;
    return f;
  }();
  return family;
}

}  // namespace kvc
