// OLMoE: experts whose weights are not normalised, norms of queries and keys over all heads together.
#include "models/convert/family.h"

namespace kvc {

const Family& Olmoe() {
  static const Family family = [] {
    Family f;
    f.name = f.gguf = "olmoe", f.hf = "OlmoeForCausalLM";
    f.default_eps = 1e-5;
    f.biases = Biases::kOptionalAll;
    f.qk_norm = f.wide_qk_norm = true;
    f.experts = Family::kAlways;
    f.settings = {"num_experts", "num_local_experts", "norm_topk_prob"};
    return f;
  }();
  return family;
}

}  // namespace kvc
