#include "models/convert/hf_config.h"

#include <algorithm>
#include <cmath>

#include "lib/model/model_check.h"

namespace kvc {
namespace {

struct Family {
  const char* architecture;  // as in config.json
  const char* name;          // as in the model file
  bool qkv_bias, qk_norm, packed_qkv;
  bool optional_bias;  // attention_bias decides
};
constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "llama", false, false, false, true},
    {"MistralForCausalLM", "mistral", false, false, false, false},
    {"Qwen2ForCausalLM", "qwen2", true, false, false, false},
    {"Qwen3ForCausalLM", "qwen3", false, true, false, true},
    {"InternLM2ForCausalLM", "internlm2", false, false, true, false},
};

// Settings that change what is computed and that no supported architecture has: refused unless off (null,
// false, 0, or the neutral value given).
struct Refused {
  const char* key;
  double neutral;
};
constexpr Refused kRefused[] = {
    {"num_experts", 0},
    {"num_local_experts", 0},
    {"n_routed_experts", 0},
    {"partial_rotary_factor", 1},
    {"rotary_pct", 1},
    {"attn_logit_softcapping", 0},
    {"final_logit_softcapping", 0},
    {"logit_scale", 1},
    {"logits_scaling", 1},
    {"embedding_multiplier", 1},
    {"residual_multiplier", 1},
    {"attention_multiplier", 0},
    {"query_pre_attn_scalar", 0},
    {"attention_sinks", 0},
    {"add_cross_attention", 0},
    {"is_encoder_decoder", 0},
    {"mlp_bias", 0},
    {"bias", 0},
    {"use_qk_norm", 0},
    {"quantization_config", 0},
    {"kv_lora_rank", 0},
    {"no_rope_layers", 0},
    {"clip_qkv", 0},
    {"alibi", 0},
    {"parallel_attn", 0},
    {"vision_config", 0},
    {"audio_config", 0},
    {"text_config", 0},
    {"rope_interleaved", 0},
};

// Read by the functions below, or without influence on the result.
constexpr const char* kKnown[] = {
    "architectures",
    "model_type",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "hidden_act",
    "vocab_size",
    "tie_word_embeddings",
    "max_position_embeddings",
    "max_sequence_length",
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "attention_bias",
    "sliding_window",
    "use_sliding_window",
    "max_window_layers",
    "layer_types",
    "torch_dtype",
    "dtype",
    "transformers_version",
    "use_cache",
    "initializer_range",
    "attention_dropout",
    "pretraining_tp",
    "_name_or_path",
    "auto_map",
    "attn_implementation",
    "_attn_implementation_autoset",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "id2label",
    "label2id",
    "unsloth_version",
    "unsloth_fixed",
};

bool IsOff(const Json& value, double neutral) {
  if (value.is_null()) return true;
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == neutral || value.get<double>() == 0;
  return value.is_array() && value.empty();
}

Result<const Family*> FindFamily(const JsonObject& object) {
  const Json* list = object.Find("architectures");
  if (list == nullptr || !list->is_array() || list->size() != 1 || !(*list)[0].is_string()) {
    return Error(Code::kBadModel, "%s: architectures must name one architecture", object.where().c_str());
  }
  const std::string name = (*list)[0].get<std::string>();
  std::string supported;
  for (const Family& family : kFamilies) {
    if (name == family.architecture) return &family;
    supported += (supported.empty() ? "" : ", ") + std::string(family.architecture);
  }
  return Error(Code::kUnsupported, "%s: architecture %.80s is not supported; supported: %s",
               object.where().c_str(), name.c_str(), supported.c_str());
}

