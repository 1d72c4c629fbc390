// Mistral, whose layers all slide or none; Ministral, which says it layer by layer; Mixtral, Mistral with
// experts. GGUF calls all of them llama.
#include <algorithm>

#include "models/convert/family.h"

namespace kvc {
namespace {

Status AllSlide(const JsonObject&, const ModelConfig&, std::vector<bool>* layers) {
  std::fill(layers->begin(), layers->end(), true);
  return {};
}

}  // namespace

const Family& Mistral() {
  static const Family family = [] {
    Family f;
    f.name = "mistral", f.hf = "MistralForCausalLM";
    f.default_window = 4096;
    f.slides = AllSlide;
    return f;
  }();
  return family;
}

const Family& Ministral() {
  static const Family family = [] {
    Family f;
    f.name = "ministral", f.hf = "MinistralForCausalLM";
    f.default_window = 4096;
    f.slides = AllSlide;
    return f;
  }();
  return family;
}

const Family& Mixtral() {
  using R = TensorRole;
  static const Family family = [] {
    Family f;
    f.name = "mixtral", f.hf = "MixtralForCausalLM";
    f.slides = AllSlide;
    f.experts = Family::kAlways, f.normalise_experts = true;
    f.hf_names = {{"model.layers.%.block_sparse_moe.gate.weight", R::kRouter},
                  {"model.layers.%.block_sparse_moe.experts.#.w1.weight", R::kExpertGate},
                  {"model.layers.%.block_sparse_moe.experts.#.w3.weight", R::kExpertUp},
                  {"model.layers.%.block_sparse_moe.experts.#.w2.weight", R::kExpertDown}};
    f.settings = {"num_experts", "num_local_experts"};
    f.default_theta = 1e6;
    f.default_eps = 1e-5;
    return f;
  }();
  return family;
}

}  // namespace kvc
