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
    {"blk.%.post_attention_norm.weight", R::kAttentionPostNorm},
    {"blk.%.post_ffw_norm.weight", R::kFfnPostNorm},
    {"blk.%.ffn_norm.weight", R::kFfnNorm},
    {"blk.%.ffn_gate.weight", R::kGate},
    {"blk.%.ffn_up.weight", R::kUp},
    {"blk.%.ffn_down.weight", R::kDown},
    // Judged with the metadata, before the tensors are bound.
    {"rope_freqs.weight", R{}, TensorName::kIgnored},
    {"rope_factors_long.weight", R{}, TensorName::kIgnored},
    {"rope_factors_short.weight", R{}, TensorName::kIgnored},
};

bool IsNorm(R role) {
  return IsVectorRole(role) && role != R::kQueryBias && role != R::kKeyBias && role != R::kValueBias &&
         role != R::kOutputBias;
}

bool IsQueryOrKey(R role) {
  return role == R::kQueryBias || role == R::kKeyBias || role == R::kQueryNorm || role == R::kKeyNorm;
}

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

// The rotation pairs dimensions (j, j + D/2) of a head. Where a source pairs (j, j + n/2) among the first n
// of them only, rows change places so that the pairs stand where they are expected: logits are sums over
// dimensions, in whatever order queries and keys have them in common.
void SpreadPairs(const ModelConfig& c, SourceTensor* t) {
  const int32_t d = c.head_dim, n = c.rope.RotatedOf(d), rest = (d - n) / 2;
  const int64_t row_bytes = SourceBytes(t->type, t->cols);
  const std::vector<SourceTensor::Run> whole = std::move(t->runs);
  t->runs.clear();
  for (const SourceTensor::Run& run : whole) {
    for (int32_t head = 0; head < run.rows; head += d) {
      const auto add = [&](int32_t row, int32_t rows) {
        t->runs.push_back({run.offset + (head + row) * row_bytes, rows});
      };
      add(0, n / 2), add(n, rest), add(n / 2, n / 2), add(n + rest, rest);
    }
  }
}

bool SpreadsPairs(const ModelConfig& c) {
  return c.rope_pairing == RopePairing::kHalf && c.rope.RotatedOf(c.head_dim) < c.head_dim;
}

// Rows [row, row + the role's) of a tensor of the source.
SourceTensor Bound(const FoundTensor& tensor, const ModelConfig& config, TensorRole role, int32_t layer,
                   int32_t row = 0) {
  SourceTensor out;
  out.role = role, out.layer = layer, out.type = tensor.type, out.file = tensor.file, out.name = tensor.name;
  TensorShape(config, role, &out.rows, &out.cols);
  out.runs.push_back({tensor.offset + row * SourceBytes(tensor.type, out.cols), out.rows});
  if ((role == R::kQuery || role == R::kKey) && SpreadsPairs(config)) SpreadPairs(config, &out);
  return out;
}

Status CheckRows(const FoundTensor& tensor, int64_t rows, int32_t cols, const std::string& where) {
  if (tensor.shape.size() == 2 && tensor.shape[0] == rows && tensor.shape[1] == cols) return {};
  return Error(Code::kBadModel, "%s: tensor %s has shape %s, the configuration says [%lld, %d]",
               where.c_str(), tensor.name.c_str(), ShapeText(tensor.shape).c_str(),
               static_cast<long long>(rows), cols);
}

// Rows of several roles behind each other.
Status BindFused(const FoundTensor& tensor, std::initializer_list<TensorRole> roles, int32_t layer,
                 const std::string& where, Checkpoint* checkpoint) {
  const ModelConfig& c = checkpoint->content.config;
  int32_t all = 0, rows = 0, cols = 0;
  for (const TensorRole role : roles) {
    TensorShape(c, role, &rows, &cols);
    all += rows;
  }
  KVC_RETURN_IF_ERROR(CheckRows(tensor, all, c.hidden_size, where));
  int32_t row = 0;
  for (const TensorRole role : roles) {
    checkpoint->tensors.push_back(Bound(tensor, c, role, layer, row));
    TensorShape(c, role, &rows, &cols);
    row += rows;
  }
  return {};
}

Status BindPackedQkv(const FoundTensor& tensor, int32_t layer, const std::string& where,
                     Checkpoint* checkpoint) {
  const ModelConfig& c = checkpoint->content.config;
  const int32_t per_group = c.n_heads / c.n_kv_heads, d = c.head_dim;
  KVC_RETURN_IF_ERROR(CheckRows(tensor, int64_t{c.n_heads + 2 * c.n_kv_heads} * d, c.hidden_size, where));
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

Status BindOne(const BindRules& rules, const FoundTensor& tensor, const std::string& where,
               Checkpoint* checkpoint) {
  const ModelConfig& config = checkpoint->content.config;
  for (const TensorName& row : rules.names) {
    int32_t layer = -1;
    if (!Matches(row.pattern, tensor.name, &layer)) continue;
    if (row.use == TensorName::kIgnored) return {};
    if (layer >= config.n_layers) {
      return Error(Code::kBadModel, "%s: tensor %s: the configuration has only %d layers", where.c_str(),
                   tensor.name.c_str(), config.n_layers);
    }
    if (row.use == TensorName::kPackedQkv) return BindPackedQkv(tensor, layer, where, checkpoint);
    if (row.use == TensorName::kFusedQkv)
      return BindFused(tensor, {R::kQuery, R::kKey, R::kValue}, layer, where, checkpoint);
    // Some files have both in one under the name that others have one under.
    if (row.use == TensorName::kFusedGateUp)
      return BindFused(tensor, {R::kGate, R::kUp}, layer, where, checkpoint);
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
    SourceTensor bound = Bound(tensor, config, row.role, layer);
    if (IsVectorRole(row.role) && IsQueryOrKey(row.role) && SpreadsPairs(config)) {
      return Error(
          Code::kUnsupported, "%s: tensor %s in a model that rotates %d of %d dimensions is not supported",
          where.c_str(), tensor.name.c_str(), config.rope.RotatedOf(config.head_dim), config.head_dim);
    }
    if (rules.norms_less_one && IsNorm(row.role)) bound.add = 1;
    checkpoint->tensors.push_back(std::move(bound));
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

std::vector<TensorName> HfTensorNames(const std::vector<TensorName>& family) {
  std::vector<TensorName> names = family;
  names.insert(names.end(), std::begin(kHfNames), std::end(kHfNames));
  return names;
}

std::vector<TensorName> GgufTensorNames(const std::vector<TensorName>& family) {
  std::vector<TensorName> names = family;
  names.insert(names.end(), std::begin(kGgufNames), std::end(kGgufNames));
  return names;
}

Status BindTensors(const BindRules& rules, const std::vector<FoundTensor>& found, const std::string& where,
                   Checkpoint* checkpoint) {
  for (const FoundTensor& tensor : found) KVC_RETURN_IF_ERROR(BindOne(rules, tensor, where, checkpoint));
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
