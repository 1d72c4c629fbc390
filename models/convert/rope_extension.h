// Context extension by option: other frequencies than the model's own, for texts longer than it was trained
// for. What they are is what transformers makes of the same rope_scaling in config.json.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/status.h"

namespace kvc {

struct ModelConfig;

struct RopeExtension {
  // kYarn: slow frequencies divided by the factor, attention sharpened. kLinear: all divided. kDynamic: NTK
  // with a larger theta, which transformers chooses anew for every length and a file once.
  enum Kind : uint8_t { kNone, kYarn, kLinear, kDynamic } kind = kNone;
  double factor = 1;  // over 1, kDynamic from 1, to kMaxRopeFactor
};
constexpr double kMaxRopeFactor = 256;

// "yarn:4", "linear:4", "dynamic:4". kInvalid: something else, with what is allowed.
Result<RopeExtension> ParseRopeExtension(const std::string& text);
std::string RopeExtensionText(const RopeExtension& extension);

// How a model's rotations are wanted.
struct RopeOptions {
  int32_t context = 0;  // tokens the model is wanted for; 0: all it was trained for, or the extension reaches
  RopeExtension extension;
};

// What became of it. by.kind kNone: nothing was asked for.
struct ExtendedRope {
  RopeExtension by;
  int32_t trained = 0, reached = 0;  // tokens
  std::string replaced;              // the model's own scaling, "llama3:8"; empty: it had none
};

// Puts the extension in place of c->rope's scaling. c->max_tokens becomes the factor times the length trained
// for without scaling, and at most the context; kDynamic: the context if there is one. Where none is asked
// for nothing happens. kInvalid: it does not reach as far as the model does already, or too far;
// kUnsupported: the model's own scaling does not say what it was trained for without.
Status ExtendRope(const RopeOptions& options, const std::string& where, ModelConfig* c, ExtendedRope* out);

// What it does to texts, long and short. Empty where nothing was asked for.
std::vector<std::string> RopeExtensionNotes(const ExtendedRope& extended);

}  // namespace kvc
