#include "models/convert/expert_tensors.h"

namespace kvc {
namespace {

// "model.layers.3.mlp.experts.*.up_proj.weight"
std::string NameOfAll(const char* pattern, int32_t layer) {
  std::string name;
  for (const char* p = pattern; *p != '\0'; ++p)
    name += *p == '%' ? std::to_string(layer) : std::string(1, *p == '#' ? '*' : *p);
  return name;
}

// How many parts a tensor of this role, which has so many rows, is made of.
int32_t PartsOf(const ModelConfig& config, TensorRole role, int32_t rows) {
  return IsVectorRole(role) ? rows : StackOf(config, role);
}

// Packed codes of any size are read as those that need more.
SourceType Wider(SourceType a, SourceType b) {
  using S = SourceType;
  for (const auto& [near, far] :
       {std::pair(S::kNear128, S::kFar128), {S::kNear64, S::kFar64}, {S::kNear32, S::kFar32}}) {
    if (a == near && b == far) return far;
  }
  return a;
}

}  // namespace

Status ExpertTensors::Add(const FoundTensor& tensor, const TensorName& name, int32_t layer, int32_t expert) {
  int32_t rows = 0, cols = 0;
  if (!TensorShape(config_, name.role, &rows, &cols)) {
    return Error(Code::kUnsupported, "%s: tensor %s does not belong to a model of this configuration",
                 where_.c_str(), tensor.name.c_str());
  }
  const bool vector = IsVectorRole(name.role);
  const int32_t parts = PartsOf(config_, name.role, rows);
  if (expert >= parts) {
    return Error(Code::kBadModel, "%s: tensor %s: the configuration has only %d %s", where_.c_str(),
                 tensor.name.c_str(), parts, vector ? "heads" : "experts");
  }
  rows /= parts;
  if (tensor.shape != (vector ? std::vector<int64_t>{cols} : std::vector<int64_t>{rows, cols})) {
    return Error(Code::kBadModel, "%s: tensor %s has another shape than the configuration says: [%d, %d]",
                 where_.c_str(), tensor.name.c_str(), rows, cols);
  }
  Experts& experts = by_role_[{layer, name.role}];
  experts.pattern = name.pattern;
  experts.found.resize(static_cast<size_t>(parts));
  FoundTensor& place = experts.found[static_cast<size_t>(expert)];
  if (place.file != nullptr)
    return Error(Code::kBadModel, "%s: tensor %s stands twice", where_.c_str(), tensor.name.c_str());
  place = tensor;
  return {};
}

Status ExpertTensors::Stack(std::vector<SourceTensor>* tensors) const {
  for (const auto& [key, experts] : by_role_) {
    const std::vector<FoundTensor>& found = experts.found;
    SourceTensor stack;
    stack.layer = key.first, stack.role = key.second, stack.name = NameOfAll(experts.pattern, key.first);
    TensorShape(config_, stack.role, &stack.rows, &stack.cols);
    stack.type = found[0].type;
    for (size_t e = 0; e < found.size(); ++e) {
      if (found[e].file == nullptr) {
        return Error(Code::kBadModel, "%s: tensor %s: that of %s %zu is missing", where_.c_str(),
                     stack.name.c_str(), IsVectorRole(stack.role) ? "head" : "expert", e);
      }
      stack.type = Wider(stack.type, found[e].type);
      if (stack.type != found[e].type && stack.type != Wider(found[e].type, stack.type)) {
        return Error(Code::kUnsupported, "%s: tensor %s: experts of different types, %s and %s",
                     where_.c_str(), stack.name.c_str(), SourceTypeName(found[0].type),
                     SourceTypeName(found[e].type));
      }
      const int32_t rows = stack.rows / PartsOf(config_, stack.role, stack.rows);
      stack.runs.push_back({found[e].offset, rows, found[e].file, found[e].packed});
    }
    stack.file = found[0].file, stack.packed = found[0].packed;
    tensors->push_back(std::move(stack));
  }
  return {};
}

}  // namespace kvc
