// What a conversion will make, known before a weight is read or anything is written.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lib/model/model_file.h"
#include "models/convert/checkpoint.h"
#include "models/convert/convert.h"
#include "models/convert/weight_codec.h"

namespace kvc {

struct ConvertPlan {
  std::string kind, architecture, name;  // as in ConvertReport
  int64_t n_parameters = 0;
  int64_t bytes_read = 0, bytes_written = 0;  // of tensors
  std::vector<ConvertedType> types;           // of matrices; what is lost is not known yet
  int32_t n_multiplied = 0, n_fast = 0;       // matrices that are multiplied, and those the fast kernels take
  ModelConfig config;
  ExtendedRope extended;
  TokenizerKind tokenizer{};
  int64_t n_pieces = 0;
  TurnFormat turn_format;
  std::vector<std::string> warnings;
};

// What n rows of a tensor take in the source.
int64_t BytesInFile(const SourceTensor& tensor, int64_t n);

// targets and plans: of each tensor of the checkpoint.
ConvertPlan MakeConvertPlan(const Checkpoint& checkpoint, const std::vector<WeightTarget>& targets,
                            const std::vector<TensorPlan>& plans);

// What the cache holds after a prompt of n_tokens, as `kvc plan` counts it. kUnsupported: every layer has a
// window, and the policy nothing to compress.
Result<int64_t> CacheBytes(const ModelConfig& config, const char* policy, int32_t n_tokens);

}  // namespace kvc
