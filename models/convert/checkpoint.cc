#include "models/convert/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <tuple>

#include "lib/model/model_check.h"
#include "models/convert/expert_tensors.h"
#include "models/convert/gguf.h"
#include "models/convert/gguf_blocks.h"
#include "models/convert/packed_linear.h"

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
    {"model.layers.%.mlp.gate.weight", R::kRouter},
    {"model.layers.%.mlp.experts.#.gate_proj.weight", R::kExpertGate},
    {"model.layers.%.mlp.experts.#.up_proj.weight", R::kExpertUp},
    {"model.layers.%.mlp.experts.#.down_proj.weight", R::kExpertDown},
    {"model.layers.%.mlp.experts.gate_up_proj", R::kExpertGate, TensorName::kStackedGateUp},
    {"model.layers.%.mlp.experts.down_proj", R::kExpertDown},
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
    {"blk.%.ffn_gate_inp.weight", R::kRouter},
    {"blk.%.ffn_gate_exps.weight", R::kExpertGate},
    {"blk.%.ffn_up_exps.weight", R::kExpertUp},
    {"blk.%.ffn_down_exps.weight", R::kExpertDown},
    // As files of 2023 and early 2024 have them.
    {"blk.%.ffn_gate.#.weight", R::kExpertGate},
    {"blk.%.ffn_up.#.weight", R::kExpertUp},
    {"blk.%.ffn_down.#.weight", R::kExpertDown},
    // Judged with the metadata, before the tensors are bound.
    {"rope_freqs.weight", R{}, TensorName::kIgnored},
    {"rope_factors_long.weight", R{}, TensorName::kIgnored},
    {"rope_factors_short.weight", R{}, TensorName::kIgnored},
};

bool IsNorm(R role) {
  constexpr R kNorms[] = {R::kFinalNorm, R::kAttentionNorm,     R::kFfnNorm,    R::kQueryNorm,
                          R::kKeyNorm,   R::kAttentionPostNorm, R::kFfnPostNorm};
  return std::count(std::begin(kNorms), std::end(kNorms), role) > 0;
}

bool IsQueryOrKey(R role) {
  return role == R::kQueryBias || role == R::kKeyBias || role == R::kQueryNorm || role == R::kKeyNorm;
}

// A number of at most six digits at *at, without zeros in front; *at goes behind it.
bool TakeNumber(const std::string& name, size_t* at, int32_t* number) {
  const size_t first = *at;
  *number = 0;
  for (; *at < name.size() && name[*at] >= '0' && name[*at] <= '9' && *at - first < 6; ++*at)
    *number = *number * 10 + (name[*at] - '0');
  return *at > first && (name[first] != '0' || *at == first + 1);
}

