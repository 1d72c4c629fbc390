// Matrices of a model file as f32, for tools that look at weights themselves.
#pragma once
#include <string>
#include <vector>

#include "lib/base/status.h"

namespace kvc {

// The output projections of all layers, in order: [layer][hidden, H * D], row major. Errors as of
// ModelFile::Open; kBadModel when a layer has none. 4 bytes a weight.
Result<std::vector<std::vector<float>>> ReadOutputProjections(const std::string& path);

}  // namespace kvc
