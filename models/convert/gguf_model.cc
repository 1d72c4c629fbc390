// GGUF: metadata to configuration, tensor table to sources.
#include <algorithm>
#include <cmath>

#include "models/convert/gguf_blocks.h"
#include "models/convert/gguf_metadata.h"
#include "models/convert/gguf_tokenizer.h"
#include "models/convert/sources.h"
#include "models/convert/turn_format.h"

namespace kvc {
namespace {

constexpr double kTurn = 6.283185307179586;  // 2 pi
constexpr int64_t kFirstRead = 1 << 20, kMaxHeader = 1 << 29;

// Reads the header, more of the file each time until it is whole.
Result<GgufHeader> ReadHeader(const SourceFile& file) {
  for (int64_t n = kFirstRead;; n *= 4) {
    n = std::min(n, file.size());
    if (n > kMaxHeader)
      return Error(Code::kUnsupported, "%s: a header of more than %lld bytes", file.path().c_str(),
                   static_cast<long long>(kMaxHeader));
    std::vector<uint8_t> bytes(static_cast<size_t>(n));
    KVC_RETURN_IF_ERROR(file.Read(0, bytes.data(), n));
    auto header = ParseGguf(bytes, file.size(), file.path());
    if (header.ok() || header.status().code() != Code::kBufferTooSmall) return header;
  }
}

bool TypeOf(uint32_t number, SourceType* type) {
  constexpr struct {
    uint32_t number;
    SourceType type;
  } kPlain[] = {{0, SourceType::kF32}, {1, SourceType::kF16}, {30, SourceType::kBf16}};
  for (const auto& plain : kPlain) {
    if (plain.number == number) return *type = plain.type, true;
  }
  for (const BlockFormat& format : BlockFormats()) {
    if (format.number == number) return *type = format.type, true;
  }
  return false;
}

// "F32, F16, BF16, Q4_0, ..."
std::string SupportedTypes() {
  std::string names = "F32, F16, BF16";
  for (const BlockFormat& format : BlockFormats()) names += std::string(", ") + GgmlTypeName(format.number);
  return names;
}

// Where each tensor lies, checked against the file and against one another.
Status LocateTensors(const GgufHeader& header, const SourceFile& file, std::vector<FoundTensor>* found) {
  const std::string& where = file.path();
  for (const GgufTensor& tensor : header.tensors) {
    FoundTensor out;
    out.name = tensor.name, out.shape = tensor.shape, out.file = &file;
    if (!TypeOf(tensor.type, &out.type)) {
      return Error(Code::kUnsupported, "%s: tensor %.80s: type %s (%u) is not supported; supported: %s",
                   where.c_str(), tensor.name.c_str(), GgmlTypeName(tensor.type), tensor.type,
                   SupportedTypes().c_str());
    }
    if (tensor.shape.back() % SourceBlock(out.type) != 0) {
      return Error(Code::kBadModel, "%s: tensor %.80s: rows of %lld elements do not divide into blocks of %d",
                   where.c_str(), tensor.name.c_str(), static_cast<long long>(tensor.shape.back()),
                   SourceBlock(out.type));
    }
    int64_t n_elements = 1;
    for (const int64_t n : tensor.shape) n_elements *= n;  // the parser has checked the product
    const int64_t room = file.size() - header.data_start - tensor.offset;
    constexpr int64_t kMostElements = 4;  // a byte, of any type
    if (n_elements / kMostElements > file.size() || SourceBytes(out.type, n_elements) > room) {
      return Error(Code::kBadModel, "%s: tensor %.80s ends beyond the end of the file: truncated or damaged",
                   where.c_str(), tensor.name.c_str());
    }
    out.offset = header.data_start + tensor.offset, out.n_bytes = SourceBytes(out.type, n_elements);
    found->push_back(std::move(out));
  }
  std::vector<const FoundTensor*> order;
  for (const FoundTensor& tensor : *found) order.push_back(&tensor);
  std::sort(order.begin(), order.end(),
            [](const FoundTensor* a, const FoundTensor* b) { return a->offset < b->offset; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i - 1]->offset + order[i - 1]->n_bytes > order[i]->offset) {
      return Error(Code::kBadModel, "%s: the tensors %.80s and %.80s overlap", where.c_str(),
                   order[i - 1]->name.c_str(), order[i]->name.c_str());
    }
  }
  return {};
}

Status ReadRope(GgufMetadata* metadata, const std::string& arch, ModelConfig* c) {
  RopeConfig& r = c->rope;
  const std::string prefix = arch + ".rope.";
  KVC_RETURN_IF_ERROR(metadata->Number(prefix + "freq_base", 1, 1e12, &r.theta));
  int32_t dimensions = c->head_dim;
  KVC_RETURN_IF_ERROR(metadata->Int(prefix + "dimension_count", 0, INT32_MAX, &dimensions));
  if (dimensions != c->head_dim) {
    return Error(Code::kUnsupported, "%s: rotating %d of %d dimensions is not supported",
                 metadata->where().c_str(), dimensions, c->head_dim);
  }
  std::string type = "none";
  double old_linear = 0;
  KVC_RETURN_IF_ERROR(metadata->Number(prefix + "scale_linear", 1e-3, 1e6, &old_linear));
  if (old_linear > 0 && old_linear != 1) type = "linear", r.factor = old_linear;
  KVC_RETURN_IF_ERROR(metadata->String(prefix + "scaling.type", &type));
  KVC_RETURN_IF_ERROR(metadata->Number(prefix + "scaling.factor", 0, 1e6, &r.factor));
  r.original_max_tokens = c->max_tokens;
  KVC_RETURN_IF_ERROR(
      metadata->Int(prefix + "scaling.original_context_length", 1, kMaxContext, &r.original_max_tokens));
  bool finetuned = false;  // tells how the model was trained; nothing is computed with it
  KVC_RETURN_IF_ERROR(metadata->Bool(prefix + "scaling.finetuned", &finetuned));
  if (type == "none" || r.factor == 0) {
    r = RopeConfig();
    return metadata->Number(prefix + "freq_base", 1, 1e12, &r.theta);
  }
  if (type == "linear") {
    r.scaling = RopeScaling::kLinear;
    r.original_max_tokens = 0;
    return {};
  }
  if (type != "yarn")
    return Error(Code::kUnsupported, "%s: RoPE scaling %.40s is not supported; supported: none, linear, yarn",
                 metadata->where().c_str(), type.c_str());
  r.scaling = RopeScaling::kYarn;
  KVC_RETURN_IF_ERROR(metadata->Number(prefix + "scaling.yarn_beta_fast", 1e-3, 1e6, &r.beta_fast));
  return metadata->Number(prefix + "scaling.yarn_beta_slow", 1e-3, 1e6, &r.beta_slow);
}

Status ReadShape(GgufMetadata* metadata, const std::string& arch, ModelConfig* c) {
  const std::string p = arch + ".";
  for (const char* key : {"block_count", "embedding_length", "feed_forward_length", "attention.head_count"}) {
    if (metadata->Find(p + key) == nullptr)
      return Error(Code::kBadModel, "%s: %s%s is missing", metadata->where().c_str(), p.c_str(), key);
  }
  KVC_RETURN_IF_ERROR(metadata->Int(p + "block_count", 1, kMaxLayers, &c->n_layers));
  KVC_RETURN_IF_ERROR(metadata->Int(p + "embedding_length", 1, kMaxHidden, &c->hidden_size));
  KVC_RETURN_IF_ERROR(metadata->Int(p + "feed_forward_length", 1, kMaxFfn, &c->ffn_size));
  KVC_RETURN_IF_ERROR(metadata->Int(p + "attention.head_count", 1, kMaxHeads, &c->n_heads));
  c->n_kv_heads = c->n_heads;
  KVC_RETURN_IF_ERROR(metadata->Int(p + "attention.head_count_kv", 1, kMaxHeads, &c->n_kv_heads));
  c->head_dim = c->hidden_size / c->n_heads;
  KVC_RETURN_IF_ERROR(metadata->Int(p + "attention.key_length", 8, kMaxHeadDim, &c->head_dim));
  int32_t value_length = c->head_dim;
  KVC_RETURN_IF_ERROR(metadata->Int(p + "attention.value_length", 8, kMaxHeadDim, &value_length));
  if (value_length != c->head_dim)
    return Error(Code::kUnsupported, "%s: keys of size %d with values of size %d are not supported",
                 metadata->where().c_str(), c->head_dim, value_length);
  c->max_tokens = 2048;
  KVC_RETURN_IF_ERROR(metadata->Int(p + "context_length", 1, kMaxContext, &c->max_tokens));
  KVC_RETURN_IF_ERROR(metadata->Int(p + "attention.sliding_window", 0, kMaxContext, &c->sliding_window));
  KVC_RETURN_IF_ERROR(metadata->Number(p + "attention.layer_norm_rms_epsilon", 0, 1, &c->norm_eps));
  KVC_RETURN_IF_ERROR(metadata->Int(p + "vocab_size", 1, kMaxVocab, &c->vocab_size));
  int32_t n_experts = 0, n_used = 0;
  KVC_RETURN_IF_ERROR(metadata->Int(p + "expert_count", 0, INT32_MAX, &n_experts));
  KVC_RETURN_IF_ERROR(metadata->Int(p + "expert_used_count", 0, INT32_MAX, &n_used));
  if (n_experts > 0)
    return Error(Code::kUnsupported, "%s: a mixture of %d experts is not supported",
                 metadata->where().c_str(), n_experts);
  return {};
}

Result<ModelConfig> ReadConfig(GgufMetadata* metadata) {
  ModelConfig c;
  KVC_RETURN_IF_ERROR(metadata->String("general.architecture", &c.architecture));
  const std::string arch = c.architecture;
  if (arch != "llama" && arch != "qwen2" && arch != "qwen3") {
    return Error(Code::kUnsupported,
                 "%s: architecture %.60s is not supported; supported: llama, qwen2, qwen3",
                 metadata->where().c_str(), arch.c_str());
  }
  KVC_RETURN_IF_ERROR(metadata->String("general.name", &c.name));
  c.qk_norm = arch == "qwen3";
  // llama.cpp reorders the rows of Llama's queries and keys so that neighbours are rotated together.
  c.rope_pairing = arch == "llama" ? RopePairing::kInterleaved : RopePairing::kHalf;
  KVC_RETURN_IF_ERROR(ReadShape(metadata, arch, &c));
  KVC_RETURN_IF_ERROR(ReadRope(metadata, arch, &c));
  int32_t layout_version = 0;
  KVC_RETURN_IF_ERROR(metadata->Int("general.quantization_version", 0, INT32_MAX, &layout_version));
  KVC_RETURN_IF_ERROR(metadata->RefuseUnread(arch + "."));
  return c;  // vocab_size may still be 0: then the embedding tells
}

// rope_freqs.weight divides the frequencies; only divisors that a RopeConfig describes can be kept.
Status ReadFrequencyDivisors(const std::vector<FoundTensor>& found, ModelConfig* c) {
  for (const FoundTensor& tensor : found) {
    if (tensor.name != "rope_freqs.weight") continue;
    const std::string& where = tensor.file->path();
    if (tensor.type != SourceType::kF32 || tensor.shape != std::vector<int64_t>{c->head_dim / 2}) {
      return Error(Code::kBadModel, "%s: tensor rope_freqs.weight must be F32 [%d]", where.c_str(),
                   c->head_dim / 2);
    }
    std::vector<float> factors(static_cast<size_t>(c->head_dim / 2));
    KVC_RETURN_IF_ERROR(tensor.file->Read(tensor.offset, factors.data(), tensor.n_bytes));
    if (std::all_of(factors.begin(), factors.end(), [](float f) { return f == 1; })) return {};
    if (c->rope.scaling != RopeScaling::kNone || !MatchLlama3Factors(factors, *c, &c->rope)) {
      return Error(Code::kUnsupported,
                   "%s: the frequency divisors in rope_freqs.weight are not those of a Llama 3 scaling",
                   where.c_str());
    }
  }
  return {};
}

}  // namespace

