// Why a model cannot be converted, with what comes nearest to it: one list for the names of config.json and
// of GGUF.
#pragma once
#include <string>

namespace kvc {

// What follows "... is not supported": ": why; try what", or nothing where nothing is known. Case and signs
// in the name do not count.
std::string WhyNotArchitecture(const std::string& name);
// Of tokenizer.ggml.model, and of the type of model in tokenizer.json.
std::string WhyNotTokenizer(const std::string& name);

}  // namespace kvc
