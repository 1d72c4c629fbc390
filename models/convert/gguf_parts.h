// The names of GGUF files. Of a model in several, as llama-gguf-split gives them: NAME-00001-of-00003.gguf
// has the metadata, and each its own tensors.
#pragma once
#include <cstdint>
#include <string>

namespace kvc {

// Whether a name ends in .gguf, in capitals or not.
bool NamedGguf(const std::string& path);

// How many files the name of the first says that there are; 0 where it is not the name of a first part.
int32_t GgufPartsNamed(const std::string& first);

// The path of part `part` (from 0) beside the first, whose name says how many there are.
std::string GgufPart(const std::string& first, int32_t part);

}  // namespace kvc
