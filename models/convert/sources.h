// The three kinds of source, each read into a Checkpoint: content complete, tensors located, no weight read
// yet.
#pragma once
#include <string>

#include "models/convert/checkpoint.h"

namespace kvc {

constexpr char kModelFileMagic[] = "KVCM";  // how our own files begin (models/FORMAT.md)

// config.json, model.safetensors or model.safetensors.index.json with its shards, tokenizer.json or
// tokenizer.model.
Result<Checkpoint> ReadHfDirectory(const std::string& directory, const RopeOptions& options);
Result<Checkpoint> ReadGguf(const std::string& path, const RopeOptions& options);
// A legacy llama2.c checkpoint; the tokenizer is looked for beside it: tok<vocabulary>.bin,
// <name>_tokenizer.bin, tokenizer.bin.
Result<Checkpoint> ReadLlama2c(const std::string& path, const RopeOptions& options);

// The header of a llama2.c checkpoint: seven int32 and what follows from them.
struct Llama2cHeader {
  ModelConfig config;
  int64_t file_bytes = 0;  // what a checkpoint of this shape has
};
Result<Llama2cHeader> ParseLlama2cHeader(Span<const uint8_t> bytes, int64_t file_bytes,
                                         const std::string& where);

// llama.cpp stores Llama 3's frequency scaling as one divisor per frequency. Finds the settings that give
// these; false: none.
bool MatchLlama3Factors(const std::vector<float>& factors, const ModelConfig& config, RopeConfig* rope);

}  // namespace kvc
