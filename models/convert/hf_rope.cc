#include "models/convert/hf_rope.h"

#include <algorithm>
#include <cmath>

#include "lib/base/limits.h"

namespace kvc {
namespace {

double YarnMagnitude(double factor, double scale) {
  return factor <= 1 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

Status ReadYarn(const JsonObject& rope, RopeConfig* r) {
  KVC_RETURN_IF_ERROR(rope.Number("beta_fast", 1e-3, 1e6, &r->beta_fast));
  KVC_RETURN_IF_ERROR(rope.Number("beta_slow", 1e-3, 1e6, &r->beta_slow));
  KVC_RETURN_IF_ERROR(rope.Number("attention_factor", 1e-3, 1e3, &r->attention_factor));
  KVC_RETURN_IF_ERROR(rope.Bool("truncate", &r->whole_ramp));
  double scale = 0, scale_all = 0;
  KVC_RETURN_IF_ERROR(rope.Number("mscale", 0, 1e3, &scale));
  KVC_RETURN_IF_ERROR(rope.Number("mscale_all_dim", 0, 1e3, &scale_all));
  if (r->attention_factor == 0 && scale > 0 && scale_all > 0) {
    r->attention_factor = YarnMagnitude(r->factor, scale) / YarnMagnitude(r->factor, scale_all);
  }
  return {};
}

Status ReadDivisors(const JsonObject& rope, const char* key, size_t n, std::vector<float>* out) {
  const Json* list = rope.Find(key);
  if (list == nullptr || !list->is_array() || list->size() != n) {
    return Error(Code::kBadModel, "%s: %s must be a list of %zu numbers", rope.where().c_str(), key, n);
  }
  for (const Json& one : *list) {
    if (!one.is_number() || !(one.get<double>() >= 1e-6 && one.get<double>() <= 1e6)) {
      return Error(Code::kBadModel, "%s: %s holds %s, not a positive number", rope.where().c_str(), key,
                   one.dump(-1, ' ', true).substr(0, 40).c_str());
    }
    out->push_back(one.get<float>());
  }
  return {};
}

// What reading ropes takes and makes.
struct Reading {
  const JsonObject& object;  // config.json
  const Family& family;
  const RopeOptions& options;
  ModelConfig* c;
  HfRopeFindings* findings;
};

// Two sets of frequencies: one for texts up to the trained length, one for longer ones. transformers changes
// over when a text grows past it; a cache holds keys of one set.
Status ReadLongRope(const JsonObject& rope, const Reading& in, RopeConfig* r) {
  ModelConfig* c = in.c;
  int32_t trained = 0;
  KVC_RETURN_IF_ERROR(in.object.Int("original_max_position_embeddings", 2, kMaxContext, &trained));
  KVC_RETURN_IF_ERROR(rope.Int("original_max_position_embeddings", 2, kMaxContext, &trained));
  if (trained == 0)
    return Error(Code::kBadModel, "%s: original_max_position_embeddings is missing", rope.where().c_str());
  double factor = static_cast<double>(c->max_tokens) / trained;
  KVC_RETURN_IF_ERROR(rope.Number("factor", 1e-3, 1e6, &factor));
  r->attention_factor =
      factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(static_cast<double>(trained)));
  KVC_RETURN_IF_ERROR(rope.Number("attention_factor", 1e-3, 1e3, &r->attention_factor));
  r->scaling = RopeScaling::kDivisors;
  const bool is_long = c->max_tokens > trained && (in.options.context == 0 || in.options.context > trained);
  const size_t n = static_cast<size_t>(r->RotatedOf(c->head_dim) / 2);
  if (!is_long) c->max_tokens = std::min(c->max_tokens, trained);
  if (c->max_tokens > trained || in.options.context > 0) {
    in.findings->notes.push_back(
        Format("LongRoPE has one set of frequencies up to %d tokens and another beyond: taken is the "
               "one for %s (--context chooses)",
               trained, is_long ? "longer texts, for texts of any length" : "shorter texts only"));
  }
  return ReadDivisors(rope, is_long ? "long_factor" : "short_factor", n, &r->divisors);
}

Status ReadScaled(const std::string& type, const JsonObject& rope, const Reading& in, RopeConfig* r) {
  ModelConfig* c = in.c;
  if (type == "linear")
    r->scaling = RopeScaling::kLinear;
  else if (type == "llama3")
    r->scaling = RopeScaling::kLlama3;
  else if (type == "yarn")
    r->scaling = RopeScaling::kYarn;
  else
    return Error(Code::kUnsupported,
                 "%s: %.40s is not supported; supported: default, linear, llama3, yarn, longrope",
                 rope.where().c_str(), type.c_str());
  if (!rope.Has("factor")) return Error(Code::kBadModel, "%s: factor is missing", rope.where().c_str());
  KVC_RETURN_IF_ERROR(rope.Number("factor", 1e-3, 1e6, &r->factor));
  if (r->scaling == RopeScaling::kLinear) {
    // max_position_embeddings may still be the unscaled length; then this says what it became.
    int32_t length = 0;
    KVC_RETURN_IF_ERROR(in.object.Int("max_sequence_length", 1, kMaxContext, &length));
    c->max_tokens = std::max(c->max_tokens, length);
    return {};
  }
  r->original_max_tokens = c->max_tokens;
  KVC_RETURN_IF_ERROR(rope.Int("original_max_position_embeddings", 1, kMaxContext, &r->original_max_tokens));
  if (r->scaling == RopeScaling::kYarn) {
    const double stretched = std::min<double>(kMaxContext, std::floor(r->original_max_tokens * r->factor));
    c->max_tokens = std::max(c->max_tokens, static_cast<int32_t>(stretched));
    return ReadYarn(rope, r);
  }
  KVC_RETURN_IF_ERROR(rope.Number("low_freq_factor", 1e-3, 1e6, &r->low_freq_factor));
  KVC_RETURN_IF_ERROR(rope.Number("high_freq_factor", 1e-3, 1e6, &r->high_freq_factor));
  if (r->high_freq_factor <= r->low_freq_factor)
    return Error(Code::kBadModel, "%s: high_freq_factor must exceed low_freq_factor", rope.where().c_str());
  return {};
}

// How many dimensions of a head turn.
Status ReadShare(const JsonObject& rope, const Reading& in, RopeConfig* r) {
  double share = in.family.rotated_share > 0 ? in.family.rotated_share : 1;
  const double usual = share;
  KVC_RETURN_IF_ERROR(in.object.Number("partial_rotary_factor", 0, 1, &share));
  KVC_RETURN_IF_ERROR(rope.Number("partial_rotary_factor", 0, 1, &share));
  if (share != usual && in.family.rotated_share == 1)
    return Error(Code::kUnsupported, "%s: partial_rotary_factor %g is not supported", rope.where().c_str(),
                 share);
  const int32_t n = static_cast<int32_t>(in.c->head_dim * share);
  if (n < 2 || n % 2 != 0) {
    return Error(Code::kUnsupported, "%s: rotating %d of %d dimensions is not supported",
                 rope.where().c_str(), n, in.c->head_dim);
  }
  r->rotated = n == in.c->head_dim ? 0 : n;
  return {};
}

Status ReadRope(const JsonObject& rope, const Reading& in, RopeConfig* r) {
  if (!rope.json().is_object()) return Error(Code::kBadModel, "%s: must be an object", rope.where().c_str());
  KVC_RETURN_IF_ERROR(rope.Number("rope_theta", 1, 1e12, &r->theta));
  std::string type = "default";
  KVC_RETURN_IF_ERROR(rope.String(rope.Has("rope_type") ? "rope_type" : "type", &type));
  KVC_RETURN_IF_ERROR(ReadShare(rope, in, r));
  for (const auto& [key, value] : rope.json().items()) {
    if (value.is_object())
      return Error(Code::kUnsupported, "%s: settings for %.40s alone are not supported", rope.where().c_str(),
                   key.c_str());
  }
  if (type == "default") return {};
  if (type == "dynamic") {  // beyond the trained length each token would turn all others anew
    double factor = 1;
    if (!rope.Has("factor")) return Error(Code::kBadModel, "%s: factor is missing", rope.where().c_str());
    KVC_RETURN_IF_ERROR(rope.Number("factor", 1, 1e6, &factor));
    in.findings->dynamic = Format("dynamic:%g", factor);
    return {};
  }
  if (type == "longrope" || type == "su") return ReadLongRope(rope, in, r);
  return ReadScaled(type, rope, in, r);
}

// The rope of layers that see everything as it is wanted.
Status Extend(const Reading& in) {
  KVC_RETURN_IF_ERROR(ExtendRope(in.options, in.object.where(), in.c, &in.findings->extended));
  const std::string& dynamic = in.findings->dynamic;
  if (dynamic.empty()) return {};
  if (in.options.extension.kind != RopeExtension::kNone) {
    in.findings->extended.replaced = dynamic;
    return {};
  }
  in.findings->notes.push_back(Format(
      "dynamic NTK scaling acts beyond %d tokens, anew for every length; the model is taken for as many "
      "(--rope %s --context N takes it for N)",
      in.c->max_tokens, dynamic.c_str()));
  return {};
}

// Rope of the layers that see everything, and of those that slide.
Status ReadByType(const Reading& in) {
  ModelConfig* c = in.c;
  RopeConfig local;
  local.theta = in.family.local_theta > 0 ? in.family.local_theta : c->rope.theta;
  KVC_RETURN_IF_ERROR(in.object.Number("rope_local_base_freq", 1, 1e12, &local.theta));
  const Json* parameters = in.object.Find("rope_parameters");
  const JsonObject by_type(parameters == nullptr ? in.object.json() : *parameters,
                           in.object.where() + ": rope_parameters");
  const bool new_style =
      parameters != nullptr && (by_type.Has("full_attention") || by_type.Has("sliding_attention"));
  const Json* full = new_style ? by_type.Find("full_attention")
                               : in.object.Find(parameters != nullptr ? "rope_parameters" : "rope_scaling");
  const Json* sliding = new_style ? by_type.Find("sliding_attention") : nullptr;
  if (full != nullptr) KVC_RETURN_IF_ERROR(ReadRope(JsonObject(*full, by_type.where()), in, &c->rope));
  KVC_RETURN_IF_ERROR(Extend(in));
  if (in.family.local_theta == 0 && !new_style) local.theta = c->rope.theta;
  if (sliding != nullptr) KVC_RETURN_IF_ERROR(ReadRope(JsonObject(*sliding, by_type.where()), in, &local));
  if (local.theta == c->rope.theta && local.scaling == c->rope.scaling && local.scaling == RopeScaling::kNone)
    return {};
  c->more_ropes = {local};
  for (LayerConfig& layer : c->layers) layer.rope = layer.attention_window > 0 ? 1 : 0;
  return {};
}

}  // namespace

Status ReadHfRopes(const JsonObject& object, const Family& family, const RopeOptions& options, ModelConfig* c,
                   HfRopeFindings* findings) {
  const Reading in{object, family, options, c, findings};
  c->rope.theta = family.default_theta;
  KVC_RETURN_IF_ERROR(object.Number("rope_theta", 1, 1e12, &c->rope.theta));
  if (family.ropes_by_type) return ReadByType(in);
  const bool new_style = object.Has("rope_parameters");
  const char* key = new_style ? "rope_parameters" : "rope_scaling";
  const Json* json = object.Find(key);
  static const Json kNothing = Json::object();
  const JsonObject rope(json == nullptr ? kNothing : *json, object.where() + ": " + key);
  KVC_RETURN_IF_ERROR(ReadRope(rope, in, &c->rope));
  return Extend(in);
}

}  // namespace kvc
