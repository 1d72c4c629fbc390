#include "models/convert/family.h"

#include <algorithm>

namespace kvc {

#define KVC_FAMILY(name) const Family& name();
#include "models/convert/families.list"
#undef KVC_FAMILY

const std::vector<const Family*>& Families() {
  static const std::vector<const Family*> families = {
#define KVC_FAMILY(name) &name(),
#include "models/convert/families.list"
#undef KVC_FAMILY
  };
  return families;
}

const Family* FindHfFamily(const std::string& architecture) {
  for (const Family* family : Families()) {
    if (family->hf != nullptr && architecture == family->hf) return family;
  }
  return nullptr;
}

const Family* FindGgufFamily(const std::string& architecture) {
  for (const Family* family : Families()) {
    if (family->gguf != nullptr && architecture == family->gguf) return family;
  }
  return nullptr;
}

void SlideButEvery(int32_t period, std::vector<bool>* layers) {
  for (size_t i = 0; i < layers->size(); ++i) (*layers)[i] = (i + 1) % static_cast<size_t>(period) != 0;
}

Status ReadGgufWindows(GgufMetadata* metadata, const std::string& prefix, int32_t period, ModelConfig* c) {
  const std::string key = prefix + "attention.sliding_window_pattern";
  const GgufValue* value = metadata->Find(key);
  std::vector<bool> slides(c->layers.size());
  if (value != nullptr && value->is_array) {
    if (value->n_whole() != slides.size()) {
      return Error(Code::kBadModel, "%s: %s must have one value for each of the %d layers",
                   metadata->where().c_str(), key.c_str(), c->n_layers);
    }
    for (size_t i = 0; i < slides.size(); ++i) slides[i] = value->Whole(i) != 0;
  } else {
    KVC_RETURN_IF_ERROR(metadata->Int(key, 1, 1024, &period));
    SlideButEvery(period, &slides);
  }
  for (size_t i = 0; i < slides.size(); ++i)
    c->layers[i].attention_window = slides[i] ? c->sliding_window : 0;
  return {};
}

Status ReadHfExperts(const JsonObject& object, const Family& family, ModelConfig* c) {
  if (family.experts != Family::kAlways) return {};
  const char* count = object.Has("num_local_experts") ? "num_local_experts" : "num_experts";
  for (const char* key : {count, "num_experts_per_tok"}) {
    if (!object.Has(key)) return Error(Code::kBadModel, "%s: %s is missing", object.where().c_str(), key);
  }
  KVC_RETURN_IF_ERROR(object.Int(count, 1, kMaxExperts, &c->n_experts));
  KVC_RETURN_IF_ERROR(object.Int("num_experts_per_tok", 1, c->n_experts, &c->n_chosen));
  KVC_RETURN_IF_ERROR(object.Int("moe_intermediate_size", 1, kMaxFfn, &c->ffn_size));
  c->normalise_experts = family.normalise_experts;
  return object.Bool("norm_topk_prob", &c->normalise_experts);
}

Status ReadGgufExperts(GgufMetadata* metadata, const std::string& prefix, const Family& family,
                       ModelConfig* c) {
  KVC_RETURN_IF_ERROR(metadata->Int(prefix + "expert_count", 0, kMaxExperts, &c->n_experts));
  KVC_RETURN_IF_ERROR(metadata->Int(prefix + "expert_used_count", 0, kMaxExperts, &c->n_chosen));
  if (c->n_experts > 0 && family.experts == Family::kNone) {
    return Error(Code::kUnsupported, "%s: a mixture of %d experts is not supported in architecture %s",
                 metadata->where().c_str(), c->n_experts, family.gguf);
  }
  if (c->n_experts == 0 && family.experts == Family::kAlways) {
    return Error(Code::kBadModel, "%s: %sexpert_count is missing", metadata->where().c_str(), prefix.c_str());
  }
  if (c->n_experts == 0) {
    c->n_chosen = 0;
    return {};
  }
  if (c->n_chosen < 1 || c->n_chosen > c->n_experts) {
    return Error(Code::kBadModel, "%s: %sexpert_used_count is %d, outside 1 to %d", metadata->where().c_str(),
                 prefix.c_str(), c->n_chosen, c->n_experts);
  }
  c->normalise_experts = family.normalise_experts;
  return metadata->Int(prefix + "expert_feed_forward_length", 1, kMaxFfn, &c->ffn_size);
}

void SettleLayers(ModelConfig* c) {
  c->sliding_window = c->layers.empty() ? 0 : c->layers[0].attention_window;
  if (c->layers_differ())
    c->sliding_window = 0;
  else
    c->layers.clear();
}

}  // namespace kvc