// Whether name is pattern with numbers in place of '%' and '#'; they are *layer and *expert, or -1.
bool Matches(const char* pattern, const std::string& name, int32_t* layer, int32_t* expert) {
  *layer = *expert = -1;
  size_t at = 0;
  for (const char* p = pattern; *p != '\0'; ++p) {
    if (*p == '%' || *p == '#') {
      if (!TakeNumber(name, &at, *p == '%' ? layer : expert)) return false;
    } else if (at >= name.size() || name[at++] != *p) {
      return false;
    }
  }
  return at == name.size();
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

// [cols] of vectors, [heads, cols] of those of every head, [experts, rows, cols] of stacks, else [rows,
// cols].
std::vector<int64_t> ShapeOf(const ModelConfig& config, TensorRole role, int32_t rows, int32_t cols) {
  if (IsVectorRole(role) && rows == 1) return {cols};
  if (!IsStackRole(role)) return {rows, cols};
  return {config.n_experts, rows / config.n_experts, cols};
}

Status CheckShape(const FoundTensor& tensor, const ModelConfig& config, TensorRole role,
                  const std::string& where) {
  int32_t rows = 0, cols = 0;
  if (!TensorShape(config, role, &rows, &cols)) {
    return Error(Code::kUnsupported, "%s: tensor %s does not belong to a model of this configuration",
                 where.c_str(), tensor.name.c_str());
  }
  const std::vector<int64_t> wanted = ShapeOf(config, role, rows, cols);
  if (tensor.shape == wanted) return {};
  return Error(Code::kBadModel, "%s: tensor %s has shape %s, the configuration says %s", where.c_str(),
               tensor.name.c_str(), ShapeText(tensor.shape).c_str(), ShapeText(wanted).c_str());
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

// The same of elements of a vector that belongs to heads.
std::vector<int32_t> SpreadOrder(const ModelConfig& c, int32_t cols) {
  const int32_t d = c.head_dim, n = c.rope.RotatedOf(d), rest = (d - n) / 2;
  std::vector<int32_t> order;
  for (int32_t head = 0; head < cols; head += d) {
    for (const auto& [first, count] : {std::pair(0, n / 2), {n, rest}, {n / 2, n / 2}, {n + rest, rest}}) {
      for (int32_t i = 0; i < count; ++i) order.push_back(head + first + i);
    }
  }
  return order;
}

bool SpreadsPairs(const ModelConfig& c) {
  return c.rope_pairing == RopePairing::kHalf && c.rope.RotatedOf(c.head_dim) < c.head_dim;
}

// Rows [row, row + the role's) of a tensor of the source.
SourceTensor Bound(const FoundTensor& tensor, const ModelConfig& config, TensorRole role, int32_t layer,
                   int32_t row = 0) {
  SourceTensor out;
  out.role = role, out.layer = layer, out.type = tensor.type, out.file = tensor.file, out.name = tensor.name;
  out.packed = tensor.packed;
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

// Rows of several roles behind each other, or the elements of their vectors.
Status BindFused(const FoundTensor& tensor, std::initializer_list<TensorRole> roles, int32_t layer,
                 const std::string& where, Checkpoint* checkpoint) {
  const ModelConfig& c = checkpoint->content.config;
  const bool vectors = IsVectorRole(*roles.begin());
  std::vector<SourceTensor> parts;
  int64_t all = 0;
  for (const TensorRole role : roles) {
    parts.push_back(Bound(tensor, c, role, layer, vectors ? 0 : static_cast<int32_t>(all)));
    SourceTensor& part = parts.back();
    if (vectors && (all % SourceBlock(tensor.type) != 0 || part.cols % SourceBlock(tensor.type) != 0)) {
      return Error(Code::kUnsupported,
                   "%s: tensor %s is several vectors, and blocks of %d elements go across them",
                   where.c_str(), tensor.name.c_str(), SourceBlock(tensor.type));
    }
    if (vectors) part.runs.front().offset += SourceBytes(tensor.type, all);
    all += vectors ? part.cols : part.rows;
  }
  if (!vectors) {
    KVC_RETURN_IF_ERROR(CheckRows(tensor, all, c.hidden_size, where));
  } else if (tensor.shape != std::vector<int64_t>{all}) {
    return Error(Code::kBadModel, "%s: tensor %s has shape %s, the configuration says [%lld]", where.c_str(),
                 tensor.name.c_str(), ShapeText(tensor.shape).c_str(), static_cast<long long>(all));
  }
  for (SourceTensor& part : parts) checkpoint->tensors.push_back(std::move(part));
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

// Gate and up of every expert.
Status BindStackedGateUp(const FoundTensor& tensor, int32_t layer, const std::string& where,
                         Checkpoint* checkpoint) {
  const ModelConfig& c = checkpoint->content.config;
  const std::vector<int64_t> wanted = {c.n_experts, int64_t{2} * c.ffn_size, c.hidden_size};
  if (c.n_experts == 0 || tensor.shape != wanted) {
    return Error(Code::kBadModel, "%s: tensor %s has shape %s, the configuration says %s", where.c_str(),
                 tensor.name.c_str(), ShapeText(tensor.shape).c_str(),
                 c.n_experts == 0 ? "no experts" : ShapeText(wanted).c_str());
  }
  const int64_t row_bytes = SourceBytes(tensor.type, c.hidden_size);
  int64_t row = 0;
  SourceTensor parts[2] = {Bound(tensor, c, R::kExpertGate, layer), Bound(tensor, c, R::kExpertUp, layer)};
  for (SourceTensor& part : parts) part.runs.clear();
  for (int32_t e = 0; e < c.n_experts; ++e) {
    for (SourceTensor& part : parts) {
      part.runs.push_back({tensor.offset + row * row_bytes, c.ffn_size});
      row += c.ffn_size;
    }
  }
  for (SourceTensor& part : parts) checkpoint->tensors.push_back(std::move(part));
  return {};
}

// Rows of gate and up in turn, or elements of their biases.
Status BindInterleavedGateUp(const FoundTensor& tensor, TensorRole gate, int32_t layer,
                             const std::string& where, Checkpoint* checkpoint) {
  const ModelConfig& c = checkpoint->content.config;
  const bool bias = IsVectorRole(gate);
  std::vector<int64_t> wanted = {c.n_experts, int64_t{2} * c.ffn_size};
  if (!bias) wanted.push_back(c.hidden_size);
  if (c.n_experts == 0 || tensor.shape != wanted) {
    return Error(Code::kBadModel, "%s: tensor %s has shape %s, the configuration says %s", where.c_str(),
                 tensor.name.c_str(), ShapeText(tensor.shape).c_str(),
                 c.n_experts == 0 ? "no experts" : ShapeText(wanted).c_str());
  }
  for (const int32_t half : {0, 1}) {
    const R role = bias ? (half == 0 ? R::kExpertGateBias : R::kExpertUpBias)
                        : (half == 0 ? R::kExpertGate : R::kExpertUp);
    SourceTensor part = Bound(tensor, c, role, layer);
    if (bias) {
      part.source_cols = 2 * c.ffn_size;
      for (int32_t i = 0; i < c.ffn_size; ++i) part.order.push_back(2 * i + half);
    } else {
      const int64_t row_bytes = SourceBytes(tensor.type, c.hidden_size);
      part.runs.clear();
      for (int64_t e = 0; e < c.n_experts; ++e)
        part.runs.push_back(
            {tensor.offset + (2 * e * c.ffn_size + half) * row_bytes, c.ffn_size, nullptr, nullptr, 2});
    }
    checkpoint->tensors.push_back(std::move(part));
  }
  return {};
}

// Matrices of experts stored columns first, the rows of the roles in turn.
Status BindColumnsFirst(const FoundTensor& tensor, std::initializer_list<TensorRole> roles, int32_t layer,
                        const std::string& where, Checkpoint* checkpoint) {
  const ModelConfig& c = checkpoint->content.config;
  const auto n_roles = static_cast<int32_t>(roles.size());
  int32_t rows = 0, cols = 0;
  std::vector<int64_t> wanted;
  if (c.n_experts > 0 && TensorShape(c, *roles.begin(), &rows, &cols))
    wanted = {c.n_experts, cols, int64_t{n_roles} * (rows / c.n_experts)};
  if (wanted.empty() || tensor.shape != wanted || SourceBlock(tensor.type) != 1) {
    return Error(Code::kBadModel, "%s: tensor %s has shape %s, the configuration says %s", where.c_str(),
                 tensor.name.c_str(), ShapeText(tensor.shape).c_str(),
                 wanted.empty() ? "no experts" : ShapeText(wanted).c_str());
  }
  const int64_t element = SourceBytes(tensor.type, 1), column = wanted[2] * element;
  int64_t first = tensor.offset;
  for (const R role : roles) {
    SourceTensor part = Bound(tensor, c, role, layer);
    part.runs.clear();
    for (int64_t e = 0; e < c.n_experts; ++e) {
      part.runs.push_back({first + e * cols * column, rows / c.n_experts, nullptr, nullptr, n_roles, column});
    }
    checkpoint->tensors.push_back(std::move(part));
    first += element;
  }
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
               Checkpoint* checkpoint, ExpertTensors* experts) {
  const ModelConfig& config = checkpoint->content.config;
  for (const TensorName& row : rules.names) {
    int32_t layer = -1, expert = -1;
    if (!Matches(row.pattern, tensor.name, &layer, &expert)) continue;
    if (row.use == TensorName::kIgnored) return {};
    if (layer >= config.n_layers) {
      return Error(Code::kBadModel, "%s: tensor %s: the configuration has only %d layers", where.c_str(),
                   tensor.name.c_str(), config.n_layers);
    }
    if (expert >= 0) return experts->Add(tensor, row, layer, expert);
    if (row.use == TensorName::kStackedGateUp) return BindStackedGateUp(tensor, layer, where, checkpoint);
    if (row.use == TensorName::kInterleavedGateUp)
      return BindInterleavedGateUp(tensor, row.role, layer, where, checkpoint);
    if (row.use == TensorName::kColumnsFirst)
      return BindColumnsFirst(tensor, {row.role}, layer, where, checkpoint);
    if (row.use == TensorName::kInterleavedColumnsFirst)
      return BindColumnsFirst(tensor, {R::kExpertGate, R::kExpertUp}, layer, where, checkpoint);
    if (row.use == TensorName::kPackedQkv) return BindPackedQkv(tensor, layer, where, checkpoint);
    if (row.use == TensorName::kFusedQkv)
      return row.role == R::kQueryBias
                 ? BindFused(tensor, {R::kQueryBias, R::kKeyBias, R::kValueBias}, layer, where, checkpoint)
                 : BindFused(tensor, {R::kQuery, R::kKey, R::kValue}, layer, where, checkpoint);
    // Some files have both in one under the name that others have one under.
    if (row.use == TensorName::kFusedGateUp)
      return BindFused(tensor, {R::kGate, R::kUp}, layer, where, checkpoint);
    if (row.role == R::kOutputHead && config.tied_head) {
      checkpoint->warnings.push_back(Format(
          "%s is not used: the configuration ties the output head to the embedding", tensor.name.c_str()));
      return {};
    }
    if (checkpoint->biases.has_value() && IsBiasRole(row.role) && !HasBias(*checkpoint, row.role)) {
      if (tensor.all_zero) return {};
      return Error(Code::kUnsupported, "%s: tensor %s: the configuration has no such bias", where.c_str(),
                   tensor.name.c_str());
    }
    KVC_RETURN_IF_ERROR(CheckShape(tensor, config, row.role, where));
    SourceTensor bound = Bound(tensor, config, row.role, layer);
    if (rules.norms_less_one && IsNorm(row.role)) bound.add = 1;
    checkpoint->tensors.push_back(std::move(bound));
    return {};
  }
  if (tensor.all_zero) return {};
  return Error(Code::kUnsupported, "%s: tensor %s has no place in a %s model", where.c_str(),
               tensor.name.c_str(), config.architecture.c_str());
}

int OrderOf(const SourceTensor& tensor) {  // embedding, the layers, then the rest
  return tensor.role == R::kEmbedding ? 0 : tensor.layer >= 0 ? 1 : 2;
}

}  // namespace

Checkpoint::Checkpoint() = default;
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint& Checkpoint::operator=(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

const char* SourceTypeName(SourceType type) {
  switch (type) {
    case SourceType::kF32:
      return "f32";
    case SourceType::kF16:
      return "f16";
    case SourceType::kBf16:
      return "bf16";
    case SourceType::kI32:
      return "i32";
    case SourceType::kU8:
      return "u8";
    case SourceType::kNear128:
    case SourceType::kNear64:
    case SourceType::kNear32:
      return "4 bits";
    case SourceType::kFar128:
    case SourceType::kFar64:
    case SourceType::kFar32:
      return "4 bits with zeros";
    case SourceType::kUnordered4:
      return "4 bits by g_idx";
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
  if (type == SourceType::kU8) return n_elements;
  return n_elements * (type == SourceType::kF16 || type == SourceType::kBf16 ? 2 : 4);
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
  ExpertTensors experts(checkpoint->content.config, where);
  for (const FoundTensor& tensor : found)
    KVC_RETURN_IF_ERROR(BindOne(rules, tensor, where, checkpoint, &experts));
  KVC_RETURN_IF_ERROR(experts.Stack(&checkpoint->tensors));
  const ModelConfig& config = checkpoint->content.config;
  for (SourceTensor& tensor : checkpoint->tensors) {
    if (IsQueryOrKey(tensor.role) && SpreadsPairs(config)) tensor.order = SpreadOrder(config, tensor.cols);
  }
  checkpoint->found = found;
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
  for (const R bias : checkpoint->biases.value_or(std::vector<R>())) {
    if (have.count({0, bias}) != 0) continue;
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
