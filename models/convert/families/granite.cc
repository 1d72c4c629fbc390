// Granite 3 (and 4 without experts and state spaces): Llama with multipliers of embeddings, attention,
// residuals and logits.
#include "models/convert/family.h"

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

Status ReadGguf(GgufMetadata* metadata, const std::string& p, ModelConfig* c) {
  Scales s;
  KVC_RETURN_IF_ERROR(metadata->Number(p + "embedding_scale", kLeast, kMost, &s.embedding));
  KVC_RETURN_IF_ERROR(metadata->Number(p + "residual_scale", kLeast, kMost, &s.residual));
  KVC_RETURN_IF_ERROR(metadata->Number(p + "logit_scale", kLeast, kMost, &s.logits));
  KVC_RETURN_IF_ERROR(metadata->Number(p + "attention.scale", kLeast, kMost, &s.attention));
  s.Set(c);
  return {};
}

}  // namespace

const Family& Granite() {
  static const Family family = [] {
    Family f;
    f.name = f.gguf = "granite", f.hf = "GraniteForCausalLM";
    f.gguf_pairing = RopePairing::kInterleaved;
    f.biases = Biases::kOptionalAll;
    f.settings = {"embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier"};
    f.read = Read, f.read_gguf = ReadGguf;
    return f;
  }();
  return family;
}

}  // namespace kvc
