// The rotations of config.json: rope_theta with rope_scaling, or rope_parameters, for all layers or by their
// type.
#pragma once
#include "models/convert/family.h"
#include "models/convert/rope_extension.h"

namespace kvc {

// What reading them found beside the configuration.
struct HfRopeFindings {
  ExtendedRope extended;
  std::string dynamic;             // scaling that is done anew for every length, "dynamic:2"; empty: none
  std::vector<std::string> notes;  // what was taken where a form depends on how long texts are (LongRoPE)
};

// Fills rope, more_ropes and max_tokens of `c`, whose layers have their windows. An extension takes the place
// of the scaling of layers that see everything, as rope_scaling in config.json does.
Status ReadHfRopes(const JsonObject& object, const Family& family, const RopeOptions& options, ModelConfig* c,
                   HfRopeFindings* findings);

}  // namespace kvc
