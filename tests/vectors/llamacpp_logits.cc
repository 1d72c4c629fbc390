// Logits of llama.cpp for given token ids: llamacpp_logits MODEL.gguf IDS OUT
//   IDS   text file of token ids
//   OUT   float32 [tokens][vocabulary]; row i is what follows token i
// Weights as the file has them, KV cache f32, no flash attention, one token at a time. Not part of the build:
// compile it against the
// headers and libraries of a llama.cpp build, as make_llamacpp_vectors.py says.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

#include <llama.h>

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "usage: llamacpp_logits MODEL.gguf IDS OUT\n"), 2;
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  llama_backend_init();
  llama_model* model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (model == nullptr) return std::fprintf(stderr, "cannot load %s\n", argv[1]), 1;
  std::ifstream in(argv[2]);
  std::vector<llama_token> ids{std::istream_iterator<llama_token>(in), {}};
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(ids.size()) + 8;
  params.n_threads = params.n_threads_batch = 1;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* context = llama_init_from_model(model, params);
  if (context == nullptr) return std::fprintf(stderr, "cannot make a context\n"), 1;
  const auto n_vocab = static_cast<std::streamsize>(llama_vocab_n_tokens(llama_model_get_vocab(model)));
  std::ofstream out(argv[3], std::ios::binary);
  for (llama_token& id : ids) {
    if (llama_decode(context, llama_batch_get_one(&id, 1)) != 0)
      return std::fprintf(stderr, "decode failed\n"), 1;
    out.write(reinterpret_cast<const char*>(llama_get_logits_ith(context, 0)), 4 * n_vocab);
  }
  return out.flush() ? 0 : 1;
}
