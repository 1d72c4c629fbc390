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

// Bytes of the keys and values of n_tokens in f16, layers with a window holding that only; budget > 0: the
// other layers hold at most so many slots a KV head.
int64_t CacheBytes(const ModelConfig& config, int64_t n_tokens, int64_t budget);

}  // namespace kvc
