// SmolLM3: Llama, but every fourth layer does not rotate.
#include "models/convert/family.h"

namespace kvc {
namespace {

constexpr int32_t kPeriod = 4;

// no_rope_layers has a 1 for layers that rotate.
Status ReadRotation(const JsonObject& object, ModelConfig* c) {
  int32_t period = kPeriod;
  KVC_RETURN_IF_ERROR(object.Int("no_rope_layer_interval", 1, INT32_MAX, &period));
  const Json* list = object.Find("no_rope_layers");
  if (list != nullptr && (!list->is_array() || list->size() != c->layers.size())) {
    return Error(Code::kBadModel, "%s: no_rope_layers must have one number for each of the %d layers",
                 object.where().c_str(), c->n_layers);
  }
  for (size_t i = 0; i < c->layers.size(); ++i) {
    bool rotates = (i + 1) % static_cast<size_t>(period) != 0;
    if (list != nullptr) {
      const Json& one = (*list)[i];
      if (!one.is_number_integer() || (one != 0 && one != 1)) {
        return Error(Code::kBadModel, "%s: no_rope_layers holds something else than 0 and 1",
                     object.where().c_str());
      }
      rotates = one == 1;
    }
    if (!rotates) c->layers[i].rope = -1;
  }
  return {};
}

// Where windows are on, they are for layers that do not rotate.
Status WithoutRotation(const JsonObject& object, const ModelConfig& c, std::vector<bool>* layers) {
  bool on = false;
  KVC_RETURN_IF_ERROR(object.Bool("use_sliding_window", &on));
  if (!on) return {};
  ModelConfig rotation = c;
  rotation.layers.assign(layers->size(), {});
  KVC_RETURN_IF_ERROR(ReadRotation(object, &rotation));
  for (size_t i = 0; i < layers->size(); ++i) (*layers)[i] = rotation.layers[i].rope < 0;
  return {};
}

Status ReadGguf(GgufMetadata*, const std::string&, ModelConfig* c) {
  for (size_t i = kPeriod - 1; i < c->layers.size(); i += kPeriod) c->layers[i].rope = -1;
  return {};
}

}  // namespace

const Family& SmolLm3() {
  static const Family family = [] {
    Family f;
    f.name = f.gguf = "smollm3", f.hf = "SmolLM3ForCausalLM";
    f.gguf_pairing = RopePairing::kInterleaved;
    f.biases = Biases::kOptionalAll;
    f.default_theta = 2e6, f.tied_head = true;
    f.settings = {"no_rope_layers", "no_rope_layer_interval"};
    f.slides = WithoutRotation, f.read = ReadRotation, f.read_gguf = ReadGguf;
    return f;
  }();
  return family;
}

}  // namespace kvc
