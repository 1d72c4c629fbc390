#include "lib/model/weights.h"

#include <map>
#include <utility>

namespace kvc {
namespace {

// The tensors of a file by role and layer.
class Tensors {
 public:
  explicit Tensors(const ModelFile& file) {
    for (const TensorEntry& tensor : file.tensors()) by_role_[{tensor.role, tensor.layer}] = &tensor;
  }
  const TensorEntry* Find(TensorRole role, int32_t layer) const {
    const auto found = by_role_.find({role, layer});
    return found == by_role_.end() ? nullptr : found->second;
  }

 private:
  std::map<std::pair<TensorRole, int32_t>, const TensorEntry*> by_role_;
};

// Where prepared tensors come from and go to.
struct Place {
  const ModelFile* file;
  Device* device;
  MemoryMeter* meter;
  PreparedMemory* memory;
  int64_t* replaced_bytes;
};

// Prepares tensors of one layer; the first that is missing is remembered.
class Preparer {
 public:
  Preparer(const Tensors& tensors, const Place& place, int32_t layer)
      : tensors_(tensors), place_(place), layer_(layer) {}

  // Roles with the same columns, rows behind each other; biases [i] 0: none. stack: matrices in each tensor.
  void Fill(std::initializer_list<TensorRole> roles, std::initializer_list<TensorRole> biases, Matrix* out,
            MatrixUse use = MatrixUse::kProducts, int32_t stack = 1) {
    std::vector<const TensorEntry*> entries;
    std::vector<Weight> weights;
    std::vector<DevicePtr<const float>> vectors;
    for (TensorRole role : roles) {
      entries.push_back(tensors_.Find(role, layer_));
      if (entries.back() == nullptr) return Miss(role);
      weights.push_back(entries.back()->weight);
      weights.back().stack = stack;
    }
    for (TensorRole role : biases) {
      vectors.emplace_back();
      Fill(role, false, &vectors.back());
    }
    if (!status_.ok()) return;
    std::vector<const TensorEntry*> replaced;
    for (size_t i = 0; i < entries.size(); ++i) {
      if (place_.device->PreparedBytes({&weights[i], 1}, use) > 0) replaced.push_back(entries[i]);
    }
    Replace(replaced,
            [&] { return place_.memory->Prepare(place_.device, place_.meter, weights, vectors, use, out); });
  }

  void Fill(TensorRole role, bool required, DevicePtr<const float>* out) {
    const TensorEntry* tensor = tensors_.Find(role, layer_);
    if (tensor == nullptr) return required ? Miss(role) : void();
    if (!status_.ok()) return;
    const int32_t n = tensor->weight.rows * tensor->weight.cols;
    std::vector<const TensorEntry*> replaced;
    if (place_.device->PreparedVectorBytes(n) > 0) replaced.push_back(tensor);
    Replace(replaced, [&] {
      return place_.memory->PrepareVector(place_.device, place_.meter,
                                          static_cast<const float*>(tensor->weight.data), n, out);
    });
  }

  const Status& status() const { return status_; }

 private:
  void Miss(TensorRole role) {
    if (!status_.ok()) return;
    status_ = layer_ < 0
                  ? Error(Code::kBadModel, "tensor %s is missing", TensorRoleName(role))
                  : Error(Code::kBadModel, "tensor %s of layer %d is missing", TensorRoleName(role), layer_);
  }
  // What gets a form of its own by prepare() is not read from the file again, and must not be counted twice:
  // pages of a mapping are the system's to take back at any time, and what the caller has beside ours is the
  // caller's, so both leave the meter before that form comes. What was read into memory is there until then.
  template <typename F>
  void Replace(const std::vector<const TensorEntry*>& tensors, F&& prepare) {
    const bool owned = place_.file->weights_are_metered();
    for (size_t i = 0; !owned && i < tensors.size(); ++i) Leave(*tensors[i]);
    status_ = prepare();
    for (size_t i = 0; status_.ok() && i < tensors.size(); ++i) {
      if (owned) {
        Leave(*tensors[i]);
      } else if (!place_.file->borrowed()) {
        place_.file->Drop(*tensors[i]);  // preparing has read them once more
      }
    }
  }
  void Leave(const TensorEntry& tensor) const {
    const int64_t bytes = place_.file->borrowed() ? tensor.size : place_.file->Drop(tensor);
    *place_.replaced_bytes += bytes;
    if (place_.meter != nullptr) place_.meter->Give(bytes);
  }

