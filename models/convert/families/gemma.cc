// Gemma 1, 2 and 3 (text): embeddings times the root of their width, norms kept less one, GELU; from 2 on
// norms behind both blocks too and windows in most layers; 2 caps logits, 3 has norms of queries and keys
// instead and a rope of its own in layers that slide.
#include <cmath>

#include "models/convert/family.h"

namespace kvc {
namespace {

constexpr double kMaxCap = 1e6;

Status ReadGemma(const JsonObject&, ModelConfig* c) {
  c->embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(c->hidden_size)));
  return {};
}

Status ReadCapped(const JsonObject& object, ModelConfig* c, double attention_cap, double logit_cap) {
  KVC_RETURN_IF_ERROR(ReadGemma(object, c));
  double scalar = 256;
  KVC_RETURN_IF_ERROR(object.Number("query_pre_attn_scalar", 1, kMaxCap, &scalar));
  c->attention_scale = static_cast<float>(1 / std::sqrt(scalar));
  // Absent has a meaning of its own; null is off.
  if (object.json().contains("attn_logit_softcapping")) attention_cap = 0;
  if (object.json().contains("final_logit_softcapping")) logit_cap = 0;
  KVC_RETURN_IF_ERROR(object.Number("attn_logit_softcapping", 0, kMaxCap, &attention_cap));
  KVC_RETURN_IF_ERROR(object.Number("final_logit_softcapping", 0, kMaxCap, &logit_cap));
  c->attention_cap = static_cast<float>(attention_cap), c->logit_cap = static_cast<float>(logit_cap);
  return {};
}

Status ReadGemma2(const JsonObject& object, ModelConfig* c) { return ReadCapped(object, c, 50, 30); }
Status ReadGemma3(const JsonObject& object, ModelConfig* c) { return ReadCapped(object, c, 0, 0); }

Status EverySecond(const JsonObject&, const ModelConfig&, std::vector<bool>* layers) {
  SlideButEvery(2, layers);
  return {};
}

Status ByPattern(const JsonObject& object, const ModelConfig&, std::vector<bool>* layers) {
  int32_t period = 6;
  KVC_RETURN_IF_ERROR(object.Int("sliding_window_pattern", 1, INT32_MAX, &period));
  SlideButEvery(period, layers);
  return {};
}

// llama.cpp knows the scale of the largest model by its layers.
Status ReadGguf(GgufMetadata* metadata, const std::string& p, ModelConfig* c, int32_t layers_of_27b) {
  const int32_t width = c->n_layers == layers_of_27b ? c->hidden_size / c->n_heads : c->head_dim;
  c->attention_scale = static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
  c->embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(c->hidden_size)));
  double attention_cap = c->attention_cap, logit_cap = c->logit_cap;
  KVC_RETURN_IF_ERROR(metadata->Number(p + "attn_logit_softcapping", 0, kMaxCap, &attention_cap));
  KVC_RETURN_IF_ERROR(metadata->Number(p + "final_logit_softcapping", 0, kMaxCap, &logit_cap));
  c->attention_cap = static_cast<float>(attention_cap), c->logit_cap = static_cast<float>(logit_cap);
  return {};
}

Status ReadGemma1Gguf(GgufMetadata*, const std::string&, ModelConfig* c) {
  c->embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(c->hidden_size)));
  return {};
}

Status ReadGemma2Gguf(GgufMetadata* metadata, const std::string& p, ModelConfig* c) {
  c->attention_cap = 50, c->logit_cap = 30;
  if (c->sliding_window == 0) c->sliding_window = 4096;
  KVC_RETURN_IF_ERROR(ReadGgufWindows(metadata, p, 2, c));
  return ReadGguf(metadata, p, c, 46);
}

Status ReadGemma3Gguf(GgufMetadata* metadata, const std::string& p, ModelConfig* c) {
  KVC_RETURN_IF_ERROR(ReadGgufWindows(metadata, p, 6, c));
  RopeConfig local;
  KVC_RETURN_IF_ERROR(metadata->Number(p + "rope.freq_base_swa", 1, 1e12, &local.theta));
  c->more_ropes = {local};
  for (LayerConfig& layer : c->layers) layer.rope = layer.attention_window > 0 ? 1 : 0;
  return ReadGguf(metadata, p, c, 62);
}

using R = TensorRole;

Family Base() {
  Family f;
  f.norms_less_one = f.tied_head = true, f.activation = Activation::kGeluTanh;
  f.biases = Biases::kOptionalAll;
  return f;
}

Family Base2() {
  Family f = Base();
  f.default_window = 4096;
  f.norms_after = true;
  f.hf_names = {{"model.layers.%.post_attention_layernorm.weight", R::kAttentionPostNorm},
                {"model.layers.%.pre_feedforward_layernorm.weight", R::kFfnNorm},
                {"model.layers.%.post_feedforward_layernorm.weight", R::kFfnPostNorm}};
  f.settings = {"attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"};
  return f;
}

}  // namespace

const Family& Gemma() {
  static const Family family = [] {
    Family f = Base();
    f.name = f.gguf = "gemma", f.hf = "GemmaForCausalLM";
    f.read = ReadGemma, f.read_gguf = ReadGemma1Gguf;
    return f;
  }();
  return family;
}

const Family& Gemma2() {
  static const Family family = [] {
    Family f = Base2();
    f.name = f.gguf = "gemma2", f.hf = "Gemma2ForCausalLM";
    f.slides = EverySecond, f.read = ReadGemma2, f.read_gguf = ReadGemma2Gguf;
    return f;
  }();
  return family;
}

const Family& Gemma3() {
  static const Family family = [] {
    Family f = Base2();
    f.name = f.gguf = "gemma3", f.hf = "Gemma3ForCausalLM";
    f.qk_norm = true;
    f.ropes_by_type = true, f.local_theta = 10000, f.default_theta = 1e6;
    f.slides = ByPattern, f.read = ReadGemma3, f.read_gguf = ReadGemma3Gguf;
    return f;
  }();
  return family;
}

}  // namespace kvc
