// Qwen 2, 2.5 and 3.
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

}  // namespace

const Family& Qwen2() {
  static const Family family = [] {
    Family f;
    f.name = f.gguf = "qwen2", f.hf = "Qwen2ForCausalLM";
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
    f.biases = Biases::kOptionalAll, f.qk_norm = true;
    f.slides = FromLayerOn;
    return f;
  }();
  return family;
}

}  // namespace kvc
