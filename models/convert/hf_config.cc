#include "models/convert/hf_config.h"

#include <algorithm>

#include "lib/model/model_check.h"
#include "models/convert/family.h"
#include "models/convert/not_supported.h"

namespace kvc {
namespace {

// Settings that change what is computed: refused unless the family reads them, or off (null, false, 0, or the
// neutral value given).
struct Refused {
  const char* key;
  double neutral;
};
constexpr Refused kRefused[] = {
    {"num_experts", 0},
    {"num_local_experts", 0},
    {"n_routed_experts", 0},
    {"n_shared_experts", 0},
    {"shared_expert_intermediate_size", 0},
    {"mlp_only_layers", 0},
    {"decoder_sparse_step", 1},
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
    {"kv_lora_rank", 0},
    {"no_rope_layers", 0},
    {"no_rope_layer_interval", 0},
    {"use_bidirectional_attention", 0},
    {"attn_output_gate", 0},
    {"layer_norm_eps", 0},
    {"use_parallel_residual", 0},
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
    "rope_local_base_freq",
    "original_max_position_embeddings",
    "hidden_act",
    "hidden_activation",
    "sliding_window_pattern",
    "_sliding_window_pattern",
    "cache_implementation",
    "embd_pdrop",
    "resid_pdrop",
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
    "num_experts_per_tok",
    "quantization_config",
    "router_aux_loss_coef",
    "router_jitter_noise",
    "output_router_logits",
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
  if (const Family* family = FindHfFamily(name)) return family;
  std::string supported;
  for (const Family* family : Families())
    supported += (supported.empty() ? "" : ", ") + std::string(family->hf);
  return Error(Code::kUnsupported, "%s: architecture %.80s is not supported%s; supported: %s",
               object.where().c_str(), name.c_str(), WhyNotArchitecture(name).c_str(), supported.c_str());
}

Status CheckSettings(const JsonObject& object, const Family& family, std::vector<std::string>* warnings) {
  constexpr size_t kMostNamed = 16;
  size_t n_unknown = 0;
  for (const auto& [key, value] : object.json().items()) {
    if (std::any_of(family.settings.begin(), family.settings.end(),
                    [k = &key](const char* name) { return *k == name; })) {
      continue;
    }
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
  return {};
}

Status ReadActivation(const JsonObject& object, const Family& family, ModelConfig* c) {
  constexpr char kGelu[] = "gelu_pytorch_tanh";
  const std::string usual = family.activation == Activation::kSilu ? "silu" : kGelu;
  std::string act = usual;
  // Where both stand the longer name counts, and where only the older one does, Gemma means what it always
  // does.
  if (object.Has("hidden_activation") || family.activation == Activation::kSilu)
    KVC_RETURN_IF_ERROR(
        object.String(object.Has("hidden_activation") ? "hidden_activation" : "hidden_act", &act));
  if (act != "silu" && act != kGelu) {
    return Error(Code::kUnsupported, "%s: hidden_act %.40s is not supported; supported: silu, %s",
                 object.where().c_str(), act.c_str(), kGelu);
  }
  c->activation = act == "silu" ? Activation::kSilu : Activation::kGeluTanh;
  return {};
}

Status ReadShape(const JsonObject& object, const Family& family, ModelConfig* c) {
  for (const char* key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", family.ffn_size, "vocab_size"}) {
    if (!object.Has(key)) return Error(Code::kBadModel, "%s: %s is missing", object.where().c_str(), key);
  }
  KVC_RETURN_IF_ERROR(object.Int("hidden_size", 1, kMaxHidden, &c->hidden_size));
  KVC_RETURN_IF_ERROR(object.Int("num_hidden_layers", 1, kMaxLayers, &c->n_layers));
  KVC_RETURN_IF_ERROR(object.Int("num_attention_heads", 1, kMaxHeads, &c->n_heads));
  KVC_RETURN_IF_ERROR(object.Int(family.ffn_size, 1, kMaxFfn, &c->ffn_size));
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
  if (family.default_eps == 0 && !object.Has("rms_norm_eps"))
    return Error(Code::kBadModel, "%s: rms_norm_eps is missing", object.where().c_str());
  KVC_RETURN_IF_ERROR(object.Number("rms_norm_eps", 0, 1, &c->norm_eps));
  return object.Bool("tie_word_embeddings", &c->tied_head);
}

// Which layers slide: a list of layer types, or what is usual in the family.
Status ReadWindows(const JsonObject& object, const Family& family, ModelConfig* c) {
  const bool switched_off = family.switched_windows && !object.Has("use_sliding_window");
  int32_t window = object.json().contains("sliding_window") || switched_off ? 0 : family.default_window;
  KVC_RETURN_IF_ERROR(object.Int("sliding_window", 0, kMaxContext, &window));
  bool on = true;
  KVC_RETURN_IF_ERROR(object.Bool("use_sliding_window", &on));
  if (!on) window = 0;
  std::vector<bool> slides(static_cast<size_t>(c->n_layers));
  if (family.slides != nullptr) KVC_RETURN_IF_ERROR(family.slides(object, *c, &slides));
  const Json* types = object.Find("layer_types");
  if (types != nullptr) {
    if (!types->is_array() || types->size() != slides.size()) {
      return Error(Code::kBadModel, "%s: layer_types must name a type for each of the %d layers",
                   object.where().c_str(), c->n_layers);
    }
    for (size_t i = 0; i < slides.size(); ++i) {
      const Json& type = (*types)[i];
      const std::string name =
          type.is_string() ? type.get<std::string>() : type.dump(-1, ' ', true).substr(0, 40);
      if (name != "full_attention" && name != "attention" && name != "sliding_attention") {
        return Error(Code::kUnsupported, "%s: layer type %.60s is not supported", object.where().c_str(),
                     name.c_str());
      }
      slides[i] = name == "sliding_attention";
      if (slides[i] && window == 0)
        return Error(Code::kBadModel, "%s: layer_types slide, but sliding_window is not set",
                     object.where().c_str());
    }
  }
  c->layers.assign(slides.size(), {});
  for (size_t i = 0; i < slides.size(); ++i) c->layers[i].attention_window = slides[i] ? window : 0;
  return {};
}

Status ReadSpecialTokens(const JsonObject& object, HfConfig* config) {
  const int32_t last = config->model.vocab_size - 1;
  KVC_RETURN_IF_ERROR(object.Int("bos_token_id", -1, last, &config->bos));
  KVC_RETURN_IF_ERROR(object.Int("pad_token_id", -1, kMaxVocab, &config->pad));
  if (config->pad > last) config->pad = -1;  // a padding row that was never added to the weights
  return ReadTokenIds(object, "eos_token_id", last, &config->eos);
}

Status ReadBiases(const JsonObject& object, const Family& family, HfConfig* config) {
  // The default of the configurations of GLM and gpt-oss is true, of all others false.
  const bool experts = family.biases == Biases::kAllAndExperts;
  bool on = family.biases == Biases::kOptionalQkv || experts;
  KVC_RETURN_IF_ERROR(object.Bool("attention_bias", &on));
  if (on && (family.biases == Biases::kNone || family.biases == Biases::kUseQkv)) {
    return Error(Code::kUnsupported, "%s: attention_bias is not supported in a %s model",
                 object.where().c_str(), family.name);
  }
  if (family.biases == Biases::kUseQkv) {
    on = false;
    KVC_RETURN_IF_ERROR(object.Bool("use_qkv_bias", &on));
  }
  if (family.biases == Biases::kQkv || on)
    config->biases = {TensorRole::kQueryBias, TensorRole::kKeyBias, TensorRole::kValueBias};
  if ((family.biases == Biases::kOptionalAll || experts) && on)
    config->biases.push_back(TensorRole::kOutputBias);
  if (experts) {
    for (const TensorRole role : kExpertBiasRoles) config->biases.push_back(role);
  }
  return {};
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

Result<HfConfig> ParseHfConfig(Span<const uint8_t> text, const std::string& where,
                               const RopeOptions& options) {
  auto json = ParseJson(text, where);
  if (!json.ok()) return json.status();
  if (!json.value().is_object()) return Error(Code::kBadModel, "%s: must be a JSON object", where.c_str());
  const JsonObject object(json.value(), where);
  auto found = FindFamily(object);
  if (!found.ok()) return found.status();
  const Family& family = *found.value();
  HfConfig config;
  config.family = &family;
  if (family.take != nullptr) KVC_RETURN_IF_ERROR(family.take(object));
  KVC_RETURN_IF_ERROR(CheckSettings(object, family, &config.warnings));
  ModelConfig& c = config.model;
  c.architecture = family.name;
  c.norm_eps = family.default_eps;
  c.qk_norm = family.qk_norm, c.wide_qk_norm = family.wide_qk_norm;
  c.norms_before = family.norms_before, c.norms_after = family.norms_after;
  c.layer_norms = family.layer_norms, c.attention_sinks = family.attention_sinks;
  c.rope_pairing = family.hf_pairing;
  c.tied_head = family.tied_head, config.says_tied = object.Has("tie_word_embeddings");
  KVC_RETURN_IF_ERROR(ReadShape(object, family, &c));
  KVC_RETURN_IF_ERROR(ReadHfExperts(object, family, &c));
  KVC_RETURN_IF_ERROR(ReadActivation(object, family, &c));
  KVC_RETURN_IF_ERROR(ReadWindows(object, family, &c));
  HfRopeFindings ropes;
  KVC_RETURN_IF_ERROR(ReadHfRopes(object, family, options, &c, &ropes));
  config.warnings.insert(config.warnings.end(), ropes.notes.begin(), ropes.notes.end());
  config.extended = ropes.extended;
  if (family.read != nullptr) KVC_RETURN_IF_ERROR(family.read(object, &c));
  SettleLayers(&c);
  if (options.context > 0) c.max_tokens = std::min(c.max_tokens, options.context);
  KVC_RETURN_IF_ERROR(ReadSpecialTokens(object, &config));
  KVC_RETURN_IF_ERROR(ReadBiases(object, family, &config));
  if (const Json* packed = object.Find("quantization_config")) {
    if (!packed->is_object())
      return Error(Code::kBadModel, "%s: quantization_config must be an object", where.c_str());
    const JsonObject settings(*packed, where + ": quantization_config");
    if (!settings.Has("quant_method"))
      return Error(Code::kUnsupported, "%s: quant_method is missing", settings.where().c_str());
    auto scheme = ReadPackedScheme(settings);
    if (!scheme.ok()) return scheme.status();
    config.packed = scheme.value();
  }
  return config;
}

}  // namespace kvc
