// EXAONE 4: norms behind the blocks, and of each query and key head. Where three of four layers slide, only
// those rotate.
#include "models/convert/family.h"

namespace kvc {
namespace {

Status ByPattern(const JsonObject& object, const ModelConfig&, std::vector<bool>* layers) {
  const Json* pattern = object.Find("sliding_window_pattern");
  if (pattern != nullptr && pattern->is_string()) {
    const std::string text = pattern->get<std::string>();
    if (text.empty() || text.find_first_not_of("LG") != std::string::npos)
      return Error(Code::kBadModel, "%s: sliding_window_pattern is not made of L and G",
                   object.where().c_str());
    for (size_t i = 0; i < layers->size(); ++i)
      (*layers)[i] = i + 1 != layers->size() && text[i % text.size()] == 'L';
    return {};
  }
  int32_t period = 4;
  KVC_RETURN_IF_ERROR(object.Int("sliding_window_pattern", 0, INT32_MAX, &period));
  if (period > 0) SlideButEvery(period, layers);
  return {};
}

void RotateOnlyWindows(bool any_window, ModelConfig* c) {
  for (LayerConfig& layer : c->layers) layer.rope = any_window && layer.attention_window == 0 ? -1 : 0;
}

Status Read(const JsonObject& object, ModelConfig* c) {
  RotateOnlyWindows(object.Has("sliding_window") || !object.json().contains("sliding_window"), c);
  return {};
}

Status ReadGguf(GgufMetadata* metadata, const std::string& p, ModelConfig* c) {
  KVC_RETURN_IF_ERROR(ReadGgufWindows(metadata, p, 4, c));
  RotateOnlyWindows(c->sliding_window > 0, c);
  if (c->sliding_window == 0) return {};
  return metadata->Number(p + "rope.freq_base_swa", 1, 1e12, &c->rope.theta);
}

using R = TensorRole;

}  // namespace

const Family& Exaone4() {
  static const Family family = [] {
    Family f;
    f.name = f.gguf = "exaone4", f.hf = "Exaone4ForCausalLM";
    f.default_eps = 1e-5, f.default_window = 4096;
    f.qk_norm = true;
    f.norms_before = false, f.norms_after = true;
    f.hf_names = {{"model.layers.%.post_attention_layernorm.weight", R::kAttentionPostNorm},
                  {"model.layers.%.post_feedforward_layernorm.weight", R::kFfnPostNorm}};
    f.slides = ByPattern, f.read = Read, f.read_gguf = ReadGguf;
    return f;
  }();
  return family;
}

}  // namespace kvc
