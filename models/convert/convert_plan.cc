#include "models/convert/convert_plan.h"

#include <algorithm>

#include "lib/engine/cache_plan.h"
#include "lib/model/model_check.h"
#include "lib/ops/weight_panels.h"
#include "models/convert/packed_linear.h"

namespace kvc {
namespace {

// Rows of it are looked up, and no more, where the output head is another matrix.
bool IsMultiplied(const TensorPlan& plan, const ModelConfig& config) {
  return !IsVectorRole(plan.role) && (plan.role != TensorRole::kEmbedding || config.tied_head);
}

int64_t BytesStored(const TensorPlan& plan) {
  const int64_t scales = RowScales({plan.type, WeightLayout::kRowMajor, plan.rows, plan.cols, plan.group});
  return plan.rows * (WeightRowBytes(plan.type, plan.cols) + 2 * scales);
}

}  // namespace

int64_t BytesInFile(const SourceTensor& tensor, int64_t n) {
  if (tensor.packed != nullptr) return n * (tensor.packed->n_bytes / tensor.packed->rows);
  return SourceBytes(tensor.type, n * tensor.cols);
}

ConvertPlan MakeConvertPlan(const Checkpoint& checkpoint, const std::vector<WeightTarget>& targets,
                            const std::vector<TensorPlan>& plans) {
  const ModelFileContent& content = checkpoint.content;
  ConvertPlan plan;
  plan.kind = checkpoint.kind, plan.architecture = content.config.architecture,
  plan.name = content.config.name;
  plan.config = content.config, plan.extended = checkpoint.extended, plan.turn_format = content.turn_format;
  plan.tokenizer = content.tokenizer.kind;
  plan.n_pieces = static_cast<int64_t>(content.tokenizer.pieces.size());
  plan.warnings = checkpoint.warnings;
  for (size_t i = 0; i < plans.size(); ++i) {
    const TensorPlan& t = plans[i];
    const SourceTensor& source = checkpoint.tensors[i];
    const int64_t read = BytesInFile(source, source.rows), written = BytesStored(t);
    plan.n_parameters += int64_t{t.rows} * t.cols;
    plan.bytes_read += read, plan.bytes_written += written;
    if (IsVectorRole(t.role)) continue;
    if (IsMultiplied(t, content.config)) {
      ++plan.n_multiplied;
      plan.n_fast += FitsPanels({t.type, WeightLayout::kRowMajor, t.rows, t.cols, t.group, nullptr, nullptr,
                                 StackOf(content.config, t.role)});
    }
    const std::string from = SourceTypeName(source.type), to = WeightTypeName(targets[i].type);
    auto found = std::find_if(plan.types.begin(), plan.types.end(), [&](const ConvertedType& known) {
      return known.source == from && known.stored == to && known.group == targets[i].group;
    });
    if (found == plan.types.end()) {
      plan.types.push_back({from, to, targets[i].group});
      found = plan.types.end() - 1;
    }
    ++found->n_tensors;
    found->bytes_read += read, found->bytes_written += written;
  }
  return plan;
}

Result<int64_t> CacheBytes(const ModelConfig& config, const char* policy, int32_t n_tokens) {
  return CacheBytesAfterPrompt(config, policy, n_tokens);
}

}  // namespace kvc
