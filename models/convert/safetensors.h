// The header of a safetensors file: u64 length, JSON {name: {dtype, shape, data_offsets}}, then the data.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/span.h"
#include "lib/base/status.h"
#include "models/convert/checkpoint.h"

namespace kvc {

constexpr int64_t kMaxSafetensorsHeader = 100000000;  // the format's own limit

struct SafetensorsEntry {
  std::string name, dtype;
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;  // from the start of the data
};

// json: the header text. data_bytes: what the file holds after it. The entries come sorted by offset and
// together cover the data without gap or overlap; anything else is kBadModel. kUnsupported: a dtype that the
// format does not define.
Result<std::vector<SafetensorsEntry>> ParseSafetensorsHeader(Span<const uint8_t> json, int64_t data_bytes,
                                                             const std::string& where);

// Reads the header of `file` and appends its tensors. kUnsupported: a dtype other than F32, F16, BF16
// and, for packed weights, I32 and U8.
Status ReadSafetensors(const SourceFile& file, std::vector<FoundTensor>* found);

}  // namespace kvc