Status CheckSettings(const JsonObject& object, std::vector<std::string>* warnings) {
  constexpr size_t kMostNamed = 16;
  size_t n_unknown = 0;
  for (const auto& [key, value] : object.json().items()) {
    const Refused* refused = std::find_if(std::begin(kRefused), std::end(kRefused),
                                          [&, k = &key](const Refused& r) { return *k == r.key; });
    if (refused != std::end(kRefused)) {
      if (!IsOff(value, refused->neutral)) {
        return Error(Code::kUnsupported, "%s: %s = %s is not supported", object.where().c_str(), key.c_str(),
                     value.dump(-1, ' ', true).substr(0, 60).c_str());
      }
      continue;
    }
    const bool known = std::any_of(std::begin(kKnown), std::end(kKnown),
                                   [k = &key](const char* name) { return *k == name; });
    if (!known && !IsOff(value, 0) && ++n_unknown <= kMostNamed)
      warnings->push_back("setting " + key.substr(0, 80) +
                          " is not known; it was taken to be without effect");
  }
  if (n_unknown > kMostNamed)
    warnings->push_back(Format("%zu more settings are not known", n_unknown - kMostNamed));
  std::string act = "silu";
  KVC_RETURN_IF_ERROR(object.String("hidden_act", &act));
  if (act != "silu")
    return Error(Code::kUnsupported, "%s: hidden_act %.40s is not supported; supported: silu",
                 object.where().c_str(), act.c_str());
  return {};
}

Status ReadShape(const JsonObject& object, ModelConfig* c) {
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"}) {
    if (!object.Has(key)) return Error(Code::kBadModel, "%s: %s is missing", object.where().c_str(), key);
  }
  KVC_RETURN_IF_ERROR(object.Int("hidden_size", 1, kMaxHidden, &c->hidden_size));
  KVC_RETURN_IF_ERROR(object.Int("num_hidden_layers", 1, kMaxLayers, &c->n_layers));
  KVC_RETURN_IF_ERROR(object.Int("num_attention_heads", 1, kMaxHeads, &c->n_heads));
  KVC_RETURN_IF_ERROR(object.Int("intermediate_size", 1, kMaxFfn, &c->ffn_size));
  KVC_RETURN_IF_ERROR(object.Int("vocab_size", 1, kMaxVocab, &c->vocab_size));
  c->n_kv_heads = c->n_heads;
  KVC_RETURN_IF_ERROR(object.Int("num_key_value_heads", 1, kMaxHeads, &c->n_kv_heads));
  if (c->n_heads % c->n_kv_heads != 0) {
    return Error(Code::kBadModel, "%s: %d heads cannot share %d key-value heads", object.where().c_str(),
                 c->n_heads, c->n_kv_heads);
  }
  if (!object.Has("head_dim") && c->hidden_size % c->n_heads != 0) {
    return Error(Code::kBadModel, "%s: hidden_size %d does not divide into %d heads", object.where().c_str(),
                 c->hidden_size, c->n_heads);
  }
  c->head_dim = c->hidden_size / c->n_heads;
  KVC_RETURN_IF_ERROR(object.Int("head_dim", 1, kMaxHeadDim, &c->head_dim));
  if (c->head_dim % 8 != 0) {
    return Error(Code::kUnsupported, "%s: head size %d is not supported: it must be a multiple of 8",
                 object.where().c_str(), c->head_dim);
  }
  c->max_tokens = 2048;
  KVC_RETURN_IF_ERROR(object.Int("max_position_embeddings", 1, kMaxContext, &c->max_tokens));
  KVC_RETURN_IF_ERROR(object.Number("rms_norm_eps", 0, 1, &c->norm_eps));
  return object.Bool("tie_word_embeddings", &c->tied_head);
}

// Sliding window: Mistral gives a number, Qwen a switch and the first layer that slides, newer files a list
// of layer types.
Status ReadWindow(const JsonObject& object, ModelConfig* c) {
  bool on = c->architecture == "mistral";
  KVC_RETURN_IF_ERROR(object.Bool("use_sliding_window", &on));
  int32_t window = 0,
          first = c->architecture == "mistral" ? 0 : 28;  // the default of the Qwen configurations
  KVC_RETURN_IF_ERROR(object.Int("sliding_window", 0, kMaxContext, &window));
  if (!on) window = 0;
  if (c->architecture != "mistral")
    KVC_RETURN_IF_ERROR(object.Int("max_window_layers", 0, INT32_MAX, &first));
  if (window > 0 && first > 0) {
    if (first < c->n_layers) {
      return Error(Code::kUnsupported,
                   "%s: a sliding window from layer %d on is not supported: all layers must have it or none",
                   object.where().c_str(), first);
    }
    window = 0;
  }
  const Json* types = object.Find("layer_types");
  if (types != nullptr) {
    bool sliding = false, full = false;
    for (const Json& type : *types) {
      const std::string name =
          type.is_string() ? type.get<std::string>() : type.dump(-1, ' ', true).substr(0, 40);
      if (name != "full_attention" && name != "sliding_attention") {
        return Error(Code::kUnsupported, "%s: layer type %.60s is not supported", object.where().c_str(),
                     name.c_str());
      }
      (name == "full_attention" ? full : sliding) = true;
    }
    if (sliding && full)
      return Error(Code::kUnsupported,
                   "%s: layer_types that mix full and sliding attention are not supported",
                   object.where().c_str());
    if (full) window = 0;
    if (sliding && window == 0)
      return Error(Code::kBadModel, "%s: layer_types slide, but sliding_window is not set",
                   object.where().c_str());
  }
  c->sliding_window = window;
  return {};
}

