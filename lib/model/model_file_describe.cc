#include "lib/model/model_file_describe.h"

#include <cinttypes>

#include "lib/base/json_text.h"
#include "lib/model/model_check.h"

namespace kvc {
namespace {

std::string Hex(uint64_t value) { return Format("%016" PRIx64, value); }

const char* ScalingName(RopeScaling scaling) {
  switch (scaling) {
    case RopeScaling::kNone:
      return "none";
    case RopeScaling::kLinear:
      return "linear";
    case RopeScaling::kLlama3:
      return "llama3";
    case RopeScaling::kYarn:
      return "yarn";
    case RopeScaling::kDivisors:
      return "divisors";
  }
  return "unknown";
}

void DescribeRope(const RopeConfig& r, RopePairing pairing, JsonWriter* json) {
  json->BeginObject();
  json->Field("pairing", pairing == RopePairing::kHalf ? "half" : "interleaved");
  json->Field("theta", r.theta);
  json->Field("scaling", ScalingName(r.scaling));
  if (r.scaling != RopeScaling::kNone && r.scaling != RopeScaling::kDivisors) json->Field("factor", r.factor);
  if (r.scaling == RopeScaling::kLlama3) {
    json->Field("low_freq_factor", r.low_freq_factor);
    json->Field("high_freq_factor", r.high_freq_factor);
  }
  if (r.scaling == RopeScaling::kYarn) {
    json->Field("beta_fast", r.beta_fast);
    json->Field("beta_slow", r.beta_slow);
    if (!r.whole_ramp) json->Field("whole_ramp", false);
  }
  if (r.scaling == RopeScaling::kYarn || r.scaling == RopeScaling::kDivisors)
    json->Field("attention_factor", r.attention_factor);
  if (r.original_max_tokens > 0) json->Field("original_max_tokens", r.original_max_tokens);
  if (r.rotated > 0) json->Field("rotated", r.rotated);
  if (!r.divisors.empty()) {
    json->Key("divisors").BeginArray();
    for (const float divisor : r.divisors) json->Value(divisor);
    json->EndArray();
  }
  json->EndObject();
}

// What only some families have, where they have it.
void DescribeVersion2(const ModelConfig& c, JsonWriter* json) {
  if (c.fits_version_1()) return;
  json->Field("activation", c.activation == Activation::kSilu       ? "silu"
                            : c.activation == Activation::kGeluTanh ? "gelu_tanh"
                                                                    : "clamped_swiglu");
  if (c.activation == Activation::kClampedSwiglu) {
    json->Field("activation_gain", c.activation_gain);
    json->Field("activation_limit", c.activation_limit);
  }
  json->Field("norms_before", c.norms_before);
  json->Field("norms_after", c.norms_after);
  json->Field("wide_qk_norm", c.wide_qk_norm);
  if (!c.fits_version_3()) {
    json->Field("layer_norms", c.layer_norms);
    json->Field("own_qk_norms", c.own_qk_norms);
    json->Field("parallel_blocks", c.parallel_blocks);
    json->Field("attention_sinks", c.attention_sinks);
  }
  json->Field("embedding_scale", c.embedding_scale);
  json->Field("residual_scale", c.residual_scale);
  json->Field("logit_scale", c.logit_scale);
  json->Field("attention_scale", c.attention_scale);
  json->Field("attention_cap", c.attention_cap);
  json->Field("logit_cap", c.logit_cap);
  if (c.n_experts > 0) {
    json->Field("n_experts", c.n_experts);
    json->Field("n_chosen", c.n_chosen);
    json->Field("normalise_experts", c.normalise_experts);
  }
  json->Key("more_ropes").BeginArray();
  for (const RopeConfig& rope : c.more_ropes) DescribeRope(rope, c.rope_pairing, json);
  json->EndArray();
  json->Key("layers").BeginArray();
  for (const LayerConfig& layer : c.layers) {
    json->BeginObject();
    json->Field("window", layer.attention_window);
    json->Field("rope", layer.rope);
    json->EndObject();
  }
  json->EndArray();
}

void DescribeConfig(const ModelConfig& c, JsonWriter* json) {
  json->Key("config").BeginObject();
  json->Field("name", c.name);
  json->Field("architecture", c.architecture);
  json->Field("n_layers", c.n_layers);
  json->Field("n_heads", c.n_heads);
  json->Field("n_kv_heads", c.n_kv_heads);
  json->Field("head_dim", c.head_dim);
  json->Field("hidden_size", c.hidden_size);
  json->Field("ffn_size", c.ffn_size);
  json->Field("vocab_size", c.vocab_size);
  json->Field("max_tokens", c.max_tokens);
  json->Field("sliding_window", c.sliding_window);
  json->Field("norm_eps", c.norm_eps);
  json->Key("rope");
  DescribeRope(c.rope, c.rope_pairing, json);
  json->Field("qk_norm", c.qk_norm);
  json->Field("tied_head", c.tied_head);
  DescribeVersion2(c, json);
  json->EndObject();
}

constexpr const char* kSpacePrefixNames[] = {"always", "unless-space", "first"};

void DescribeTokenizer(const TokenizerView& t, JsonWriter* json) {
  json->Key("tokenizer").BeginObject();
  json->Field("kind", t.kind == TokenizerKind::kByteLevelBpe ? "byte-level-bpe" : "sentencepiece-bpe");
  json->Field("n_pieces", static_cast<int64_t>(t.n_pieces()));
  json->Field("n_merges", static_cast<int64_t>(t.merges.size() / 2));
  json->Key("patterns").BeginArray();
  for (const std::string_view& pattern : t.patterns) json->Value(std::string(pattern));
  json->EndArray();
  if (t.n_byte_patterns > 0) json->Field("byte_patterns", t.n_byte_patterns);
  json->Field("ignore_merges", t.ignore_merges);
  json->Field("nfc", t.nfc);
  json->Field("add_space_prefix", t.add_space_prefix);
  if (t.add_space_prefix) json->Field("space_prefix", kSpacePrefixNames[static_cast<size_t>(t.space_prefix)]);
  json->Field("remove_extra_spaces", t.remove_extra_spaces);
  json->Field("byte_fallback", t.byte_fallback);
  json->Field("bos", t.bos);
  json->Field("eos", t.eos);
  json->Field("unk", t.unk);
  json->Field("pad", t.pad);
  json->Key("stop_tokens").BeginArray();
  for (int32_t id : t.stop_tokens) json->Value(id);
  json->EndArray();
  json->Field("add_bos", t.add_bos);
  if (!t.begin_tokens.empty()) {
    json->Key("begin_tokens").BeginArray();
    for (int32_t id : t.begin_tokens) json->Value(id);
    json->EndArray();
  }
  json->EndObject();
}

constexpr const char* kSystemTurnsNames[] = {"anywhere", "first", "none"};

void DescribeTurnFormat(const TurnFormat& t, JsonWriter* json) {
  json->Key("turn_format").BeginObject();
  json->Field("system_prefix", t.system_prefix);
  json->Field("system_suffix", t.system_suffix);
  json->Field("user_prefix", t.user_prefix);
  json->Field("user_suffix", t.user_suffix);
  json->Field("assistant_prefix", t.assistant_prefix);
  json->Field("assistant_suffix", t.assistant_suffix);
  if (t.first_system_prefix) json->Field("first_system_prefix", *t.first_system_prefix);
  if (t.first_user_prefix) json->Field("first_user_prefix", *t.first_user_prefix);
  if (t.user_prefix_after_system) json->Field("user_prefix_after_system", *t.user_prefix_after_system);
  if (t.answer_prefix) json->Field("answer_prefix", *t.answer_prefix);
  if (!t.empty()) {
    json->Field("trim", int32_t{t.trim});
    json->Field("system_turns", kSystemTurnsNames[static_cast<size_t>(t.system_turns)]);
    json->Field("bos_in_marks", t.bos_in_marks);
  }
  json->EndObject();
}

void DescribeHeadScores(const HeadScoreTable& t, JsonWriter* json) {
  json->BeginObject();
  json->Field("name", t.name);
  json->Field("estimator", t.estimator);
  json->Field("dataset", t.dataset);
  json->Field("tool", t.tool);
  json->Field("note", t.note);
  json->Field("n_samples", t.n_samples);
  json->Field("seed", t.seed);
  json->Field("budget", t.budget);
  json->Field("alpha", t.alpha);
  json->Key("scores").BeginArray();
  for (int32_t layer = 0; layer < t.n_layers; ++layer) {
    json->BeginArray();
    for (int32_t i = 0; i < t.n_columns; ++i)
      json->Value(t.scores[static_cast<size_t>(layer) * t.n_columns + i]);
    json->EndArray();
  }
  json->EndArray();
  json->EndObject();
}

void DescribeTensor(const TensorEntry& t, JsonWriter* json) {
  json->BeginObject();
  json->Field("role", TensorRoleName(t.role));
  if (t.layer >= 0) json->Field("layer", t.layer);
  json->Field("type", WeightTypeName(t.weight.type));
  json->Key("shape").BeginArray();
  json->Value(t.weight.rows), json->Value(t.weight.cols);
  json->EndArray();
  if (t.weight.group > 0) json->Field("group", t.weight.group);
  if (t.weight.layout != WeightLayout::kRowMajor) json->Field("layout", WeightLayoutName(t.weight.layout));
  json->Field("offset", t.offset);
  json->Field("size", t.size);
  json->Field("checksum", Hex(t.checksum));
  json->EndObject();
}

}  // namespace

std::string DescribeModelFile(const ModelFile& file) {
  std::string text;
  JsonWriter json(&text);
  const ModelConfig& config = file.config();
  int64_t n_parameters = 0, n_active = 0;
  for (const TensorEntry& t : file.tensors()) {
    const int64_t n = int64_t{t.weight.rows} * t.weight.cols;
    n_parameters += n;
    n_active += IsStackRole(t.role) ? n / config.n_experts * config.n_chosen : n;
  }
  json.BeginObject();
  json.Field("version", static_cast<int64_t>(file.version()));
  json.Field("fingerprint", Hex(file.fingerprint()));
  json.Field("created_by", file.created_by());
  json.Field("source", file.source());
  json.Field("file_bytes", file.file_bytes());
  json.Field("weight_bytes", file.weight_bytes());
  json.Field("n_parameters", n_parameters);
  if (config.n_experts > 0) json.Field("n_parameters_active", n_active);
  DescribeConfig(file.config(), &json);
  DescribeTokenizer(file.tokenizer(), &json);
  DescribeTurnFormat(file.turn_format(), &json);
  json.Key("head_scores").BeginArray();
  for (const HeadScoreTable& table : file.head_scores()) DescribeHeadScores(table, &json);
  json.EndArray();
  json.Key("tensors").BeginArray();
  for (const TensorEntry& tensor : file.tensors()) DescribeTensor(tensor, &json);
  json.EndArray();
  json.EndObject();
  return text;
}

}  // namespace kvc
