// Low-rank adapters (LoRA, arXiv 2106.09685): W + scale * B A, added to the matrices of a checkpoint while
// they are converted.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/convert/checkpoint.h"
#include "models/convert/convert.h"

namespace kvc {

// What an adapter adds to one matrix of the source.
struct LoraPair {
  std::string target;  // the matrix
  FoundTensor a, b;    // [rank, columns], [rows, rank]
  float scale = 0;
};

// A folder as PEFT writes it (adapter_config.json, adapter_model.safetensors) or a GGUF file, told apart by
// content. Its files are opened and remembered in `checkpoint`. kNotFound, kIo: missing or unreadable;
// kBadModel: damaged, parts missing; kUnsupported names a form of adapter that is not one sum over whole
// matrices.
Result<std::vector<LoraPair>> ReadLora(const LoraChoice& choice, Checkpoint* checkpoint);

// Adapters over the matrices of one checkpoint, one matrix of theirs in memory at a time.
class LoraMerge {
 public:
  // Finds the matrix of every pair. kInvalid: an adapter of another model, with the first that does not fit.
  Status Bind(std::vector<LoraPair> pairs, const Checkpoint& checkpoint, const std::string& where);
  bool Changes(const SourceTensor& tensor) const;
  // Adds to rows [first, first + n) of a run, as f32 in values.
  Status Add(const SourceTensor& tensor, const SourceTensor::Run& run, int64_t first, int64_t n,
             float* values);
  int64_t bytes() const;  // held now

 private:
  struct Loaded {
    const LoraPair* pair = nullptr;
    std::vector<float> a, b;
  };
  struct Target {
    int64_t begin = 0, end = 0, row_bytes = 0;  // as a run counts
    std::vector<LoraPair> pairs;
  };
  // Of what a tensor is read from: a file, or packed weights.
  using Origin = std::pair<const void*, int64_t>;  // and where it begins
  const Target* Find(const SourceTensor& tensor, const SourceTensor::Run& run) const;
  Status Load(const Target& target);

  std::map<Origin, Target> targets_;
  const Target* current_ = nullptr;
  std::vector<Loaded> loaded_;  // of *current_
};

}  // namespace kvc