double YarnMagnitude(double factor, double scale) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

Status ReadYarn(const JsonObject& rope, ModelConfig* c) {
  RopeConfig& r = c->rope;
  KVC_RETURN_IF_ERROR(rope.Number("beta_fast", 1e-3, 1e6, &r.beta_fast));
  KVC_RETURN_IF_ERROR(rope.Number("beta_slow", 1e-3, 1e6, &r.beta_slow));
  KVC_RETURN_IF_ERROR(rope.Number("attention_factor", 1e-3, 1e3, &r.attention_factor));
  bool truncate = true;
  KVC_RETURN_IF_ERROR(rope.Bool("truncate", &truncate));
  if (!truncate)
    return Error(Code::kUnsupported, "%s: truncate = false is not supported", rope.where().c_str());
  double scale = 0, scale_all = 0;
  KVC_RETURN_IF_ERROR(rope.Number("mscale", 0, 1e3, &scale));
  KVC_RETURN_IF_ERROR(rope.Number("mscale_all_dim", 0, 1e3, &scale_all));
  if (r.attention_factor == 0 && scale > 0 && scale_all > 0) {
    r.attention_factor = YarnMagnitude(r.factor, scale) / YarnMagnitude(r.factor, scale_all);
  }
  return {};
}

Status ReadRope(const JsonObject& object, ModelConfig* c) {
  RopeConfig& r = c->rope;
  KVC_RETURN_IF_ERROR(object.Number("rope_theta", 1, 1e12, &r.theta));
  const bool new_style = object.Has("rope_parameters");
  const Json* json = object.Find(new_style ? "rope_parameters" : "rope_scaling");
  if (json == nullptr) return {};
  const JsonObject rope(*json, object.where() + (new_style ? ": rope_parameters" : ": rope_scaling"));
  if (!json->is_object()) return Error(Code::kBadModel, "%s: must be an object", rope.where().c_str());
  KVC_RETURN_IF_ERROR(rope.Number("rope_theta", 1, 1e12, &r.theta));
  std::string type = "default";
  KVC_RETURN_IF_ERROR(rope.String(rope.Has("rope_type") ? "rope_type" : "type", &type));
  double partial = 1;
  KVC_RETURN_IF_ERROR(rope.Number("partial_rotary_factor", 0, 1, &partial));
  if (partial != 1)
    return Error(Code::kUnsupported, "%s: partial_rotary_factor %g is not supported", rope.where().c_str(),
                 partial);
  for (const auto& [key, value] : json->items()) {
    if (value.is_object())
      return Error(Code::kUnsupported, "%s: settings for %.40s alone are not supported", rope.where().c_str(),
                   key.c_str());
  }
  if (type == "default") return {};
  if (type == "linear")
    r.scaling = RopeScaling::kLinear;
  else if (type == "llama3")
    r.scaling = RopeScaling::kLlama3;
  else if (type == "yarn")
    r.scaling = RopeScaling::kYarn;
  else
    return Error(Code::kUnsupported, "%s: %.40s is not supported; supported: default, linear, llama3, yarn",
                 rope.where().c_str(), type.c_str());
  if (!rope.Has("factor")) return Error(Code::kBadModel, "%s: factor is missing", rope.where().c_str());
  KVC_RETURN_IF_ERROR(rope.Number("factor", 1e-3, 1e6, &r.factor));
  if (r.scaling == RopeScaling::kLinear) {
    // max_position_embeddings may still be the unscaled length; then this says what it became.
    int32_t length = 0;
    KVC_RETURN_IF_ERROR(object.Int("max_sequence_length", 1, kMaxContext, &length));
    c->max_tokens = std::max(c->max_tokens, length);
    return {};
  }
  r.original_max_tokens = c->max_tokens;
  KVC_RETURN_IF_ERROR(rope.Int("original_max_position_embeddings", 1, kMaxContext, &r.original_max_tokens));
  if (r.scaling == RopeScaling::kYarn) {
    const double stretched = std::min<double>(kMaxContext, std::floor(r.original_max_tokens * r.factor));
    c->max_tokens = std::max(c->max_tokens, static_cast<int32_t>(stretched));
    return ReadYarn(rope, c);
  }
  KVC_RETURN_IF_ERROR(rope.Number("low_freq_factor", 1e-3, 1e6, &r.low_freq_factor));
  KVC_RETURN_IF_ERROR(rope.Number("high_freq_factor", 1e-3, 1e6, &r.high_freq_factor));
  if (r.high_freq_factor <= r.low_freq_factor)
    return Error(Code::kBadModel, "%s: high_freq_factor must exceed low_freq_factor", rope.where().c_str());
  return {};
}

