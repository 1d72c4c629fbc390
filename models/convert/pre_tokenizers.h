// The pre-tokenizers that GGUF knows by name (tokenizer.ggml.pre).
#pragma once
#include <string>
#include <vector>

namespace kvc {

struct PreTokenizerRules {
  const char* name;
  std::vector<const char*> patterns;  // as TokenizerSpec::patterns
  bool ignore_merges, nfc, add_bos;
  int32_t n_byte_patterns;  // of TokenizerSpec
  bool glm;                 // a text begins with [gMASK] and <sop>, for which GGUF has one place only
};

const std::vector<PreTokenizerRules>& KnownPreTokenizers();          // in the order of pre_tokenizers.list
const PreTokenizerRules* FindPreTokenizer(const std::string& name);  // null: not known
std::string PreTokenizerNames();                                     // "gpt-2, phi-2, ..."

}  // namespace kvc