  const Tensors& tensors_;
  const Place place_;
  const int32_t layer_;
  Status status_;
};

Status PrepareLayer(const Tensors& tensors, const ModelConfig& config, int32_t layer, const Place& place,
                    LayerMatrices* out) {
  using R = TensorRole;
  Preparer p(tensors, place, layer);
  p.Fill(R::kAttentionNorm, config.norms_before, &out->attention_norm);
  p.Fill(R::kAttentionNormBias, config.layer_norms, &out->attention_norm_bias);
  if (config.parallel_blocks) {
    out->ffn_norm = out->attention_norm, out->ffn_norm_bias = out->attention_norm_bias;
  } else {
    p.Fill(R::kFfnNorm, config.norms_before, &out->ffn_norm);
    p.Fill(R::kFfnNormBias, config.layer_norms, &out->ffn_norm_bias);
  }
  p.Fill(R::kAttentionPostNorm, config.norms_after, &out->attention_post_norm);
  p.Fill(R::kFfnPostNorm, config.norms_after, &out->ffn_post_norm);
  p.Fill(R::kQueryNorm, config.qk_norm, &out->query_norm);
  p.Fill(R::kKeyNorm, config.qk_norm, &out->key_norm);
  p.Fill(R::kAttentionSinks, config.attention_sinks, &out->sinks);
  p.Fill({R::kQuery, R::kKey, R::kValue}, {R::kQueryBias, R::kKeyBias, R::kValueBias}, &out->qkv);
  p.Fill({R::kOutput}, {R::kOutputBias}, &out->output);
  if (config.n_experts > 0) {
    p.Fill({R::kRouter}, {R::kRouterBias}, &out->router);
    p.Fill({R::kExpertGate, R::kExpertUp}, {R::kExpertGateBias, R::kExpertUpBias}, &out->gate_up,
           MatrixUse::kProducts, config.n_experts);
    p.Fill({R::kExpertDown}, {R::kExpertDownBias}, &out->down, MatrixUse::kProducts, config.n_experts);
    out->normalise_experts = config.normalise_experts;
  } else {
    p.Fill({R::kGate, R::kUp}, {}, &out->gate_up);
    p.Fill({R::kDown}, {}, &out->down);
  }
  out->activation = config.activation, out->wide_norms = config.wide_qk_norm;
  out->own_norms = config.own_qk_norms;
  out->activation_gain = config.activation_gain, out->activation_limit = config.activation_limit;
  return p.status();
}

// A matrix as the device would make it, without its numbers.
void Describe(const Device& device, Span<const Weight> tensors, Matrix* out) {
  *out = {};
  out->n_parts = static_cast<int32_t>(tensors.size());
  out->cols = tensors[0].cols, out->stack = tensors[0].stack;
  for (size_t i = 0; i < tensors.size(); ++i) {
    out->parts[i].type = device.PreparedType(tensors[i]);
    out->parts[i].rows = tensors[i].rows, out->parts[i].group = tensors[i].group;
  }
}

}  // namespace

PreparedMemory::~PreparedMemory() {
  for (const Block& block : blocks_) device_->Free(block.at, block.bytes);
  if (meter_ != nullptr) meter_->Give(bytes_);
}

void PreparedMemory::Swap(PreparedMemory& o) noexcept {
  std::swap(device_, o.device_);
  std::swap(meter_, o.meter_);
  std::swap(blocks_, o.blocks_);
  std::swap(bytes_, o.bytes_);
}

Status PreparedMemory::Take(Device* device, MemoryMeter* meter, int64_t bytes) {
  device_ = device, meter_ = meter;
  if (meter != nullptr)
    KVC_RETURN_IF_ERROR(meter->Take(bytes, "the weights as this processor multiplies them"));
  bytes_ += bytes;  // given back with the rest
  blocks_.reserve(blocks_.size() + 1);
  return {};
}

Status PreparedMemory::Prepare(Device* device, MemoryMeter* meter, Span<const Weight> tensors,
                               Span<const DevicePtr<const float>> biases, MatrixUse use, Matrix* out) {
  KVC_RETURN_IF_ERROR(Take(device, meter, device->PreparedBytes(tensors, use)));
  if (meter != nullptr && meter->counting()) {
    Describe(*device, tensors, out);
    return {};
  }
  KVC_RETURN_IF_ERROR(device->Prepare(tensors, biases, use, out));
  if (out->bytes > 0) blocks_.push_back({out->memory, out->bytes});
  return {};
}

Status PreparedMemory::PrepareVector(Device* device, MemoryMeter* meter, const float* values, int32_t n,
                                     DevicePtr<const float>* out) {
  KVC_RETURN_IF_ERROR(Take(device, meter, device->PreparedVectorBytes(n)));
  if (meter != nullptr && meter->counting()) return {};
  Vector vector;
  KVC_RETURN_IF_ERROR(device->PrepareVector(values, n, &vector));
  *out = vector.at;
  if (vector.bytes > 0) blocks_.push_back({vector.memory, vector.bytes});
  return {};
}

Result<Weights> Weights::Prepare(const ModelFile& file, Device* device, MemoryMeter* meter,
                                 CallState* watch) {
  const ModelConfig& config = file.config();
  const Tensors tensors(file);
  Weights w;
  const Place place{&file, device, meter, &w.memory, &w.replaced_bytes};
  w.shape.hidden = config.hidden_size, w.shape.ffn = config.ffn_size, w.shape.vocab = config.vocab_size;
  w.shape.n_heads = config.n_heads, w.shape.n_kv_heads = config.n_kv_heads,
  w.shape.head_dim = config.head_dim;
  w.shape.norm_eps = static_cast<float>(config.norm_eps);
  w.shape.n_experts = config.n_experts, w.shape.n_chosen = config.n_chosen;
  w.shape.layer_norms = config.layer_norms, w.shape.parallel_blocks = config.parallel_blocks;
  KVC_RETURN_IF_ERROR(device->Supports(w.shape));
  Preparer p(tensors, place, -1);
  p.Fill({TensorRole::kEmbedding}, {}, &w.embedding,
         config.tied_head ? MatrixUse::kProducts : MatrixUse::kRows);
  p.Fill(TensorRole::kFinalNorm, true, &w.final_norm);
  p.Fill(TensorRole::kFinalNormBias, config.layer_norms, &w.final_norm_bias);
  if (!config.tied_head) p.Fill({TensorRole::kOutputHead}, {}, &w.output_head);
  KVC_RETURN_IF_ERROR(p.status());
  if (config.tied_head) w.output_head = w.embedding;
  w.layers.resize(static_cast<size_t>(config.n_layers));
  for (int32_t i = 0; i < config.n_layers; ++i) {
    if (watch != nullptr) {
      watch->SetProgress(kVerifyShare + (1 - kVerifyShare) * i / config.n_layers);
      KVC_RETURN_IF_ERROR(watch->Check("opening"));
    }
    KVC_RETURN_IF_ERROR(PrepareLayer(tensors, config, i, place, &w.layers[static_cast<size_t>(i)]));
  }
  for (const LayerMatrices& layer : w.layers) {
    for (const Matrix* m : {&layer.qkv, &layer.output, &layer.gate_up, &layer.down}) {
      for (int i = 0; i < m->n_parts; ++i) {
        const WeightType type = m->parts[i].type;
        if (m->stack == 1) {
          w.shape.half_weights |= type == WeightType::kF16 || type == WeightType::kBf16;
          w.shape.coded_weights |= HasCodes(type);
          w.shape.fine_codes |= type == WeightType::kQ4K || (HasCodes(type) && m->parts[i].group % 32 != 0);
        }
        w.shape.f32_weights |= type == WeightType::kF32;
      }
    }
  }
  return w;
}

std::vector<const Matrix*> Weights::Matrices() const {
  std::vector<const Matrix*> all;
  for (const LayerMatrices& layer : layers) {
    for (const Matrix* m : {&layer.qkv, &layer.output, &layer.router, &layer.gate_up, &layer.down})
      all.push_back(m);
  }
  all.push_back(&output_head);
  return all;
}

}  // namespace kvc
