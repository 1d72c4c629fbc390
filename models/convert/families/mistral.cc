// Mistral, whose layers all slide or none; Ministral, which says it layer by layer. GGUF calls both llama.
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
    f.slides = AllSlide;
    return f;
  }();
  return family;
}

const Family& Ministral() {
  static const Family family = [] {
    Family f;
    f.name = "ministral", f.hf = "MinistralForCausalLM";
    f.slides = AllSlide;
    return f;
  }();
  return family;
}

}  // namespace kvc
