// llama2.c checkpoints (legacy header): int32 dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size,
// seq_len; then f32: embedding, attention norms, wq, wk, wv, wo, ffn norms, w1, w2, w3 (each of all layers
// together), final norm, cos and sin tables [seq_len, head_dim / 2] that follow from the configuration, and
// the output head when vocab_size is negative.
#include <algorithm>

#include "lib/model/model_check.h"
#include "models/convert/sources.h"
#include "models/convert/tokenizer_llama2c.h"

namespace kvc {
namespace {

constexpr int64_t kMaxTokenizerBytes = 1 << 26;

struct Part {
  TensorRole role;
  bool per_layer;
};
using R = TensorRole;
constexpr Part kPartsBeforeTables[] = {{R::kEmbedding, false}, {R::kAttentionNorm, true}, {R::kQuery, true},
                                       {R::kKey, true},        {R::kValue, true},         {R::kOutput, true},
                                       {R::kFfnNorm, true},    {R::kGate, true},          {R::kDown, true},
                                       {R::kUp, true},         {R::kFinalNorm, false}};

void AddTensor(const Part& part, int32_t layer, const SourceFile* file, Checkpoint* out, int64_t* at) {
  SourceTensor tensor;
  tensor.role = part.role, tensor.layer = layer, tensor.type = SourceType::kF32, tensor.file = file;
  TensorShape(out->content.config, part.role, &tensor.rows, &tensor.cols);
  tensor.runs.push_back({*at, tensor.rows});
  tensor.name = TensorTitle(part.role, layer);
  *at += int64_t{4} * tensor.rows * tensor.cols;
  out->tensors.push_back(std::move(tensor));
}

Result<TokenizerSpec> FindTokenizer(const std::string& path, int32_t vocab_size, InputFiles* inputs) {
  const size_t slash = path.find_last_of('/');
  const std::string directory = slash == std::string::npos ? "" : path.substr(0, slash + 1);
  const std::string stem = path.substr(
      0, path.size() - (path.size() > 4 && path.compare(path.size() - 4, 4, ".bin") == 0 ? 4 : 0));
  const std::string names[] = {directory + Format("tok%d.bin", vocab_size), stem + "_tokenizer.bin",
                               directory + "tokenizer.bin"};
  for (const std::string& name : names) inputs->Add(name);
  for (const std::string& name : names) {
    if (!FileExists(name)) continue;
    auto bytes = ReadWholeFile(name, kMaxTokenizerBytes);
    if (!bytes.ok()) return bytes.status();
    auto spec = ReadLlama2cTokenizer(BytesOf(bytes.value()), vocab_size);
    if (!spec.ok()) return Status(spec.status().code(), name + ": " + spec.status().message());
    return spec;
  }
  return Error(Code::kNotFound, "%s: its tokenizer is not beside it: looked for %s, %s, %s", path.c_str(),
               names[0].c_str(), names[1].c_str(), names[2].c_str());
}

}  // namespace

Result<Llama2cHeader> ParseLlama2cHeader(Span<const uint8_t> bytes, int64_t file_bytes,
                                         const std::string& where) {
  if (bytes.size() < 28)
    return Error(Code::kBadModel, "%s: truncated: %zu bytes are no llama2.c checkpoint", where.c_str(),
                 bytes.size());
  int64_t field[7];
  for (size_t i = 0; i < 7; ++i) {
    uint32_t raw = 0;
    for (size_t b = 4; b-- > 0;) raw = raw << 8 | bytes[i * 4 + b];
    field[i] = static_cast<int32_t>(raw);
  }
  Llama2cHeader header;
  ModelConfig& c = header.config;
  c.tied_head = field[5] > 0;
  if (field[5] < 0) field[5] = -field[5];
  static constexpr const char* kNames[] = {"dim",        "hidden_dim", "n_layers", "n_heads",
                                           "n_kv_heads", "vocab_size", "seq_len"};
  static constexpr int64_t kLimits[] = {kMaxHidden, kMaxFfn,   kMaxLayers, kMaxHeads,
                                        kMaxHeads,  kMaxVocab, kMaxContext};
  for (int i = 0; i < 7; ++i) {
    if (field[i] < 1 || field[i] > kLimits[i]) {
      return Error(Code::kBadModel,
                   "%s: not a llama2.c checkpoint, or damaged: %s is %lld, outside 1 .. %lld", where.c_str(),
                   kNames[i], static_cast<long long>(field[i]), static_cast<long long>(kLimits[i]));
    }
  }
  c.architecture = "llama";
  c.hidden_size = static_cast<int32_t>(field[0]), c.ffn_size = static_cast<int32_t>(field[1]),
  c.n_layers = static_cast<int32_t>(field[2]);
  c.n_heads = static_cast<int32_t>(field[3]), c.n_kv_heads = static_cast<int32_t>(field[4]),
  c.vocab_size = static_cast<int32_t>(field[5]);
  c.max_tokens = static_cast<int32_t>(field[6]);
  if (c.hidden_size % c.n_heads != 0 || c.n_heads % c.n_kv_heads != 0) {
    return Error(Code::kBadModel,
                 "%s: not a llama2.c checkpoint, or damaged: width %d, %d heads, %d key-value heads",
                 where.c_str(), c.hidden_size, c.n_heads, c.n_kv_heads);
  }
  c.head_dim = c.hidden_size / c.n_heads;
  c.rope_pairing = RopePairing::kInterleaved;
  const Status valid = CheckConfig(c);
  if (!valid.ok()) return Status(valid.code(), where + ": " + valid.message());
  const int64_t d = c.hidden_size, f = c.ffn_size, kv = int64_t{c.n_kv_heads} * c.head_dim, v = c.vocab_size;
  const int64_t per_layer = 2 * d + 2 * d * d + 2 * kv * d + 3 * f * d;  // at most 2^40: no overflow below
  header.file_bytes = 28 + 4 * (v * d + c.n_layers * per_layer + d + int64_t{c.max_tokens} * c.head_dim +
                                (c.tied_head ? 0 : v * d));
  if (file_bytes != header.file_bytes) {
    return Error(Code::kBadModel, "%s: %s: a checkpoint of its shape has %lld bytes, the file has %lld",
                 where.c_str(),
                 file_bytes < header.file_bytes ? "truncated" : "not a llama2.c checkpoint, or damaged",
                 static_cast<long long>(header.file_bytes), static_cast<long long>(file_bytes));
  }
  return header;
}

Result<Checkpoint> ReadLlama2c(const std::string& path, const RopeOptions& options) {
  Checkpoint out;
  out.kind = "llama2.c";
  auto file = SourceFile::Open(path);
  if (!file.ok()) return file.status();
  const SourceFile* source = file.value().get();
  out.inputs.Add(path);
  out.files.push_back(std::move(file.value()));
  uint8_t bytes[28];
  KVC_RETURN_IF_ERROR(source->Read(0, bytes, std::min<int64_t>(28, source->size())));
  auto header = ParseLlama2cHeader({bytes, static_cast<size_t>(std::min<int64_t>(28, source->size()))},
                                   source->size(), path);
  if (!header.ok()) return header.status();
  ModelConfig& c = out.content.config = header.value().config;
  int64_t at = 28;
  for (const Part& part : kPartsBeforeTables) {
    for (int32_t layer = part.per_layer ? 0 : -1; layer < (part.per_layer ? c.n_layers : 0); ++layer)
      AddTensor(part, layer, source, &out, &at);
  }
  at += int64_t{4} * c.max_tokens * c.head_dim;  // of the length that the file has tables of angles for
  KVC_RETURN_IF_ERROR(ExtendRope(options, path, &c, &out.extended));
  if (!c.tied_head) AddTensor({R::kOutputHead, false}, -1, source, &out, &at);
  KVC_RETURN_IF_ERROR(CompleteTensors(path, &out));
  auto tokenizer = FindTokenizer(path, c.vocab_size, &out.inputs);
  if (!tokenizer.ok()) return tokenizer.status();
  out.content.tokenizer = std::move(tokenizer.value());
  return out;
}

}  // namespace kvc
