// The tensors of a model by what they do in the network, as the device wants them.
#pragma once
#include <vector>

#include "lib/model/model_file.h"
#include "lib/ops/device.h"

namespace kvc {

struct Weights {
  NetworkShape shape;
  Matrix embedding, output_head;
  DevicePtr<const float> final_norm;
  std::vector<LayerMatrices> layers;

  // Prepares every tensor of the file, which must outlive the result. kBadModel names a tensor that is missing.
  static Result<Weights> Prepare(const ModelFile& file, Device* device);
};

}  // namespace kvc
