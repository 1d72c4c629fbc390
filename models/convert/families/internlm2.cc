// InternLM2 and 2.5: Llama under names of its own, queries, keys and values of a group packed together.
#include "models/convert/family.h"

namespace kvc {
namespace {

using R = TensorRole;

}  // namespace

const Family& InternLm2() {
  static const Family family = [] {
    Family f;
    f.name = f.gguf = "internlm2", f.hf = "InternLM2ForCausalLM";
    f.default_eps = 0;
    f.gguf_pairing = RopePairing::kInterleaved;
    f.hf_names = {{"model.tok_embeddings.weight", R::kEmbedding},
                  {"output.weight", R::kOutputHead},
                  {"model.layers.%.attention_norm.weight", R::kAttentionNorm},
                  {"model.layers.%.attention.wqkv.weight", R::kQuery, TensorName::kPackedQkv},
                  {"model.layers.%.attention.wo.weight", R::kOutput},
                  {"model.layers.%.ffn_norm.weight", R::kFfnNorm},
                  {"model.layers.%.feed_forward.w1.weight", R::kGate},
                  {"model.layers.%.feed_forward.w3.weight", R::kUp},
                  {"model.layers.%.feed_forward.w2.weight", R::kDown},
                  {"model.layers.%.attention.rotary_emb.inv_freq", R{}, TensorName::kIgnored}};
    return f;
  }();
  return family;
}

}  // namespace kvc
