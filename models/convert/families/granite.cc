// Granite 3: Llama with multipliers of embeddings, attention, residuals and logits. Granite 4 without experts
// and state spaces: the same under the name of the family that has both, with gate and up in one matrix; some
// of it does not rotate.
#include <algorithm>

#include "models/convert/family.h"
#include "models/convert/not_supported.h"

namespace kvc {
namespace {

constexpr double kLeast = 1e-6, kMost = 1e6;

struct Scales {
  double embedding = 1, residual = 1, logits = 1, attention = 1;
  void Set(ModelConfig* c) const {
    c->embedding_scale = static_cast<float>(embedding), c->residual_scale = static_cast<float>(residual);
    c->logit_scale = static_cast<float>(1 / logits), c->attention_scale = static_cast<float>(attention);
  }
};

Status Read(const JsonObject& object, ModelConfig* c) {
  Scales s;
  KVC_RETURN_IF_ERROR(object.Number("embedding_multiplier", kLeast, kMost, &s.embedding));
  KVC_RETURN_IF_ERROR(object.Number("residual_multiplier", kLeast, kMost, &s.residual));
  KVC_RETURN_IF_ERROR(object.Number("logits_scaling", kLeast, kMost, &s.logits));
  KVC_RETURN_IF_ERROR(object.Number("attention_multiplier", kLeast, kMost, &s.attention));
  s.Set(c);
  return {};
}

void RotateNowhere(ModelConfig* c) {
  for (LayerConfig& layer : c->layers) layer.rope = -1;
}

// "nope", and saying nothing, is no rotation.
Status Read4(const JsonObject& object, ModelConfig* c) {
  std::string positions = "nope";
  KVC_RETURN_IF_ERROR(object.String("position_embedding_type", &positions));
  if (positions != "rope" && positions != "nope") {
    return Error(Code::kUnsupported,
                 "%s: position_embedding_type %.40s is not supported; supported: rope, nope",
                 object.where().c_str(), positions.c_str());
  }
  if (positions == "nope") RotateNowhere(c);
  return Read(object, c);
}

// One name for everything from a dense model to a mixture with state spaces in most layers, which is also
// what a configuration means that lists no layers.
Status TakeDense(const JsonObject& object) {
  constexpr char kArchitecture[] = "GraniteMoeHybridForCausalLM";
  const Json* types = object.Find("layer_types");
  const bool attends = types != nullptr && types->is_array() && !types->empty() &&
                       std::all_of(types->begin(), types->end(),
                                   [](const Json& t) { return t == "attention" || t == "full_attention"; });
  if (!attends) {
    return Error(Code::kUnsupported, "%s: %s with layers other than attention%s", object.where().c_str(),
                 kArchitecture, WhyNotArchitecture(kArchitecture).c_str());
  }
  int32_t n_experts = 8;  // of configurations that do not say
  KVC_RETURN_IF_ERROR(object.Int("num_local_experts", 0, INT32_MAX, &n_experts));
  if (n_experts == 0) return {};
  return Error(Code::kUnsupported, "%s: %s with %d experts%s", object.where().c_str(), kArchitecture,
               n_experts, WhyNotArchitecture("GraniteMoe").c_str());
}

Status ReadGguf(GgufMetadata* metadata, const std::string& p, ModelConfig* c) {
  Scales s;
  KVC_RETURN_IF_ERROR(metadata->Number(p + "embedding_scale", kLeast, kMost, &s.embedding));
  KVC_RETURN_IF_ERROR(metadata->Number(p + "residual_scale", kLeast, kMost, &s.residual));
  KVC_RETURN_IF_ERROR(metadata->Number(p + "logit_scale", kLeast, kMost, &s.logits));
  KVC_RETURN_IF_ERROR(metadata->Number(p + "attention.scale", kLeast, kMost, &s.attention));
  s.Set(c);
  // In this family it says whether there is a rotation at all.
  bool rotates = true;
  KVC_RETURN_IF_ERROR(metadata->Bool(p + "rope.scaling.finetuned", &rotates));
  if (!rotates) RotateNowhere(c);
  // What Granite 4 without experts and state spaces says of both all the same.
  for (const char* unused : {"expert_shared_feed_forward_length", "ssm.conv_kernel", "ssm.state_size",
                             "ssm.group_count", "ssm.inner_size", "ssm.time_step_rank"}) {
    metadata->Find(p + unused);
  }
  return {};
}

// Read, or of the state spaces that are not there.
constexpr const char* kSettings4[] = {"shared_intermediate_size",
                                      "position_embedding_type",
                                      "num_local_experts",
                                      "normalization_function",
                                      "init_method",
                                      "mamba_chunk_size",
                                      "mamba_conv_bias",
                                      "mamba_d_conv",
                                      "mamba_d_head",
                                      "mamba_d_state",
                                      "mamba_expand",
                                      "mamba_n_groups",
                                      "mamba_n_heads",
                                      "mamba_proj_bias"};

Family Base() {
  Family f;
  f.biases = Biases::kOptionalAll;
  f.settings = {"embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier"};
  f.read = Read;
  return f;
}

using R = TensorRole;

}  // namespace

const Family& Granite() {
  static const Family family = [] {
    Family f = Base();
    f.name = f.gguf = "granite", f.hf = "GraniteForCausalLM";
    f.gguf_pairing = RopePairing::kInterleaved;
    f.read_gguf = ReadGguf;
    return f;
  }();
  return family;
}

const Family& Granite4() {
  static const Family family = [] {
    Family f = Base();
    f.name = "granite4", f.hf = "GraniteMoeHybridForCausalLM";
    f.take = TakeDense, f.read = Read4;
    f.settings.insert(f.settings.end(), std::begin(kSettings4), std::end(kSettings4));
    f.hf_names = {{"model.layers.%.shared_mlp.input_linear.weight", R::kGate, TensorName::kFusedGateUp},
                  {"model.layers.%.shared_mlp.output_linear.weight", R::kDown}};
    f.ffn_size = "shared_intermediate_size";
    return f;
  }();
  return family;
}

}  // namespace kvc
