// From the FlatBuffers directory to plain data. Private to the model file.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/status.h"
#include "lib/model/model_config.h"
#include "lib/model/model_file.h"
#include "lib/model/model_file_container.h"
#include "lib/model/tokenizer.h"

namespace kvc {

struct DirectoryContent {
  ModelConfig config;
  TokenizerSpec tokenizer;
  TurnFormat turn_format;
  std::vector<HeadScoreTable> head_scores;
  std::vector<TensorEntry> tensors;       // role, layer and weight without data
  std::vector<uint32_t> tensor_sections;  // index into sections, per tensor
  std::vector<SectionEntry> sections;
  std::string created_by, source;
};

// Verifies the buffer (8-byte aligned) and copies it out, never more than a small multiple of its size.
// Counts and text lengths are checked; whether the values make a model is not.
Status ReadDirectory(const uint8_t* data, int64_t n_bytes, DirectoryContent* content);

}  // namespace kvc
