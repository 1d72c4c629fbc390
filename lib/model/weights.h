// The tensors of a model file by what they do in the network. Views into the file; nothing is copied.
#pragma once
#include <vector>

#include "lib/model/model_file.h"

namespace kvc {

struct LayerWeights {
  const float *attention_norm = nullptr, *ffn_norm = nullptr;  // [hidden]
  const float *query_bias = nullptr, *key_bias = nullptr, *value_bias = nullptr,
              *output_bias = nullptr;                      // null: none
  const float *query_norm = nullptr, *key_norm = nullptr;  // [D], null: none
  Weight query, key, value, output, gate, up, down;
};

struct Weights {
  Weight embedding, output_head;
  const float* final_norm = nullptr;
  std::vector<LayerWeights> layers;

  // file must outlive the result. kBadModel names a tensor that is missing.
  static Result<Weights> Bind(const ModelFile& file);
};

}  // namespace kvc
