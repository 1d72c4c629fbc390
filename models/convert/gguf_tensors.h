// The tensors of a GGUF file as a source has them.
#pragma once
#include <vector>

#include "models/convert/checkpoint.h"
#include "models/convert/gguf.h"

namespace kvc {

// Reads the header, more of the file each time until it is whole. As ParseGguf; kUnsupported: one of more
// than half a gigabyte.
Result<GgufHeader> ReadGgufHeader(const SourceFile& file);
// Where each tensor lies, checked against the file and against one another.
// Appended to *found, which may hold those of other files.
Status LocateGgufTensors(const GgufHeader& header, const SourceFile& file, std::vector<FoundTensor>* found);

}  // namespace kvc
