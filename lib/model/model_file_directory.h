// From the FlatBuffers directory to plain data. Private to the model file.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/memory_meter.h"
#include "lib/base/status.h"
#include "lib/model/model_config.h"
#include "lib/model/model_file.h"
#include "lib/model/model_file_container.h"
#include "lib/model/tokenizer_spec.h"

namespace kvc {

struct DirectoryContent {
  ModelConfig config;
  TokenizerView tokenizer;  // of the buffer
  TurnFormat turn_format;
  std::vector<HeadScoreTable> head_scores;
  std::vector<TensorEntry> tensors;       // role, layer and weight without data
  std::vector<uint32_t> tensor_sections;  // index into sections, per tensor
  std::vector<SectionEntry> sections;
  std::string created_by, source;
};

// Verifies the buffer (8-byte aligned, and there as long as the content) and copies out all but the
// tokenizer: texts and scores of at most its own size, as tables that share them are refused, and an entry of
// some bytes for each tensor and section. The copies are added to the charge before they are made. Counts and
// text lengths are checked; whether the values make a model is not.
Status ReadDirectory(const uint8_t* data, int64_t n_bytes, MemoryMeter* meter, MeterCharge* charge,
                     DirectoryContent* content);

}  // namespace kvc