bool MatchLlama3Factors(const std::vector<float>& factors, const ModelConfig& config, RopeConfig* rope) {
  RopeConfig r = rope == nullptr ? config.rope : *rope;
  r.scaling = RopeScaling::kLlama3;
  r.factor = *std::max_element(factors.begin(), factors.end());
  r.low_freq_factor = 1, r.high_freq_factor = 4, r.original_max_tokens = 8192;  // of every Llama 3.x
  if (!(r.factor > 1)) return false;
  for (size_t j = 0; j < factors.size(); ++j) {
    const double frequency = std::pow(r.theta, -2.0 * static_cast<double>(j) / config.head_dim),
                 wave = kTurn / frequency;
    double factor = r.factor;
    if (wave < r.original_max_tokens / r.high_freq_factor) {
      factor = 1;
    } else if (wave <= r.original_max_tokens / r.low_freq_factor) {
      const double smooth =
          (r.original_max_tokens / wave - r.low_freq_factor) / (r.high_freq_factor - r.low_freq_factor);
      factor = 1 / ((1 - smooth) / r.factor + smooth);
    }
    if (!(std::fabs(factors[j] - factor) <= 1e-4 * factor)) return false;
  }
  *rope = r;
  return true;
}

Result<Checkpoint> ReadGguf(const std::string& path) {
  Checkpoint out;
  out.kind = "gguf";
  auto file = SourceFile::Open(path);
  if (!file.ok()) return file.status();
  const SourceFile& source = *file.value();
  out.inputs.Add(path);
  out.files.push_back(std::move(file.value()));
  auto header = ReadHeader(source);
  if (!header.ok()) return header.status();
  GgufMetadata metadata(header.value(), path);
  auto config = ReadConfig(&metadata);
  if (!config.ok()) return config.status();
  ModelConfig& c = out.content.config = std::move(config.value());
  std::vector<FoundTensor> found;
  KVC_RETURN_IF_ERROR(LocateTensors(header.value(), source, &found));
  const auto named = [&](const char* name) {
    return std::find_if(found.begin(), found.end(), [&](const FoundTensor& t) { return t.name == name; });
  };
  const auto embedding = named("token_embd.weight");
  if (c.vocab_size == 0 && embedding != found.end() && embedding->shape.size() == 2 &&
      embedding->shape[0] <= kMaxVocab) {
    c.vocab_size = static_cast<int32_t>(embedding->shape[0]);
  }
  c.tied_head = named("output.weight") == found.end();
  KVC_RETURN_IF_ERROR(ReadFrequencyDivisors(found, &c));
  KVC_RETURN_IF_ERROR(BindTensors(GgufTensorNames(), found, path, &out));
  auto tokenizer = ReadGgufTokenizer(&metadata);
  if (!tokenizer.ok()) return tokenizer.status();
  out.content.tokenizer = std::move(tokenizer.value());
  std::string chat;
  KVC_RETURN_IF_ERROR(metadata.String("tokenizer.chat_template", &chat));
  out.content.turn_format = RecognizeTurnFormat(chat);
  if (!chat.empty() && out.content.turn_format.user_prefix.empty())
    out.warnings.push_back("the chat template is of no known family; the turn format stays empty");
  return out;
}

}  // namespace kvc
