// Builds the FlatBuffers directory of a model file (models/kvc_model.fbs).
#pragma once
#include <cstdint>
#include <vector>

#include "lib/model/model_file_container.h"
#include "models/convert/model_writer.h"

namespace kvc {

// tensors[i] gets section i; sections may go on with other kinds. Writes what it is given, checked or not.
// The size depends on the content and the number of tensors and sections only, not on offsets, sizes or
// checksums.
std::vector<uint8_t> BuildDirectory(const ModelFileContent& content, const std::vector<TensorPlan>& tensors,
                                    const std::vector<SectionEntry>& sections);

}  // namespace kvc
