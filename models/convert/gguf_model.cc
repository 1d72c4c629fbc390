// GGUF: metadata to configuration, tensor table to sources.
#include <algorithm>
#include <cmath>

#include "models/convert/chat_template.h"
#include "models/convert/family.h"
#include "models/convert/gguf_metadata.h"
#include "models/convert/gguf_parts.h"
#include "models/convert/gguf_tensors.h"
#include "models/convert/gguf_tokenizer.h"
#include "models/convert/not_supported.h"
#include "models/convert/sources.h"

namespace kvc {
namespace {

constexpr double kTurn = 6.283185307179586;  // 2 pi

Status ReadRope(GgufMetadata* metadata, const Family& family, ModelConfig* c) {
  RopeConfig& r = c->rope;
  const std::string prefix = std::string(family.gguf) + ".rope.";
  KVC_RETURN_IF_ERROR(metadata->Number(prefix + "freq_base", 1, 1e12, &r.theta));
  int32_t dimensions = c->head_dim;
  KVC_RETURN_IF_ERROR(metadata->Int(prefix + "dimension_count", 0, INT32_MAX, &dimensions));
  if (dimensions != c->head_dim && family.rotated_share != 1 && dimensions >= 2 && dimensions % 2 == 0 &&
      dimensions < c->head_dim) {
    r.rotated = dimensions;
  } else if (dimensions != c->head_dim) {
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
  KVC_RETURN_IF_ERROR(metadata->Number(prefix + "scaling.attn_factor", 1e-3, 1e3, &r.attention_factor));
  bool finetuned = false;  // tells how the model was trained; nothing is computed with it
  KVC_RETURN_IF_ERROR(metadata->Bool(prefix + "scaling.finetuned", &finetuned));
  if (type == "none" || type == "longrope" || r.factor == 0) {
    r.scaling = RopeScaling::kNone, r.factor = 1;  // tensors with divisors are yet to come
    return {};
  }
  if (type == "linear") {
    r.scaling = RopeScaling::kLinear;
    r.original_max_tokens = 0, r.attention_factor = 0;
    return {};
  }
  if (type != "yarn")
    return Error(Code::kUnsupported, "%s: RoPE scaling %.40s is not supported; supported: none, linear, yarn",
                 metadata->where().c_str(), type.c_str());
  r.scaling = RopeScaling::kYarn;
  // llama.cpp computes YaRN's own factor when it loads a model, and multiplies it by attn_factor
  // (llama_context).
  if (r.attention_factor > 0 && !family.whole_attn_factor)
    r.attention_factor *= r.factor > 1 ? 0.1 * std::log(r.factor) + 1 : 1;
  // Its converter writes here what config.json has as attention_factor, which stands in place of the computed
  // one, or as attn_factor, which neither transformers nor llama.cpp look at. The latter takes a factor of 1
  // and more back, as in DeepSeek-R1-0528-Qwen3-8B: it is below 1, where no attention_factor of an extension
  // is.
  double written = 0;
  KVC_RETURN_IF_ERROR(metadata->Number(prefix + "scaling.yarn_attn_factor", 1e-3, 1e3, &written));
  if (written >= 1 && r.attention_factor == 0) r.attention_factor = written;
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
  return metadata->Int(p + "vocab_size", 1, kMaxVocab, &c->vocab_size);
}

// "llama, qwen2, ..."
std::string SupportedArchitectures() {
  std::string names;
  for (const Family* family : Families()) {
    if (family->gguf != nullptr) names += (names.empty() ? "" : ", ") + std::string(family->gguf);
  }
  return names;
}

Result<ModelConfig> ReadConfig(GgufMetadata* metadata, const Family** found) {
  ModelConfig c;
  KVC_RETURN_IF_ERROR(metadata->String("general.architecture", &c.architecture));
  const std::string arch = c.architecture;
  *found = FindGgufFamily(arch);
  if (*found == nullptr) {
    return Error(Code::kUnsupported, "%s: architecture %.60s is not supported%s; supported: %s",
                 metadata->where().c_str(), arch.c_str(), WhyNotArchitecture(arch).c_str(),
                 SupportedArchitectures().c_str());
  }
  const Family& family = **found;
  KVC_RETURN_IF_ERROR(metadata->String("general.name", &c.name));
  c.qk_norm = family.qk_norm, c.wide_qk_norm = family.wide_qk_norm;
  c.norms_before = family.norms_before, c.norms_after = family.norms_after;
  c.layer_norms = family.layer_norms, c.attention_sinks = family.attention_sinks;
  c.activation = family.activation, c.rope_pairing = family.gguf_pairing;
  KVC_RETURN_IF_ERROR(ReadShape(metadata, arch, &c));
  KVC_RETURN_IF_ERROR(ReadGgufExperts(metadata, arch + ".", family, &c));
  KVC_RETURN_IF_ERROR(ReadRope(metadata, family, &c));
  c.layers.assign(static_cast<size_t>(c.n_layers), {c.sliding_window, 0});
  if (family.read_gguf != nullptr) KVC_RETURN_IF_ERROR(family.read_gguf(metadata, arch + ".", &c));
  int32_t layout_version = 0;
  KVC_RETURN_IF_ERROR(metadata->Int("general.quantization_version", 0, INT32_MAX, &layout_version));
  KVC_RETURN_IF_ERROR(metadata->RefuseUnread(arch + "."));
  return c;  // vocab_size may still be 0: then the embedding tells
}

Status ReadDivisors(const FoundTensor& tensor, const ModelConfig& c, std::vector<float>* out) {
  const int32_t n = c.rope.RotatedOf(c.head_dim) / 2;
  if (tensor.type != SourceType::kF32 || tensor.shape != std::vector<int64_t>{n}) {
    return Error(Code::kBadModel, "%s: tensor %s must be F32 [%d]", tensor.file->path().c_str(),
                 tensor.name.c_str(), n);
  }
  out->resize(static_cast<size_t>(n));
  return tensor.file->Read(tensor.offset, out->data(), tensor.n_bytes);
}

// LongRoPE: divisors for texts up to the trained length, and for longer ones.
Status ReadLongRope(const FoundTensor& tensor, int32_t context, Checkpoint* out) {
  ModelConfig* c = &out->content.config;
  const int32_t trained = c->rope.original_max_tokens;
  const bool is_long = c->max_tokens > trained && (context == 0 || context > trained);
  if (is_long != (tensor.name == "rope_factors_long.weight")) return {};
  if (!is_long) c->max_tokens = std::min(c->max_tokens, trained);
  c->rope.scaling = RopeScaling::kDivisors;
  out->warnings.push_back(
      Format("LongRoPE has one set of frequencies up to %d tokens and another beyond: taken is "
             "the one for %s (--context chooses)",
             trained, is_long ? "longer texts, for texts of any length" : "shorter texts only"));
  return ReadDivisors(tensor, *c, &c->rope.divisors);
}

// rope_freqs.weight divides the frequencies, in most files as Llama 3 does.
Status ReadRopeTensors(const std::vector<FoundTensor>& found, int32_t context, Checkpoint* out) {
  ModelConfig* c = &out->content.config;
  for (const FoundTensor& tensor : found) {
    if (tensor.name.compare(0, 13, "rope_factors_") == 0)
      KVC_RETURN_IF_ERROR(ReadLongRope(tensor, context, out));
    if (tensor.name != "rope_freqs.weight") continue;
    std::vector<float> factors;
    KVC_RETURN_IF_ERROR(ReadDivisors(tensor, *c, &factors));
    if (std::all_of(factors.begin(), factors.end(), [](float f) { return f == 1; })) continue;
    if (c->rope.scaling != RopeScaling::kNone) {
      return Error(Code::kUnsupported, "%s: frequency divisors beside another RoPE scaling are not supported",
                   tensor.file->path().c_str());
    }
    if (MatchLlama3Factors(factors, *c, &c->rope)) continue;
    c->rope.scaling = RopeScaling::kDivisors, c->rope.divisors = std::move(factors);
  }
  if (c->rope.scaling == RopeScaling::kNone) {
    RopeConfig plain;
    plain.theta = c->rope.theta, plain.rotated = c->rope.rotated;
    c->rope = plain;
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

namespace {

Status LocateOtherParts(GgufMetadata* metadata, const std::string& path, Checkpoint* out,
                        std::vector<FoundTensor>* found) {
  int32_t n_parts = 1, part = 0;
  KVC_RETURN_IF_ERROR(metadata->Int("split.count", 0, UINT16_MAX, &n_parts));
  KVC_RETURN_IF_ERROR(metadata->Int("split.no", 0, UINT16_MAX, &part));
  if (n_parts <= 1) return {};
  if (part != 0 || GgufPartsNamed(path) != n_parts) {
    return Error(Code::kUnsupported,
                 "%s: is a part of a model in %d files (split.count): give the first, ...-00001-of-%05d.gguf",
                 path.c_str(), n_parts, n_parts);
  }
  for (part = 1; part < n_parts; ++part) {
    const std::string other = GgufPart(path, part);
    out->inputs.Add(other);
    auto file = SourceFile::Open(other);
    if (!file.ok()) return file.status();
    auto header = ReadGgufHeader(*file.value());
    if (!header.ok()) return header.status();
    int32_t number = -1;
    GgufMetadata own(header.value(), other);
    KVC_RETURN_IF_ERROR(own.Int("split.no", 0, UINT16_MAX, &number));
    if (number != part) {
      return Error(Code::kBadModel, "%s: says it is part %d of a model, and should be part %d", other.c_str(),
                   number, part);
    }
    KVC_RETURN_IF_ERROR(LocateGgufTensors(header.value(), *file.value(), found));
    out->files.push_back(std::move(file.value()));
  }
  return {};
}

}  // namespace

Result<Checkpoint> ReadGguf(const std::string& path, const RopeOptions& options) {
  Checkpoint out;
  out.kind = "gguf";
  auto file = SourceFile::Open(path);
  if (!file.ok()) return file.status();
  const SourceFile& source = *file.value();
  out.inputs.Add(path);
  out.files.push_back(std::move(file.value()));
  auto header = ReadGgufHeader(source);
  if (!header.ok()) return header.status();
  GgufMetadata metadata(header.value(), path);
  std::vector<FoundTensor> found;
  KVC_RETURN_IF_ERROR(LocateGgufTensors(header.value(), source, &found));
  KVC_RETURN_IF_ERROR(LocateOtherParts(&metadata, path, &out, &found));
  const Family* family = nullptr;
  auto config = ReadConfig(&metadata, &family);
  if (!config.ok()) return config.status();
  ModelConfig& c = out.content.config = std::move(config.value());
  const auto named = [&](const char* name) {
    return std::find_if(found.begin(), found.end(), [&](const FoundTensor& t) { return t.name == name; });
  };
  const auto embedding = named("token_embd.weight");
  if (c.vocab_size == 0 && embedding != found.end() && embedding->shape.size() == 2 &&
      embedding->shape[0] <= kMaxVocab) {
    c.vocab_size = static_cast<int32_t>(embedding->shape[0]);
  }
  c.tied_head = named("output.weight") == found.end();
  if (family->settle_gguf != nullptr)
    family->settle_gguf([&](const char* name) { return named(name) != found.end(); }, &c);
  KVC_RETURN_IF_ERROR(ReadRopeTensors(found, options.context, &out));
  KVC_RETURN_IF_ERROR(ExtendRope(options, path, &c, &out.extended));
  SettleLayers(&c);
  // Others may have biases or not; without these it is another model.
  if (family->biases == Biases::kAllAndExperts) {
    out.biases.emplace(std::begin(kAttentionBiasRoles), std::end(kAttentionBiasRoles));
    out.biases->insert(out.biases->end(), std::begin(kExpertBiasRoles), std::end(kExpertBiasRoles));
  }
  if (options.context > 0) c.max_tokens = std::min(c.max_tokens, options.context);
  KVC_RETURN_IF_ERROR(BindTensors({GgufTensorNames(family->gguf_names)}, found, path, &out));
  auto tokenizer = ReadGgufTokenizer(&metadata);
  if (!tokenizer.ok()) return tokenizer.status();
  out.content.tokenizer = std::move(tokenizer.value());
  std::string chat;
  KVC_RETURN_IF_ERROR(metadata.String("tokenizer.chat_template", &chat));
  KeepChatTemplate(ChatTemplateOf(std::move(chat), out.content.tokenizer), &out);
  return out;
}

}  // namespace kvc
