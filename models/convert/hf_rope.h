// The rotations of config.json: rope_theta with rope_scaling, or rope_parameters, for all layers or by their
// type.
#pragma once
#include "models/convert/family.h"

namespace kvc {

struct HfRopeOptions {
  int32_t context = 0;  // tokens the model is wanted for; 0: all it was trained for
};

// Fills rope, more_ropes and max_tokens of `c`, whose layers have their windows. Where a form depends on how
// long texts are (LongRoPE), what was taken is added to notes.
Status ReadHfRopes(const JsonObject& object, const Family& family, const HfRopeOptions& options,
                   ModelConfig* c, std::vector<std::string>* notes);

}  // namespace kvc