Status ReadSpecialTokens(const JsonObject& object, HfConfig* config) {
  const int32_t last = config->model.vocab_size - 1;
  KVC_RETURN_IF_ERROR(object.Int("bos_token_id", -1, last, &config->bos));
  KVC_RETURN_IF_ERROR(object.Int("pad_token_id", -1, kMaxVocab, &config->pad));
  if (config->pad > last) config->pad = -1;  // a padding row that was never added to the weights
  return ReadTokenIds(object, "eos_token_id", last, &config->eos);
}

}  // namespace

Status ReadTokenIds(const JsonObject& object, const char* key, int32_t last, std::vector<int32_t>* ids) {
  const Json* value = object.Find(key);
  if (value == nullptr) return {};
  if (value->is_array() && value->size() > static_cast<size_t>(kMaxStopTokens)) {
    return Error(Code::kBadModel, "%s: %s holds %zu ids, the limit is %d", object.where().c_str(), key,
                 value->size(), kMaxStopTokens);
  }
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > last) {
      return Error(Code::kBadModel, "%s: %s holds %s, not a token id up to %d", object.where().c_str(), key,
                   id.dump(-1, ' ', true).substr(0, 40).c_str(), last);
    }
    ids->push_back(static_cast<int32_t>(id.get<int64_t>()));
  }
  return {};
}

Result<HfConfig> ParseHfConfig(Span<const uint8_t> text, const std::string& where) {
  auto json = ParseJson(text, where);
  if (!json.ok()) return json.status();
  if (!json.value().is_object()) return Error(Code::kBadModel, "%s: must be a JSON object", where.c_str());
  const JsonObject object(json.value(), where);
  auto family = FindFamily(object);
  if (!family.ok()) return family.status();
  HfConfig config;
  KVC_RETURN_IF_ERROR(CheckSettings(object, &config.warnings));
  ModelConfig& c = config.model;
  c.architecture = family.value()->name;
  c.norm_eps = 1e-6;
  c.qk_norm = family.value()->qk_norm;
  config.packed_qkv = family.value()->packed_qkv;
  KVC_RETURN_IF_ERROR(ReadShape(object, &c));
  KVC_RETURN_IF_ERROR(ReadWindow(object, &c));
  KVC_RETURN_IF_ERROR(ReadRope(object, &c));
  KVC_RETURN_IF_ERROR(ReadSpecialTokens(object, &config));
  bool attention_bias = false;
  KVC_RETURN_IF_ERROR(object.Bool("attention_bias", &attention_bias));
  if (attention_bias && !family.value()->optional_bias && !family.value()->qkv_bias) {
    return Error(Code::kUnsupported, "%s: attention_bias is not supported in a %s model", where.c_str(),
                 family.value()->name);
  }
  if (family.value()->qkv_bias || attention_bias)
    config.biases = {TensorRole::kQueryBias, TensorRole::kKeyBias, TensorRole::kValueBias};
  if (family.value()->optional_bias && attention_bias) config.biases.push_back(TensorRole::kOutputBias);
  return config;
}

}  // namespace kvc
