// Llama 2 and 3, and what has its shape: SmolLM2, Yi, Falcon 3, TinyLlama, the distilled DeepSeek models.
#include "models/convert/family.h"

namespace kvc {

const Family& Llama() {
  static const Family family = [] {
    Family f;
    f.name = "llama", f.hf = "LlamaForCausalLM", f.gguf = "llama";
    // llama.cpp reorders the rows of queries and keys so that neighbours are rotated together.
    f.gguf_pairing = RopePairing::kInterleaved;
    f.biases = Biases::kOptionalAll;
    f.experts = Family::kSomeGguf, f.normalise_experts = true;  // Mixtral
    return f;
  }();
  return family;
}

}  // namespace kvc
