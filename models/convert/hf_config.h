// Hugging Face config.json into a ModelConfig.
#pragma once
#include <string>
#include <vector>

#include "models/convert/checkpoint.h"
#include "models/convert/hf_rope.h"
#include "models/convert/json.h"
#include "models/convert/packed_linear.h"

namespace kvc {

struct HfConfig {
  ModelConfig model;
  int32_t bos = -1, pad = -1;
  std::vector<int32_t> eos;        // one or several
  std::vector<TensorRole> biases;  // that every layer has
  const Family* family = nullptr;
  PackedScheme packed;
  ExtendedRope extended;
  bool says_tied = false;             // whether the output head is the embedding
  std::vector<std::string> warnings;  // settings that were not recognised, by name; what was chosen
};

// kUnsupported names the architecture or setting that is not supported; kBadModel: damaged, or numbers out of
// range.
Result<HfConfig> ParseHfConfig(Span<const uint8_t> json, const std::string& where,
                               const RopeOptions& options = {});

// Appends the token ids of a member that holds one or a list of them, each at most `last`.
Status ReadTokenIds(const JsonObject& object, const char* key, int32_t last, std::vector<int32_t>* ids);

}  // namespace kvc
