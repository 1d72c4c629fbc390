// The number that ties sessions and score tables to a model.
#pragma once
#include <cstdint>
#include <vector>

#include "lib/model/model_config.h"
#include "lib/model/model_file.h"
#include "lib/model/tokenizer_spec.h"

namespace kvc {

// XXH3-64 over what decides the output for a text: numbers of the config, tokenizer, and role, layer, form
// and checksum of every tensor. Names, source, turn format, head scores and the order of tensors do not
// count. FORMAT.md lists the bytes.
uint64_t Fingerprint(const ModelConfig& config, const TokenizerView& tokenizer,
                     const std::vector<TensorEntry>& tensors);

}  // namespace kvc
