#include "lib/engine/model.h"

#include <algorithm>

#include "lib/base/log.h"
#include "lib/ops/devices.h"

namespace kvc {
namespace {

// Which of the model's ropes each layer turns by, and those ropes; one without rotation last, where some
// layer wants it.
void ListRopes(const ModelConfig& c, std::vector<Rope>* ropes, std::vector<int32_t>* of_layer) {
  ropes->emplace_back(c.rope, c.head_dim);
  for (const RopeConfig& more : c.more_ropes) ropes->emplace_back(more, c.head_dim);
  const int32_t none = static_cast<int32_t>(ropes->size());
  bool wants_none = false;
  for (const LayerConfig& layer : c.layers) {
    of_layer->push_back(layer.rope < 0 ? none : layer.rope);
    wants_none = wants_none || layer.rope < 0;
  }
  if (wants_none) ropes->push_back(Rope::None(c.head_dim));
}

}  // namespace

template <typename OpenFile>
Result<std::shared_ptr<const Model>> Model::Build(const ModelParams& params, OpenFile&& open) {
  Result<std::unique_ptr<Device>> device = OpenDevice(params.device, params.threads);
  if (!device.ok()) return device.status();
  // The limit is of all that is held.
  if (params.memory_limit > 0) device.value()->KeepNothing();
  auto meter = std::make_shared<MemoryMeter>(params.memory_limit);
  Result<std::unique_ptr<ModelFile>> file = open(meter.get());
  if (!file.ok()) return file.status();
  std::shared_ptr<Model> model(new Model());
  model->meter_ = std::move(meter);
  model->file_ = std::move(file.value());
  model->device_ = std::move(device.value());
  model->can_run_ = !params.plan_only;
  KVC_RETURN_IF_ERROR(model->file_->Fault(model->Init(params.watch)));
  return std::shared_ptr<const Model>(std::move(model));
}

Status Model::Init(CallState* watch) {
  // Mapped or not, the weights are what a step reads: they count against the limit, once.
  if (can_run_ && !file_->weights_are_metered())
    KVC_RETURN_IF_ERROR(meter_->Take(file_->weight_bytes(), "the weights"));
  Result<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Create(file_->tokenizer(), meter_.get());
  if (!tokenizer.ok()) return tokenizer.status();
  tokenizer_ = std::move(tokenizer.value());
  KVC_RETURN_IF_ERROR(can_run_ ? PrepareWeights(watch) : CountWeights());
  std::vector<int32_t> rope_of_layer;
  ListRopes(config(), &ropes_, &rope_of_layer);
  for (int32_t rope : rope_of_layer) rope_of_layer_.push_back(&ropes_[static_cast<size_t>(rope)]);
  std::vector<const Rope*> ropes;
  for (const Rope& rope : ropes_) ropes.push_back(&rope);
  for (const LayerMatrices& layer : weights_.layers) sinks_of_layer_.push_back(layer.sinks);
  const Network network{&config(), &weights_, rope_of_layer_.data(), device_.get()};
  executor_ =
      std::make_unique<Executor>(device_.get(), meter_, network, std::move(ropes), std::move(rope_of_layer));
  return {};
}

Status Model::PrepareWeights(CallState* watch) {
  Result<Weights> weights = Weights::Prepare(*file_, device_.get(), meter_.get(), watch);
  if (!weights.ok()) return weights.status();
  weights_ = std::move(weights.value());
  overhead_bytes_ = meter_->used() - file_->weight_bytes();
  opening_bytes_ = meter_->peak();
  return {};
}

// The same on a meter of its own that only counts, from what is held without the weights.
Status Model::CountWeights() {
  MemoryMeter counter(0, /*counting=*/true);
  const int64_t weight_bytes = file_->weights_are_metered() ? 0 : file_->weight_bytes();
  KVC_RETURN_IF_ERROR(counter.Take(meter_->used() + weight_bytes, "the model"));
  Result<Weights> weights = Weights::Prepare(*file_, device_.get(), &counter);
  if (!weights.ok()) return weights.status();
  overhead_bytes_ = counter.used() - file_->weight_bytes();
  opening_bytes_ = std::max(counter.peak(), meter_->peak() + weight_bytes);  // also while tables are made
  weights_ = std::move(weights.value());
  weights_.memory = PreparedMemory();  // of which there is none, and the meter goes
  if (!file_->weights_are_metered()) return {};
  for (const TensorEntry& tensor : file_->tensors()) meter_->Give(file_->Drop(tensor));
  return {};
}

Result<std::shared_ptr<const Model>> Model::Open(const std::string& path, const ModelParams& params) {
  return Build(params, [&](MemoryMeter* meter) {
    return ModelFile::Open(path, meter, params.watch, params.reads_no_weights());
  });
}

Result<std::shared_ptr<const Model>> Model::OpenFd(int fd, int64_t offset, int64_t n_bytes,
                                                   const ModelParams& params) {
  return Build(params, [&](MemoryMeter* meter) {
    return ModelFile::OpenFd(fd, offset, n_bytes, meter, params.watch, params.reads_no_weights());
  });
}

Result<std::shared_ptr<const Model>> Model::OpenMemory(const uint8_t* data, int64_t n_bytes,
                                                       const ModelParams& params) {
  return Build(params, [&](MemoryMeter* meter) {
    return ModelFile::OpenMemory(data, n_bytes, meter, params.reads_no_weights());
  });
}

Status Model::CanRun() const {
  if (can_run_) return {};
  return Error(Code::kUnsupported, "the model was opened with plan_only: it has no weights");
}

AttentionRule Model::attention_rule() const {
  return {rope_of_layer_.data(), config().rope_pairing, executor_->network().AttentionScale(),
          config().attention_cap, config().attention_sinks ? sinks_of_layer_.data() : nullptr};
}

Result<HeadScores> Model::ScoresFor(const Policy& policy) const {
  HeadScores scores;
  if (!policy.wants_head_scores()) return scores;
  if (!policy.head_scores.empty()) {
    scores.values.assign(policy.head_scores.begin(), policy.head_scores.end());
    return scores;
  }
  const bool wanted = policy.allocator != nullptr && policy.allocator->per_query_head,
             shapes_differ = config().n_heads != config().n_kv_heads;
  // Where every KV head has one query head, estimators tell the tables apart.
  const auto of_query_heads = [&](const HeadScoreTable& table) {
    return shapes_differ ? table.n_columns == config().n_heads : table.estimator == "headkv-r2";
  };
  const HeadScoreTable* found = nullptr;
  for (const HeadScoreTable& table : file_->head_scores()) {
    if (!policy.scores_name.empty()) {
      if (table.name == policy.scores_name) found = &table;
      continue;
    }
    if (shapes_differ && of_query_heads(table) && !wanted) continue;
    if (found == nullptr || (of_query_heads(table) == wanted && of_query_heads(*found) != wanted))
      found = &table;
  }
  if (found == nullptr) return scores;
  scores.values.assign(found->scores.begin(), found->scores.end());
  scores.alpha = found->alpha;
  return scores;
}

}  // namespace kvc
