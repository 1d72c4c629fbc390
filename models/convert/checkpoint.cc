#include "models/convert/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>

#include "lib/model/model_check.h"
#include "models/convert/gguf.h"
#include "models/convert/gguf_blocks.h"

namespace kvc {
namespace {

using R = TensorRole;

constexpr TensorName kHfNames[] = {
    {"model.embed_tokens.weight", R::kEmbedding},
    {"model.norm.weight", R::kFinalNorm},
    {"lm_head.weight", R::kOutputHead},
    {"model.layers.%.input_layernorm.weight", R::kAttentionNorm},
    {"model.layers.%.self_attn.q_proj.weight", R::kQuery},
    {"model.layers.%.self_attn.k_proj.weight", R::kKey},
    {"model.layers.%.self_attn.v_proj.weight", R::kValue},
    {"model.layers.%.self_attn.o_proj.weight", R::kOutput},
    {"model.layers.%.self_attn.q_proj.bias", R::kQueryBias},
    {"model.layers.%.self_attn.k_proj.bias", R::kKeyBias},
    {"model.layers.%.self_attn.v_proj.bias", R::kValueBias},
    {"model.layers.%.self_attn.o_proj.bias", R::kOutputBias},
    {"model.layers.%.self_attn.q_norm.weight", R::kQueryNorm},
    {"model.layers.%.self_attn.k_norm.weight", R::kKeyNorm},
    {"model.layers.%.post_attention_layernorm.weight", R::kFfnNorm},
    {"model.layers.%.mlp.gate_proj.weight", R::kGate},
    {"model.layers.%.mlp.up_proj.weight", R::kUp},
    {"model.layers.%.mlp.down_proj.weight", R::kDown},
    // Frequencies that old checkpoints store; they follow from rope_theta.
    {"model.layers.%.self_attn.rotary_emb.inv_freq", R{}, TensorName::kIgnored},
    {"model.rotary_emb.inv_freq", R{}, TensorName::kIgnored},
};

constexpr TensorName kInternLm2Names[] = {
    {"model.tok_embeddings.weight", R::kEmbedding},
    {"model.norm.weight", R::kFinalNorm},
    {"output.weight", R::kOutputHead},
    {"model.layers.%.attention_norm.weight", R::kAttentionNorm},
    {"model.layers.%.attention.wqkv.weight", R::kQuery, TensorName::kPackedQkv},
    {"model.layers.%.attention.wo.weight", R::kOutput},
    {"model.layers.%.ffn_norm.weight", R::kFfnNorm},
    {"model.layers.%.feed_forward.w1.weight", R::kGate},
    {"model.layers.%.feed_forward.w3.weight", R::kUp},
    {"model.layers.%.feed_forward.w2.weight", R::kDown},
    {"model.layers.%.attention.rotary_emb.inv_freq", R{}, TensorName::kIgnored},
};

constexpr TensorName kGgufNames[] = {
    {"token_embd.weight", R::kEmbedding},
    {"output_norm.weight", R::kFinalNorm},
    {"output.weight", R::kOutputHead},
    {"blk.%.attn_norm.weight", R::kAttentionNorm},
    {"blk.%.attn_q.weight", R::kQuery},
    {"blk.%.attn_k.weight", R::kKey},
    {"blk.%.attn_v.weight", R::kValue},
    {"blk.%.attn_output.weight", R::kOutput},
    {"blk.%.attn_q.bias", R::kQueryBias},
    {"blk.%.attn_k.bias", R::kKeyBias},
    {"blk.%.attn_v.bias", R::kValueBias},
    {"blk.%.attn_output.bias", R::kOutputBias},
    {"blk.%.attn_q_norm.weight", R::kQueryNorm},
    {"blk.%.attn_k_norm.weight", R::kKeyNorm},
    {"blk.%.ffn_norm.weight", R::kFfnNorm},
    {"blk.%.ffn_gate.weight", R::kGate},
    {"blk.%.ffn_up.weight", R::kUp},
    {"blk.%.ffn_down.weight", R::kDown},
    {"rope_freqs.weight", R{},
     TensorName::kIgnored},  // judged with the metadata, before the tensors are bound
};

constexpr R kBiasRoles[] = {R::kQueryBias, R::kKeyBias, R::kValueBias, R::kOutputBias};

// Whether name is pattern with a number in place of '%'; *layer is that number, or -1.
bool Matches(const char* pattern, const std::string& name, int32_t* layer) {
  *layer = -1;
  const char* hole = std::strchr(pattern, '%');
  if (hole == nullptr) return name == pattern;
  const size_t before = static_cast<size_t>(hole - pattern), after = std::strlen(hole + 1);
  if (name.size() <= before + after || name.compare(0, before, pattern, before) != 0) return false;
  if (name.compare(name.size() - after, after, hole + 1) != 0) return false;
  const std::string digits = name.substr(before, name.size() - before - after);
  if (digits.size() > 6 || digits.find_first_not_of("0123456789") != std::string::npos) return false;
  if (digits.size() > 1 && digits[0] == '0') return false;
  *layer = std::stoi(digits);
  return true;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// The shape as [rows, cols]; vectors become [1, n].
bool AsMatrix(const FoundTensor& tensor, bool vector, int64_t* rows, int64_t* cols) {
  if (tensor.shape.size() != (vector ? 1 : 2)) return false;
  *rows = vector ? 1 : tensor.shape[0];
  *cols = tensor.shape.back();
  return true;
}

Status CheckShape(const FoundTensor& tensor, const ModelConfig& config, TensorRole role,
                  const std::string& where) {
  int32_t rows = 0, cols = 0;
  if (!TensorShape(config, role, &rows, &cols)) {
    return Error(Code::kUnsupported, "%s: tensor %s does not belong to a model of this configuration",
                 where.c_str(), tensor.name.c_str());
  }
  int64_t r = 0, c = 0;
  if (!AsMatrix(tensor, IsVectorRole(role), &r, &c) || r != rows || c != cols) {
    const std::string wanted = IsVectorRole(role) ? Format("[%d]", cols) : Format("[%d, %d]", rows, cols);
    return Error(Code::kBadModel, "%s: tensor %s has shape %s, the configuration says %s", where.c_str(),
                 tensor.name.c_str(), ShapeText(tensor.shape).c_str(), wanted.c_str());
  }
  return {};
}

SourceTensor Bound(const FoundTensor& tensor, const ModelConfig& config, TensorRole role, int32_t layer) {
  SourceTensor out;
  out.role = role, out.layer = layer, out.type = tensor.type, out.file = tensor.file, out.name = tensor.name;
  TensorShape(config, role, &out.rows, &out.cols);
  out.runs.push_back({tensor.offset, out.rows});
  return out;
}

// InternLM2 packs the rows of each KV head's group together: its query heads, its key, its value.
Status BindPackedQkv(const FoundTensor& tensor, int32_t layer, const std::string& where,
                     Checkpoint* checkpoint) {
  const ModelConfig& c = checkpoint->content.config;
  const int32_t per_group = c.n_heads / c.n_kv_heads, d = c.head_dim;
  const int64_t rows = int64_t{c.n_heads + 2 * c.n_kv_heads} * d;
  if (tensor.shape.size() != 2 || tensor.shape[0] != rows || tensor.shape[1] != c.hidden_size) {
    return Error(Code::kBadModel, "%s: tensor %s has shape %s, the configuration says [%lld, %d]",
                 where.c_str(), tensor.name.c_str(), ShapeText(tensor.shape).c_str(),
                 static_cast<long long>(rows), c.hidden_size);
  }
  const int64_t row_bytes = SourceBytes(tensor.type, c.hidden_size);
  SourceTensor parts[3] = {Bound(tensor, c, R::kQuery, layer), Bound(tensor, c, R::kKey, layer),
                           Bound(tensor, c, R::kValue, layer)};
  const int32_t heads[3] = {per_group, 1, 1};
  for (SourceTensor& part : parts) part.runs.clear();
  int64_t row = 0;
  for (int32_t g = 0; g < c.n_kv_heads; ++g) {
    for (int i = 0; i < 3; ++i) {
      parts[i].runs.push_back({tensor.offset + row * row_bytes, heads[i] * d});
      row += heads[i] * d;
    }
  }
  for (SourceTensor& part : parts) checkpoint->tensors.push_back(std::move(part));
  return {};
}

// A bias that one layer has, or that the configuration promises, all layers must have.
bool HasBias(const Checkpoint& checkpoint, R bias) {
  if (checkpoint.biases.has_value())
    return std::count(checkpoint.biases->begin(), checkpoint.biases->end(), bias) > 0;
  return std::any_of(checkpoint.tensors.begin(), checkpoint.tensors.end(),
                     [&](const SourceTensor& t) { return t.role == bias; });
}

Status BindOne(Span<const TensorName> names, const FoundTensor& tensor, const std::string& where,
               Checkpoint* checkpoint) {
  const ModelConfig& config = checkpoint->content.config;
  for (const TensorName& row : names) {
    int32_t layer = -1;
    if (!Matches(row.pattern, tensor.name, &layer)) continue;
    if (row.use == TensorName::kIgnored) return {};
    if (layer >= config.n_layers) {
      return Error(Code::kBadModel, "%s: tensor %s: the configuration has only %d layers", where.c_str(),
                   tensor.name.c_str(), config.n_layers);
    }
    if (row.use == TensorName::kPackedQkv) return BindPackedQkv(tensor, layer, where, checkpoint);
    if (row.role == R::kOutputHead && config.tied_head) {
      checkpoint->warnings.push_back(Format(
          "%s is not used: the configuration ties the output head to the embedding", tensor.name.c_str()));
      return {};
    }
    if (checkpoint->biases.has_value() &&
        std::count(std::begin(kBiasRoles), std::end(kBiasRoles), row.role) > 0 &&
        !HasBias(*checkpoint, row.role)) {
      return Error(Code::kUnsupported, "%s: tensor %s: the configuration has no such bias", where.c_str(),
                   tensor.name.c_str());
    }
    KVC_RETURN_IF_ERROR(CheckShape(tensor, config, row.role, where));
    checkpoint->tensors.push_back(Bound(tensor, config, row.role, layer));
    return {};
  }
  return Error(Code::kUnsupported, "%s: tensor %s has no place in a %s model", where.c_str(),
               tensor.name.c_str(), config.architecture.c_str());
}

int OrderOf(const SourceTensor& tensor) {  // embedding, the layers, then the rest
  return tensor.role == R::kEmbedding ? 0 : tensor.layer >= 0 ? 1 : 2;
}

}  // namespace

const char* SourceTypeName(SourceType type) {
  switch (type) {
    case SourceType::kF32:
      return "f32";
    case SourceType::kF16:
      return "f16";
    case SourceType::kBf16:
      return "bf16";
    default: {
      const BlockFormat* format = BlockFormatOf(type);
      return format == nullptr ? "?" : GgmlTypeName(format->number);
    }
  }
}

int32_t SourceBlock(SourceType type) {
  const BlockFormat* format = BlockFormatOf(type);
  return format == nullptr ? 1 : format->elements;
}

int64_t SourceBytes(SourceType type, int64_t n_elements) {
  const BlockFormat* format = BlockFormatOf(type);
  if (format != nullptr) return n_elements / format->elements * format->bytes;
  return n_elements * (type == SourceType::kF32 ? 4 : 2);
}

Span<const TensorName> HfTensorNames() { return {kHfNames, std::size(kHfNames)}; }
Span<const TensorName> InternLm2TensorNames() { return {kInternLm2Names, std::size(kInternLm2Names)}; }
Span<const TensorName> GgufTensorNames() { return {kGgufNames, std::size(kGgufNames)}; }

Status BindTensors(Span<const TensorName> names, const std::vector<FoundTensor>& found,
                   const std::string& where, Checkpoint* checkpoint) {
  for (const FoundTensor& tensor : found) KVC_RETURN_IF_ERROR(BindOne(names, tensor, where, checkpoint));
  return CompleteTensors(where, checkpoint);
}

Status CompleteTensors(const std::string& where, Checkpoint* checkpoint) {
  const ModelConfig& config = checkpoint->content.config;
  std::set<std::pair<int32_t, R>> have;
  std::vector<TensorEntry> entries;
  for (const SourceTensor& tensor : checkpoint->tensors) {
    if (!have.emplace(tensor.layer, tensor.role).second) {
      return Error(Code::kBadModel, "%s: tensor %s stands twice", where.c_str(), tensor.name.c_str());
    }
    TensorEntry entry;
    entry.role = tensor.role, entry.layer = tensor.layer, entry.weight.rows = tensor.rows,
    entry.weight.cols = tensor.cols;
    entries.push_back(entry);
  }
  const Status complete = CheckTensors(entries, config);
  if (!complete.ok()) return Status(complete.code(), where + ": " + complete.message());
  for (const R bias : kBiasRoles) {
    if (!checkpoint->biases.has_value() || !HasBias(*checkpoint, bias) || have.count({0, bias}) != 0)
      continue;
    return Error(Code::kBadModel, "%s: %s is missing, the configuration promises it", where.c_str(),
                 TensorTitle(bias, 0).c_str());
  }
  std::sort(checkpoint->tensors.begin(), checkpoint->tensors.end(),
            [](const SourceTensor& a, const SourceTensor& b) {
              return std::tuple(OrderOf(a), a.layer, a.role) < std::tuple(OrderOf(b), b.layer, b.role);
            });
  return {};
}

}  // namespace kvc
