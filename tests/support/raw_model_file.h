// Model files that break the rules on purpose: every hash is right, the content is what a test asks for.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "lib/model/model_file_container.h"
#include "tests/support/tiny_model.h"

namespace kvc::test {

struct RawModelFile {
  ModelFileContent content;
  std::vector<TensorPlan> tensors;
  std::vector<std::vector<uint8_t>>
      section_bytes;  // [i] is the section of tensors[i]; further ones are of kind 77
  uint32_t version = 1;
  // Called with the finished layout before it is written to the directory: changes claims, not bytes.
  std::function<void(std::vector<SectionEntry>*)> edit_sections;

  static RawModelFile Tiny(const TinyModelOptions& options);
  AlignedBytes Build() const;
};

// Makes header, directory hash and the checksums of all sections that lie inside the file right again after
// bytes were changed, as an attacker would. Leaves alone what it cannot find its way through.
void RepairHashes(AlignedBytes* file);

// Points every head-score table at the scores of the first one, hashes right. What they had stays in the
// file.
void ShareHeadScores(AlignedBytes* file);

// A file around a directory: right hashes, and zeros for all sections up to the last one's end (at most a
// megabyte).
AlignedBytes WrapDirectory(const uint8_t* directory, size_t n_bytes);

}  // namespace kvc::test
