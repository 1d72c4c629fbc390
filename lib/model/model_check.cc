#include "lib/model/model_check.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <iterator>
#include <set>

#include "lib/base/limits.h"
#include "lib/model/tokenizer.h"

namespace kvc {
namespace {

constexpr TensorRole kLayerRoles[] = {TensorRole::kAttentionNorm,
                                      TensorRole::kQuery,
                                      TensorRole::kKey,
                                      TensorRole::kValue,
                                      TensorRole::kOutput,
                                      TensorRole::kQueryNorm,
                                      TensorRole::kKeyNorm,
                                      TensorRole::kFfnNorm,
                                      TensorRole::kGate,
                                      TensorRole::kUp,
                                      TensorRole::kDown,
                                      TensorRole::kQueryBias,
                                      TensorRole::kAttentionPostNorm,
                                      TensorRole::kFfnPostNorm,
                                      TensorRole::kKeyBias,
                                      TensorRole::kValueBias,
                                      TensorRole::kOutputBias,
                                      TensorRole::kAttentionNormBias,
                                      TensorRole::kFfnNormBias,
                                      TensorRole::kAttentionSinks,
                                      TensorRole::kRouterBias,
                                      TensorRole::kExpertGateBias,
                                      TensorRole::kExpertUpBias,
                                      TensorRole::kExpertDownBias,
                                      TensorRole::kRouter,
                                      TensorRole::kExpertGate,
                                      TensorRole::kExpertUp,
                                      TensorRole::kExpertDown};
constexpr TensorRole kModelRoles[] = {TensorRole::kEmbedding, TensorRole::kFinalNorm, TensorRole::kOutputHead,
                                      TensorRole::kFinalNormBias};
constexpr int kRoleNumbers = 64;  // above every role's number

bool IsLayerRole(TensorRole role) {
  return std::find(std::begin(kLayerRoles), std::end(kLayerRoles), role) != std::end(kLayerRoles);
}
bool IsModelRole(TensorRole role) {
  return std::find(std::begin(kModelRoles), std::end(kModelRoles), role) != std::end(kModelRoles);
}

Status CheckRange(const char* name, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return {};
  return Error(Code::kBadModel, "%s is %lld, outside %lld to %lld", name, static_cast<long long>(value),
               static_cast<long long>(low), static_cast<long long>(high));
}

Status CheckPositive(const char* name, double value) {
  if (std::isfinite(value) && value > 0) return {};
  return Error(Code::kBadModel, "%s is %g, it must be positive and finite", name, value);
}

Status CheckText(const char* name, const std::string& text) {
  return CheckCount(name, static_cast<int64_t>(text.size()), kMaxStringBytes, "bytes");
}

Status CheckDivisors(const RopeConfig& rope, int32_t head_dim) {
  const size_t n = static_cast<size_t>(rope.RotatedOf(head_dim) / 2);
  if (rope.divisors.size() != (rope.scaling == RopeScaling::kDivisors ? n : 0)) {
    return Error(Code::kBadModel,
                 "rope: %zu divisors, its scaling and %d rotated dimensions ask for another number",
                 rope.divisors.size(), rope.RotatedOf(head_dim));
  }
  for (const float divisor : rope.divisors)
    KVC_RETURN_IF_ERROR(CheckPositive("a divisor of rope", double{divisor}));
  return {};
}

Status CheckRope(const RopeConfig& rope, RopePairing pairing, int32_t head_dim) {
  if (pairing > RopePairing::kInterleaved) {
    return Error(Code::kUnsupported, "RoPE pairing %d is not known", static_cast<int>(pairing));
  }
  if (rope.scaling > RopeScaling::kDivisors) {
    return Error(Code::kUnsupported, "RoPE scaling %d is not known", static_cast<int>(rope.scaling));
  }
  KVC_RETURN_IF_ERROR(CheckPositive("rope theta", rope.theta));
  KVC_RETURN_IF_ERROR(CheckRange("the number of rotated dimensions", rope.rotated, 0, head_dim));
  if (rope.rotated % 2 != 0)
    return Error(Code::kBadModel, "rope: %d rotated dimensions are no pairs", rope.rotated);
  KVC_RETURN_IF_ERROR(CheckDivisors(rope, head_dim));
  if (rope.scaling == RopeScaling::kNone) return {};
  if (!std::isfinite(rope.attention_factor) || rope.attention_factor < 0) {
    return Error(Code::kBadModel, "rope attention_factor is %g, it must be finite and not negative",
                 rope.attention_factor);
  }
  if (rope.scaling == RopeScaling::kDivisors) return {};
  KVC_RETURN_IF_ERROR(CheckPositive("rope factor", rope.factor));
  if (rope.scaling == RopeScaling::kLinear) return {};
  KVC_RETURN_IF_ERROR(CheckRange("rope original_max_tokens", rope.original_max_tokens, 1, kMaxContext));
  if (rope.scaling == RopeScaling::kLlama3) {
    KVC_RETURN_IF_ERROR(CheckPositive("rope low_freq_factor", rope.low_freq_factor));
    KVC_RETURN_IF_ERROR(CheckPositive("rope high_freq_factor", rope.high_freq_factor));
    if (rope.high_freq_factor > rope.low_freq_factor) return {};
    return Error(Code::kBadModel, "rope high_freq_factor %g is not above low_freq_factor %g",
                 rope.high_freq_factor, rope.low_freq_factor);
  }
  KVC_RETURN_IF_ERROR(CheckPositive("rope beta_fast", rope.beta_fast));
  KVC_RETURN_IF_ERROR(CheckPositive("rope beta_slow", rope.beta_slow));
  if (rope.factor < 1) return Error(Code::kBadModel, "rope factor is %g, YaRN needs at least 1", rope.factor);
  if (rope.beta_fast < rope.beta_slow) {
    return Error(Code::kBadModel, "rope beta_fast %g is below beta_slow %g", rope.beta_fast, rope.beta_slow);
  }
  return {};
}

// Numbers that are each in their range can together still make angles of infinity.
Status CheckAngles(const RopeConfig& config, int32_t head_dim) {
  const Rope rope(config, head_dim);
  // Turning back divides by its square.
  if (!(rope.attention_factor() >= 1e-3 && rope.attention_factor() <= 1e3)) {
    return Error(Code::kBadModel, "rope: cos and sin are scaled by %g, outside 0.001 to 1000",
                 rope.attention_factor());
  }
  std::vector<float> values(static_cast<size_t>(head_dim));
  for (const int32_t position : {0, kMaxContext}) {
    rope.Angles(position, values.data(), values.data() + head_dim / 2);
    const int64_t bad = FirstNotFinite(WeightType::kF32, values.data(), head_dim);
    if (bad < 0) continue;
    return Error(Code::kBadModel,
                 "rope: the numbers give no finite rotation of dimension %lld at position %d",
                 static_cast<long long>(bad % (head_dim / 2)), position);
  }
  return {};
}

constexpr double kMaxScale = 1e6;

// 0, or a number far from the ends of f32.
Status CheckScale(const char* name, float value, bool may_be_0) {
  const double v = double{value};
  if ((may_be_0 && v == 0) || (v >= 1 / kMaxScale && v <= kMaxScale)) return {};
  return Error(Code::kBadModel, "%s is %g, it must be %g to %g%s", name, v, 1 / kMaxScale, kMaxScale,
               may_be_0 ? " or 0" : "");
}

Status CheckScales(const ModelConfig& c) {
  KVC_RETURN_IF_ERROR(CheckScale("embedding_scale", c.embedding_scale, false));
  KVC_RETURN_IF_ERROR(CheckScale("residual_scale", c.residual_scale, false));
  KVC_RETURN_IF_ERROR(CheckScale("logit_scale", c.logit_scale, false));
  KVC_RETURN_IF_ERROR(CheckScale("attention_scale", c.attention_scale, true));
  KVC_RETURN_IF_ERROR(CheckScale("attention_cap", c.attention_cap, true));
  KVC_RETURN_IF_ERROR(CheckScale("logit_cap", c.logit_cap, true));
  KVC_RETURN_IF_ERROR(CheckScale("activation_gain", c.activation_gain, true));
  KVC_RETURN_IF_ERROR(CheckScale("activation_limit", c.activation_limit, true));
  const bool clamped = c.activation == Activation::kClampedSwiglu;
  if (clamped != (c.activation_gain != 0) || clamped != (c.activation_limit != 0))
    return Error(Code::kBadModel,
                 "activation_gain and activation_limit are for a clamped activation, which needs them");
  if (c.activation > Activation::kClampedSwiglu)
    return Error(Code::kUnsupported, "activation %d is not known", static_cast<int>(c.activation));
  if (!c.norms_before && !c.norms_after)
    return Error(Code::kBadModel, "the layers have norms neither before nor after");
  if (c.wide_qk_norm && !c.qk_norm) return Error(Code::kBadModel, "wide_qk_norm without qk_norm");
  if (c.own_qk_norms && (!c.qk_norm || c.wide_qk_norm))
    return Error(Code::kBadModel, "own_qk_norms without qk_norm, or with wide_qk_norm");
  if (c.layer_norms && (!c.norms_before || c.norms_after || c.wide_qk_norm))
    return Error(Code::kUnsupported, "layer norms behind the blocks or over all heads are not supported");
  if (c.parallel_blocks && (!c.norms_before || c.norms_after || c.n_experts > 0))
    return Error(Code::kUnsupported, "parallel blocks with norms behind them or experts are not supported");
  return {};
}

// Without experts nothing else is said of them.
Status CheckExperts(const ModelConfig& c) {
  static_assert(int64_t{kMaxExperts} * std::max(kMaxFfn, kMaxHidden) <= INT32_MAX, "rows of a stack");
  KVC_RETURN_IF_ERROR(CheckRange("n_experts", c.n_experts, 0, kMaxExperts));
  KVC_RETURN_IF_ERROR(
      CheckRange("the number of experts of a token", c.n_chosen, c.n_experts > 0 ? 1 : 0, c.n_experts));
  if (c.normalise_experts && c.n_experts == 0)
    return Error(Code::kBadModel, "normalise_experts without experts");
  return {};
}

Status CheckLayers(const ModelConfig& c) {
  const int64_t n_ropes = static_cast<int64_t>(c.more_ropes.size()) + 1;
  KVC_RETURN_IF_ERROR(CheckCount("the model", n_ropes, kMaxRopes, "ropes"));
  for (int64_t i = 0; i < n_ropes; ++i) {
    const RopeConfig& rope = i == 0 ? c.rope : c.more_ropes[static_cast<size_t>(i) - 1];
    KVC_RETURN_IF_ERROR(CheckRope(rope, c.rope_pairing, c.head_dim));
    KVC_RETURN_IF_ERROR(CheckAngles(rope, c.head_dim));
  }
  if (c.layers.empty()) return {};
  KVC_RETURN_IF_ERROR(CheckRange("the number of layers with settings", static_cast<int64_t>(c.layers.size()),
                                 c.n_layers, c.n_layers));
  for (const LayerConfig& layer : c.layers) {
    KVC_RETURN_IF_ERROR(CheckRange("the window of a layer", layer.attention_window, 0, kMaxContext));
    KVC_RETURN_IF_ERROR(CheckRange("the rope of a layer", layer.rope, -1, n_ropes - 1));
  }
  return {};
}

Status CheckPieces(const TokenizerView& view, int64_t n_pieces) {
  const int64_t n = static_cast<int64_t>(view.n_pieces());
  KVC_RETURN_IF_ERROR(CheckRange("the number of the tokenizer's pieces", n, 1, kMaxVocab));
  if (n != n_pieces) {
    return Error(Code::kBadModel, "the tokenizer has %lld pieces, the vocabulary %lld",
                 static_cast<long long>(n), static_cast<long long>(n_pieces));
  }
  if (view.piece_kinds.size() != view.n_pieces()) {
    return Error(Code::kBadModel, "the tokenizer has %zu pieces and %zu piece kinds", view.n_pieces(),
                 view.piece_kinds.size());
  }
  size_t begin = 0;
  for (size_t i = 0; i < view.n_pieces(); ++i) {
    const size_t end = view.piece_ends[i];
    if (end < begin || end > view.piece_bytes.size()) {
      return Error(Code::kBadModel,
                   "tokenizer piece %zu ends at byte %zu, before its start %zu or beyond all %zu", i, end,
                   begin, view.piece_bytes.size());
    }
    if (end - begin > static_cast<size_t>(kMaxPieceBytes)) {
      return Error(Code::kBadModel, "tokenizer piece %zu has %zu bytes, the limit is %d", i, end - begin,
                   kMaxPieceBytes);
    }
    const PieceKind kind = view.Kind(i);
    const int strips = view.Strips(i);
    if (kind > PieceKind::kUnused || strips > (kStripLeft | kStripRight)) {
      return Error(Code::kUnsupported, "tokenizer piece %zu has kind %d, which is not known", i,
                   view.piece_kinds[i]);
    }
    if (strips != 0 && kind != PieceKind::kControl && kind != PieceKind::kUserDefined) {
      return Error(Code::kBadModel, "tokenizer piece %zu, of kind %d, cannot take white space along", i,
                   static_cast<int>(kind));
    }
    if (end == begin && kind != PieceKind::kUnused && kind != PieceKind::kControl &&
        kind != PieceKind::kUnknown) {
      return Error(Code::kBadModel, "tokenizer piece %zu is empty", i);
    }
    begin = end;
  }
  if (begin == view.piece_bytes.size()) return {};
  return Error(Code::kBadModel, "the tokenizer's pieces end at byte %zu of %zu", begin,
               view.piece_bytes.size());
}

Status CheckScores(const TokenizerView& view) {
  if (!view.scores.empty() && view.scores.size() != view.n_pieces()) {
    return Error(Code::kBadModel, "the tokenizer has %zu pieces and %zu scores", view.n_pieces(),
                 view.scores.size());
  }
  const int64_t bad =
      FirstNotFinite(WeightType::kF32, view.scores.data(), static_cast<int64_t>(view.scores.size()));
  if (bad < 0) return {};
  return Error(Code::kBadModel, "the score of tokenizer piece %lld is not finite",
               static_cast<long long>(bad));
}

Status CheckMerges(const TokenizerView& view) {
  if (view.merges.size() % 2 != 0)
    return Error(Code::kBadModel, "the last tokenizer merge has only one side");
  const auto n_merges = static_cast<int64_t>(view.merges.size() / 2);
  KVC_RETURN_IF_ERROR(CheckCount("the tokenizer", n_merges, kMaxMerges, "merges"));
  for (size_t i = 0; i < view.merges.size(); ++i) {
    if (view.merges[i] >= 0 && static_cast<size_t>(view.merges[i]) < view.n_pieces()) continue;
    return Error(Code::kBadModel, "tokenizer merge %zu names piece %d of %zu", i / 2, view.merges[i],
                 view.n_pieces());
  }
  return {};
}

Status CheckPatterns(const TokenizerView& view) {
  const auto n_patterns = static_cast<int64_t>(view.patterns.size());
  KVC_RETURN_IF_ERROR(CheckCount("the tokenizer", n_patterns, kMaxPatterns, "patterns"));
  int64_t n_bytes = 0;
  for (const std::string_view& pattern : view.patterns) n_bytes += static_cast<int64_t>(pattern.size());
  KVC_RETURN_IF_ERROR(CheckCount("the tokenizer", n_bytes, kMaxPatternBytes, "bytes of patterns"));
  return CheckRange("byte_patterns", view.n_byte_patterns, 0, n_patterns);
}

// The columns that share a scale, as the type of a matrix wants them.
Status CheckGroups(const Weight& w, const std::string& title) {
  if (!HasCodes(w.type) && w.group != 0) {
    return Error(Code::kBadModel, "%s: group %d, type %s has none", title.c_str(), w.group,
                 WeightTypeName(w.type));
  }
  if (!HasCodes(w.type)) return {};
  if (HasBlocks(w.type)) {
    const WeightTypeInfo& info = InfoOf(w.type);
    if (w.group != info.group) {
      return Error(Code::kBadModel, "%s: group %d, those of %s are %d", title.c_str(), w.group, info.name,
                   info.group);
    }
    if (w.cols % info.block == 0) return {};
    return Error(Code::kBadModel, "%s: %d columns, blocks of %s have %d", title.c_str(), w.cols, info.name,
                 info.block);
  }
  if (w.group < kMinWeightGroup || w.group > kMaxWeightGroup) {
    return Error(Code::kUnsupported, "%s: groups of %d columns, the range is %d to %d", title.c_str(),
                 w.group, kMinWeightGroup, kMaxWeightGroup);
  }
  if (w.cols % w.group != 0) {
    return Error(Code::kBadModel, "%s: group %d does not divide %d columns", title.c_str(), w.group, w.cols);
  }
  if (w.type == WeightType::kInt4 && w.group % 2 != 0) {
    return Error(Code::kBadModel, "%s: group %d is odd, int4 has two codes a byte", title.c_str(), w.group);
  }
  return {};
}

Status CheckShape(const TensorEntry& t, const ModelConfig& config) {
  const std::string title = TensorTitle(t.role, t.layer);
  Weight w = t.weight;
  w.stack = StackOf(config, t.role);
  int32_t rows = 0, cols = 0;
  if (!TensorShape(config, t.role, &rows, &cols)) {
    return Error(Code::kBadModel, "%s: the config has no such tensor", title.c_str());
  }
  if (w.rows != rows || w.cols != cols) {
    return Error(Code::kBadModel, "%s: shape [%d, %d], the config needs [%d, %d]", title.c_str(), w.rows,
                 w.cols, rows, cols);
  }
  if (static_cast<size_t>(w.type) >= kWeightTypeCount) {
    return Error(Code::kUnsupported, "%s: weight type %d is not known", title.c_str(),
                 static_cast<int>(w.type));
  }
  if (w.layout > WeightLayout::kPanels16) {
    return Error(Code::kUnsupported, "%s: layout %d is not known", title.c_str(), static_cast<int>(w.layout));
  }
  if (IsVectorRole(t.role) && w.type != WeightType::kF32) {
    return Error(Code::kBadModel, "%s: type %s, norms and biases are f32", title.c_str(),
                 WeightTypeName(w.type));
  }
  KVC_RETURN_IF_ERROR(CheckGroups(w, title));
  if (w.layout == WeightLayout::kPanels16 && (IsVectorRole(t.role) || !FitsPanels(w))) {
    return Error(Code::kBadModel, "%s: type %s in groups of %d columns does not lie in panels", title.c_str(),
                 WeightTypeName(w.type), w.group);
  }
  return {};
}

// `seen` [kRoleNumbers, max(L, 1)]: which tensors there are.
Status CheckComplete(const std::vector<bool>& seen, const ModelConfig& config) {
  const int32_t n_layers = config.n_layers;
  const auto has = [&seen, n_layers](TensorRole role, int32_t layer) {
    return static_cast<bool>(seen[static_cast<size_t>(role) * n_layers + layer]);
  };
  int32_t rows, cols;
  for (TensorRole role : kModelRoles) {
    if (TensorShape(config, role, &rows, &cols) && !has(role, 0)) {
      return Error(Code::kBadModel, "%s is missing", TensorTitle(role, -1).c_str());
    }
  }
  for (TensorRole role : kLayerRoles) {
    if (!TensorShape(config, role, &rows, &cols)) continue;
    int32_t n_present = 0, absent = -1;
    for (int32_t layer = 0; layer < n_layers; ++layer) {
      if (has(role, layer))
        ++n_present;
      else if (absent < 0)
        absent = layer;
    }
    if (n_present == n_layers || (IsBiasRole(role) && n_present == 0)) continue;
    return Error(Code::kBadModel, "%s is missing%s", TensorTitle(role, absent).c_str(),
                 IsBiasRole(role) ? ", other layers have it" : "");
  }
  return {};
}

}  // namespace

Status CheckCount(const char* name, int64_t count, int64_t limit, const char* things) {
  if (count <= limit) return {};
  return Error(Code::kBadModel, "%s has %lld %s, the limit is %lld", name, static_cast<long long>(count),
               things, static_cast<long long>(limit));
}

Status CheckConfig(const ModelConfig& c) {
  KVC_RETURN_IF_ERROR(CheckText("name", c.name));
  KVC_RETURN_IF_ERROR(CheckText("architecture", c.architecture));
  KVC_RETURN_IF_ERROR(CheckRange("n_layers", c.n_layers, 1, kMaxLayers));
  KVC_RETURN_IF_ERROR(CheckRange("n_heads", c.n_heads, 1, kMaxHeads));
  KVC_RETURN_IF_ERROR(CheckRange("n_kv_heads", c.n_kv_heads, 1, kMaxHeads));
  KVC_RETURN_IF_ERROR(CheckRange("head_dim", c.head_dim, kMinHeadDim, kMaxHeadDim));
  KVC_RETURN_IF_ERROR(CheckRange("hidden_size", c.hidden_size, 1, kMaxHidden));
  KVC_RETURN_IF_ERROR(CheckRange("ffn_size", c.ffn_size, 1, kMaxFfn));
  KVC_RETURN_IF_ERROR(CheckRange("vocab_size", c.vocab_size, 1, kMaxVocab));
  KVC_RETURN_IF_ERROR(CheckRange("max_tokens", c.max_tokens, 1, kMaxContext));
  KVC_RETURN_IF_ERROR(CheckRange("sliding_window", c.sliding_window, 0, kMaxContext));
  if (c.n_heads % c.n_kv_heads != 0) {
    return Error(Code::kBadModel, "n_heads %d is not a multiple of n_kv_heads %d", c.n_heads, c.n_kv_heads);
  }
  if (c.n_heads / c.n_kv_heads > kMaxQueryGroup) {
    return Error(Code::kUnsupported,
                 "n_heads %d with n_kv_heads %d: %d query heads share a KV head, the limit is %d", c.n_heads,
                 c.n_kv_heads, c.n_heads / c.n_kv_heads, kMaxQueryGroup);
  }
  if (c.head_dim % kMinHeadDim != 0)
    return Error(Code::kUnsupported, "head_dim %d is not a multiple of %d", c.head_dim, kMinHeadDim);
  // In f32, where it keeps a row of zeros from being divided by zero.
  if (!(c.norm_eps >= FLT_MIN && c.norm_eps < 1)) {
    return Error(Code::kBadModel, "norm_eps is %g, it must be at least %g and below 1", c.norm_eps,
                 static_cast<double>(FLT_MIN));
  }
  KVC_RETURN_IF_ERROR(CheckScales(c));
  KVC_RETURN_IF_ERROR(CheckExperts(c));
  return CheckLayers(c);
}

Status CheckTokenizer(const TokenizerView& view, int64_t n_pieces) {
  if (view.kind != TokenizerKind::kByteLevelBpe && view.kind != TokenizerKind::kSentencePieceBpe) {
    return Error(Code::kUnsupported, "tokenizer kind %d is not known", static_cast<int>(view.kind));
  }
  if (view.space_prefix > SpacePrefix::kFirst) {
    return Error(Code::kUnsupported,
                 "the tokenizer has the rule %d for the space before a text, which is not known",
                 static_cast<int>(view.space_prefix));
  }
  if (view.space_prefix != SpacePrefix::kAlways && !view.add_space_prefix)
    return Error(Code::kBadModel, "the tokenizer has a rule for the space before a text, and no such space");
  KVC_RETURN_IF_ERROR(CheckPieces(view, n_pieces));
  KVC_RETURN_IF_ERROR(CheckScores(view));
  KVC_RETURN_IF_ERROR(CheckMerges(view));
  KVC_RETURN_IF_ERROR(CheckPatterns(view));
  KVC_RETURN_IF_ERROR(CheckRange("token bos", view.bos, -1, n_pieces - 1));
  KVC_RETURN_IF_ERROR(CheckRange("token eos", view.eos, -1, n_pieces - 1));
  KVC_RETURN_IF_ERROR(CheckRange("token unk", view.unk, -1, n_pieces - 1));
  KVC_RETURN_IF_ERROR(CheckRange("token pad", view.pad, -1, n_pieces - 1));
  const auto n_stop_tokens = static_cast<int64_t>(view.stop_tokens.size());
  KVC_RETURN_IF_ERROR(CheckCount("the tokenizer", n_stop_tokens, kMaxStopTokens, "stop tokens"));
  for (int32_t id : view.stop_tokens) KVC_RETURN_IF_ERROR(CheckRange("stop token", id, 0, n_pieces - 1));
  const auto n_begin_tokens = static_cast<int64_t>(view.begin_tokens.size());
  KVC_RETURN_IF_ERROR(CheckCount("the tokenizer", n_begin_tokens, kMaxBeginTokens, "begin tokens"));
  for (int32_t id : view.begin_tokens) KVC_RETURN_IF_ERROR(CheckRange("begin token", id, 0, n_pieces - 1));
  return {};
}

Status CheckTokenizerSpec(const TokenizerSpec& spec, const ModelConfig& config) {
  return CheckTokenizer(FlatTokenizer(spec).view(), config.vocab_size);
}

Status TryTokenizer(const TokenizerSpec& spec) {
  const FlatTokenizer flat(spec);
  return Tokenizer::Create(flat.view(), nullptr).status();
}

Status CheckTurnFormat(const TurnFormat& turns) {
  for (const std::string* text : {&turns.system_prefix, &turns.system_suffix, &turns.user_prefix,
                                  &turns.user_suffix, &turns.assistant_prefix, &turns.assistant_suffix}) {
    KVC_RETURN_IF_ERROR(CheckText("a marker of the turn format", *text));
  }
  for (const std::optional<std::string>* text : {&turns.first_system_prefix, &turns.first_user_prefix,
                                                 &turns.user_prefix_after_system, &turns.answer_prefix}) {
    if (text->has_value()) KVC_RETURN_IF_ERROR(CheckText("a marker of the turn format", **text));
  }
  if ((turns.trim & ~kTrimAll) != 0)
    return Error(Code::kUnsupported, "turn format: trim is %d, this version knows bits up to %d", turns.trim,
                 kTrimAll);
  if (turns.system_turns > SystemTurns::kNone)
    return Error(Code::kUnsupported, "turn format: system_turns is %d, this version knows 0 to 2",
                 static_cast<int>(turns.system_turns));
  return {};
}

Status CheckHeadScores(const std::vector<HeadScoreTable>& tables, const ModelConfig& config) {
  const int64_t n_tables = static_cast<int64_t>(tables.size());
  KVC_RETURN_IF_ERROR(CheckCount("the model", n_tables, kMaxHeadScoreTables, "head-score tables"));
  std::set<std::string> names;
  for (const HeadScoreTable& t : tables) {
    for (const std::string* text : {&t.name, &t.estimator, &t.dataset, &t.tool, &t.note}) {
      KVC_RETURN_IF_ERROR(CheckText("a text of a head-score table", *text));
    }
    const char* name = t.name.c_str();
    if (t.name.empty()) return Error(Code::kBadModel, "a head-score table has no name");
    if (!names.insert(t.name).second)
      return Error(Code::kBadModel, "head-score table %s is there twice", name);
    if (t.n_layers != config.n_layers ||
        (t.n_columns != config.n_kv_heads && t.n_columns != config.n_heads)) {
      return Error(Code::kBadModel,
                   "head-score table %s: shape [%d, %d], the model has %d layers, %d KV heads, %d heads",
                   name, t.n_layers, t.n_columns, config.n_layers, config.n_kv_heads, config.n_heads);
    }
    const int64_t n_scores = int64_t{t.n_layers} * t.n_columns;
    if (static_cast<int64_t>(t.scores.size()) != n_scores) {
      return Error(Code::kBadModel, "head-score table %s: %zu scores, its shape needs %lld", name,
                   t.scores.size(), static_cast<long long>(n_scores));
    }
    const int64_t bad = FirstNotFinite(WeightType::kF32, t.scores.data(), n_scores);
    if (bad >= 0) {
      return Error(Code::kBadModel, "head-score table %s: the score of layer %lld, column %lld is not finite",
                   name, static_cast<long long>(bad / t.n_columns),
                   static_cast<long long>(bad % t.n_columns));
    }
    if (t.n_samples < 0 || t.budget < 0 || t.alpha < 0) {
      return Error(Code::kBadModel, "head-score table %s: n_samples, budget or alpha is negative", name);
    }
  }
  return {};
}

Status CheckTensors(const std::vector<TensorEntry>& tensors, const ModelConfig& config) {
  std::vector<bool> seen(static_cast<size_t>(kRoleNumbers) * config.n_layers);
  for (const TensorEntry& t : tensors) {
    const int number = static_cast<int>(t.role);
    const bool layered = IsLayerRole(t.role);
    if (!layered && !IsModelRole(t.role))
      return Error(Code::kUnsupported, "tensor role %d is not known", number);
    if (layered ? t.layer < 0 || t.layer >= config.n_layers : t.layer != -1) {
      return Error(Code::kBadModel, "tensor %s: layer %d of a model of %d", TensorRoleName(t.role), t.layer,
                   config.n_layers);
    }
    KVC_RETURN_IF_ERROR(CheckShape(t, config));
    const size_t slot = static_cast<size_t>(number) * config.n_layers + (layered ? t.layer : 0);
    if (seen[slot]) return Error(Code::kBadModel, "%s is there twice", TensorTitle(t.role, t.layer).c_str());
    seen[slot] = true;
  }
  return CheckComplete(seen, config);
}

std::string TensorTitle(TensorRole role, int32_t layer) {
  return layer < 0 ? Format("tensor %s", TensorRoleName(role))
                   : Format("tensor %s of layer %d", TensorRoleName(role), layer);
}

const char* WeightTypeName(WeightType type) {
  return static_cast<size_t>(type) < kWeightTypeCount ? InfoOf(type).name : "unknown";
}

const char* WeightLayoutName(WeightLayout layout) {
  return layout == WeightLayout::kRowMajor ? "rows" : "panels16";
}

namespace {

// Finite numbers have an exponent that is not all ones. Blocks keep the inner loop free of exits, so it
// vectorises.
template <typename Word>
int64_t FirstWithExponent(const void* data, int64_t n, Word exponent) {
  constexpr int64_t kBlock = 1024;
  const unsigned char* bytes = static_cast<const unsigned char*>(data);
  const auto is_bad = [bytes, exponent](int64_t i) {
    Word word;
    std::memcpy(&word, bytes + i * static_cast<int64_t>(sizeof(Word)), sizeof(Word));
    return (word & exponent) == exponent;
  };
  for (int64_t start = 0; start < n; start += kBlock) {
    const int64_t end = std::min(start + kBlock, n);
    Word found = 0;
    for (int64_t i = start; i < end; ++i) found = static_cast<Word>(found | Word{is_bad(i)});
    if (found == 0) continue;
    for (int64_t i = start; i < end; ++i) {
      if (is_bad(i)) return i;
    }
  }
  return -1;
}

}  // namespace

int64_t FirstNotFinite(WeightType type, const void* data, int64_t n_elements) {
  switch (type) {
    case WeightType::kF32:
      return FirstWithExponent(data, n_elements, uint32_t{0x7f800000});
    case WeightType::kF16:
      return FirstWithExponent(data, n_elements, uint16_t{0x7c00});
    case WeightType::kBf16:
      return FirstWithExponent(data, n_elements, uint16_t{0x7f80});
    case WeightType::kInt8:
    case WeightType::kInt4:
    case WeightType::kQ4K:
    case WeightType::kQ6K:
      return -1;
  }
  return -1;
}

}  // namespace kvc
