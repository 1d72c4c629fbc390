// What a model file says about itself, as JSON.
#pragma once
#include <string>

#include "lib/model/model_file.h"

namespace kvc {

std::string DescribeModelFile(const ModelFile& file);

}  // namespace kvc
