// Experts whose matrices are tensors of their own, and norms of single heads, in whatever order and files,
// become stacks.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/convert/checkpoint.h"

namespace kvc {

class ExpertTensors {
 public:
  ExpertTensors(const ModelConfig& config, std::string where) : config_(config), where_(std::move(where)) {}
  // The matrix of an expert or the norm of a head, found by a name with '#'; the layer is one of the
  // config's. kBadModel: there are fewer of them, it was there before, or has another shape; kUnsupported:
  // the config has none.
  Status Add(const FoundTensor& tensor, const TensorName& name, int32_t layer, int32_t expert);
  // Appends a tensor for each stack. kBadModel: an expert is missing; kUnsupported: those of a stack are of
  // different types.
  Status Stack(std::vector<SourceTensor>* tensors) const;

 private:
  struct Experts {
    const char* pattern = nullptr;
    std::vector<FoundTensor> found;  // by expert; without a file: not found
  };
  const ModelConfig& config_;
  const std::string where_;
  std::map<std::pair<int32_t, TensorRole>, Experts> by_role_;  // layer, role
};

}  // namespace kvc
