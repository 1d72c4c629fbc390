#include "lib/engine/model.h"

#include <algorithm>
#include <cmath>

namespace kvc {

Result<std::shared_ptr<const Model>> Model::Build(Result<std::unique_ptr<ModelFile>> file,
                                                  std::shared_ptr<MemoryMeter> meter,
                                                  const ModelParams& params) {
  if (!file.ok()) return file.status();
  std::shared_ptr<Model> model(new Model());
  model->meter_ = std::move(meter);
  model->file_ = std::move(file.value());
  KVC_RETURN_IF_ERROR(model->file_->Fault(model->Init(params)));
  return std::shared_ptr<const Model>(std::move(model));
}

Status Model::Init(const ModelParams& params) {
  // Mapped or not, the weights are what a step reads: they count against the limit, once.
  const int64_t weight_bytes = file_->weight_bytes();
  if (!file_->weights_are_metered()) KVC_RETURN_IF_ERROR(meter_->Take(weight_bytes, "the weights"));
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(file_->tokenizer(), meter_.get());
  if (!tokenizer.ok()) return tokenizer.status();
  tokenizer_ = std::move(tokenizer.value());
  overhead_bytes_ = meter_->used() - weight_bytes;
  Result<std::unique_ptr<ThreadPool>> pool = ThreadPool::Create(params.n_threads);
  if (!pool.ok()) return pool.status();
  pool_ = std::move(pool.value());
  kernels_ = &BestKernels();
  Result<Weights> weights = Weights::Bind(*file_);
  if (!weights.ok()) return weights.status();
  weights_ = std::move(weights.value());
  rope_ = Rope(config().rope, config().head_dim);
  return {};
}

Result<std::shared_ptr<const Model>> Model::Open(const std::string& path, const ModelParams& params) {
  auto meter = std::make_shared<MemoryMeter>(params.memory_limit);
  return Build(ModelFile::Open(path, meter.get()), meter, params);
}

Result<std::shared_ptr<const Model>> Model::OpenFd(int fd, int64_t offset, int64_t n_bytes,
                                                   const ModelParams& params) {
  auto meter = std::make_shared<MemoryMeter>(params.memory_limit);
  return Build(ModelFile::OpenFd(fd, offset, n_bytes, meter.get()), meter, params);
}

Result<std::shared_ptr<const Model>> Model::OpenMemory(const uint8_t* data, int64_t n_bytes,
                                                       const ModelParams& params) {
  auto meter = std::make_shared<MemoryMeter>(params.memory_limit);
  return Build(ModelFile::OpenMemory(data, n_bytes, meter.get()), meter, params);
}

CompressorShape Model::compressor_shape() const {
  const ModelConfig& c = config();
  CompressorShape shape;
  shape.n_layers = c.n_layers, shape.n_heads = c.n_heads, shape.n_kv_heads = c.n_kv_heads,
  shape.head_dim = c.head_dim;
  shape.scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c.head_dim)));
  shape.rope = &rope_, shape.pairing = c.rope_pairing;
  return shape;
}

Result<HeadScores> Model::ScoresFor(const Policy& policy) const {
  HeadScores scores;
  const bool mixed = policy.Int(OptionId::kKv) == 5;
  if (!mixed && (policy.keeps_all() || (policy.allocator->needs & kNeedsHeadScores) == 0)) return scores;
  if (!policy.head_scores.empty()) {
    scores.values.assign(policy.head_scores.begin(), policy.head_scores.end());
    return scores;
  }
  const bool wants_query_heads =
      policy.allocator != nullptr && std::string(policy.allocator->name) == "headkv";
  const HeadScoreTable* found = nullptr;
  for (const HeadScoreTable& table : file_->head_scores()) {
    if (!policy.scores_name.empty()) {
      if (table.name == policy.scores_name) found = &table;
      continue;
    }
    const bool per_query = table.n_columns == config().n_heads && config().n_heads != config().n_kv_heads;
    const bool better =
        found == nullptr || (wants_query_heads && per_query && found->n_columns != config().n_heads);
    if (better && (wants_query_heads || !per_query)) found = &table;
  }
  if (found == nullptr) return scores;
  scores.values.assign(found->scores.begin(), found->scores.end());
  scores.alpha = found->alpha;
  return scores;
}

}  // namespace kvc
