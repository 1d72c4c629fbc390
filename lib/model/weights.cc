#include "lib/model/weights.h"

namespace kvc {
namespace {

// Where a tensor goes; exactly one of the two is set.
struct Destination {
  Weight* matrix = nullptr;
  const float** vector = nullptr;
};

Destination Find(Weights* w, TensorRole role, int32_t layer) {
  switch (role) {
    case TensorRole::kEmbedding:
      return {&w->embedding, nullptr};
    case TensorRole::kOutputHead:
      return {&w->output_head, nullptr};
    case TensorRole::kFinalNorm:
      return {nullptr, &w->final_norm};
    default:
      break;
  }
  if (layer < 0 || layer >= static_cast<int32_t>(w->layers.size())) return {};
  LayerWeights& l = w->layers[static_cast<size_t>(layer)];
  switch (role) {
    case TensorRole::kAttentionNorm:
      return {nullptr, &l.attention_norm};
    case TensorRole::kFfnNorm:
      return {nullptr, &l.ffn_norm};
    case TensorRole::kQuery:
      return {&l.query, nullptr};
    case TensorRole::kKey:
      return {&l.key, nullptr};
    case TensorRole::kValue:
      return {&l.value, nullptr};
    case TensorRole::kOutput:
      return {&l.output, nullptr};
    case TensorRole::kQueryBias:
      return {nullptr, &l.query_bias};
    case TensorRole::kKeyBias:
      return {nullptr, &l.key_bias};
    case TensorRole::kValueBias:
      return {nullptr, &l.value_bias};
    case TensorRole::kOutputBias:
      return {nullptr, &l.output_bias};
    case TensorRole::kQueryNorm:
      return {nullptr, &l.query_norm};
    case TensorRole::kKeyNorm:
      return {nullptr, &l.key_norm};
    case TensorRole::kGate:
      return {&l.gate, nullptr};
    case TensorRole::kUp:
      return {&l.up, nullptr};
    case TensorRole::kDown:
      return {&l.down, nullptr};
    default:
      return {};
  }
}

}  // namespace

Result<Weights> Weights::Bind(const ModelFile& file) {
  const ModelConfig& config = file.config();
  Weights w;
  w.layers.resize(static_cast<size_t>(config.n_layers));
  for (const TensorEntry& tensor : file.tensors()) {
    const Destination to = Find(&w, tensor.role, tensor.layer);
    if (to.matrix != nullptr) *to.matrix = tensor.weight;
    if (to.vector != nullptr) *to.vector = static_cast<const float*>(tensor.weight.data);
  }
  if (config.tied_head) w.output_head = w.embedding;
  const auto missing = [](const char* name, int layer) {
    return Error(Code::kBadModel, "tensor %s of layer %d is missing", name, layer);
  };
  if (w.embedding.data == nullptr || w.output_head.data == nullptr || w.final_norm == nullptr) {
    return Error(Code::kBadModel, "the embedding, the final norm or the output head is missing");
  }
  for (int i = 0; i < config.n_layers; ++i) {
    const LayerWeights& l = w.layers[static_cast<size_t>(i)];
    if (l.attention_norm == nullptr || l.ffn_norm == nullptr) return missing("attention_norm or ffn_norm", i);
    for (const Weight* m : {&l.query, &l.key, &l.value, &l.output, &l.gate, &l.up, &l.down}) {
      if (m->data == nullptr) return missing("query, key, value, output, gate, up or down", i);
    }
    if (config.qk_norm && (l.query_norm == nullptr || l.key_norm == nullptr))
      return missing("query_norm or key_norm", i);
  }
  return w;
}

}  // namespace kvc
