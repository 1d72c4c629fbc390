#include "models/convert/rope_extension.h"

#include <algorithm>
#include <cmath>

#include "lib/base/decimal.h"
#include "lib/base/limits.h"
#include "lib/model/model_config.h"

namespace kvc {
namespace {

struct Form {
  RopeExtension::Kind kind;
  const char *name, *does;
  bool from_one;  // a factor of 1 is not nothing
};

constexpr Form kForms[] = {
    {RopeExtension::kYarn, "yarn",
     "slow frequencies are divided by the factor and attention is sharpened in texts of every length: the "
     "logits of short prompts change too, as a rule little",
     false},
    {RopeExtension::kLinear, "linear",
     "all frequencies are divided by the factor in texts of every length: a model that was not trained so "
     "reads short prompts worse, too",
     false},
    {RopeExtension::kDynamic, "dynamic",
     "frequencies are those that transformers has for a text of just that length: shorter ones, for which it "
     "has others, give other logits than there",
     true}};

const Form& FormOf(RopeExtension::Kind kind) {
  return *std::find_if(std::begin(kForms), std::end(kForms), [&](const Form& f) { return f.kind == kind; });
}

// Tokens it was trained for before its own scaling, if any; 0: that cannot be known.
int32_t TrainedTokens(const ModelConfig& c, const RopeExtension& extension) {
  switch (c.rope.scaling) {
    case RopeScaling::kNone:
      return c.max_tokens;
    case RopeScaling::kLlama3:
    case RopeScaling::kYarn:
      return c.rope.original_max_tokens;
    case RopeScaling::kLinear:  // config.json has its length with or without the factor; more is not promised
      return extension.kind == RopeExtension::kLinear
                 ? static_cast<int32_t>(std::min<double>(c.max_tokens / c.rope.factor, kMaxContext))
                 : 0;
    case RopeScaling::kDivisors:
      return 0;
  }
  return 0;
}

std::string ScalingText(const RopeConfig& rope) {
  switch (rope.scaling) {
    case RopeScaling::kNone:
      return "";
    case RopeScaling::kLinear:
      return Format("linear:%g", rope.factor);
    case RopeScaling::kLlama3:
      return Format("llama3:%g", rope.factor);
    case RopeScaling::kYarn:
      return Format("yarn:%g", rope.factor);
    case RopeScaling::kDivisors:
      return "divisors of single frequencies (LongRoPE)";
  }
  return "";
}

}  // namespace

Result<RopeExtension> ParseRopeExtension(const std::string& text) {
  const size_t colon = text.find(':');
  for (const Form& form : kForms) {
    double factor = 0;
    if (text.substr(0, colon) != form.name || colon == std::string::npos) continue;
    if (!ReadDecimal(std::string_view(text).substr(colon + 1), &factor)) continue;
    if ((factor > 1 || (form.from_one && factor == 1)) && factor <= kMaxRopeFactor)
      return RopeExtension{form.kind, factor};
  }
  std::string names;
  for (const Form& form : kForms) names += std::string(names.empty() ? "" : ", ") + form.name + ":F";
  return Error(Code::kInvalid,
               "\"%.40s\" extends no rotation; allowed: %s with F over 1 (dynamic: from 1) to %g",
               text.c_str(), names.c_str(), kMaxRopeFactor);
}

std::string RopeExtensionText(const RopeExtension& extension) {
  if (extension.kind == RopeExtension::kNone) return "";
  return Format("%s:%g", FormOf(extension.kind).name, extension.factor);
}

Status ExtendRope(const RopeOptions& options, const std::string& where, ModelConfig* c, ExtendedRope* out) {
  const RopeExtension& by = options.extension;
  if (by.kind == RopeExtension::kNone) return {};
  const std::string text = RopeExtensionText(by), own = ScalingText(c->rope);
  const int32_t trained = TrainedTokens(*c, by), rotated = c->rope.RotatedOf(c->head_dim);
  if (trained <= 0) {
    return Error(
        Code::kUnsupported,
        "%s: %s cannot take the place of the model's own %s, which does not say how long the texts were "
        "that it was trained for without",
        where.c_str(), text.c_str(), own.c_str());
  }
  const bool chosen = by.kind == RopeExtension::kDynamic && options.context > 0;
  const double reached = chosen ? options.context : std::floor(trained * by.factor);
  if (!(reached > trained && reached >= c->max_tokens && reached <= kMaxContext)) {
    return Error(Code::kInvalid, "%s: %s reaches %.0f tokens of %d trained for; allowed: %d to %d",
                 where.c_str(), text.c_str(), reached, trained, std::max(trained + 1, c->max_tokens),
                 kMaxContext);
  }
  if (by.kind == RopeExtension::kDynamic && rotated <= 2) {
    return Error(Code::kUnsupported, "%s: %s is not supported where %d dimensions rotate", where.c_str(),
                 text.c_str(), rotated);
  }
  *out = {by, trained, static_cast<int32_t>(reached), own};
  if (options.context > 0) out->reached = std::min(out->reached, options.context);
  RopeConfig rope;
  rope.theta = c->rope.theta, rope.rotated = c->rope.rotated;
  if (by.kind == RopeExtension::kDynamic) {
    const double stretch = by.factor * reached / trained - (by.factor - 1), n = rotated;
    rope.theta *= std::pow(stretch, n / (n - 2));
  } else {
    rope.factor = by.factor;
    rope.scaling = by.kind == RopeExtension::kYarn ? RopeScaling::kYarn : RopeScaling::kLinear;
    if (by.kind == RopeExtension::kYarn) rope.original_max_tokens = trained;
  }
  c->rope = rope;
  c->max_tokens = out->reached;
  return {};
}

std::vector<std::string> RopeExtensionNotes(const ExtendedRope& extended) {
  if (extended.by.kind == RopeExtension::kNone) return {};
  const std::string instead =
      extended.replaced.empty() ? "" : ", in place of the model's own scaling (" + extended.replaced + ")";
  return {
      Format("%s: made for %d tokens, trained for %d%s; %s. What it is worth beyond %d tokens is not known: "
             "measure it on your texts (kvc eval)",
             RopeExtensionText(extended.by).c_str(), extended.reached, extended.trained, instead.c_str(),
             FormOf(extended.by.kind).does, extended.trained)};
}

}  // namespace kvc
