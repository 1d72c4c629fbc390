#include "models/convert/pre_tokenizers.h"

#include "lib/model/tokenizer_patterns.h"

namespace kvc {
namespace {

enum Flag : unsigned { kIgnoreMerges = 1, kNfc = 2, kAddBos = 4, kGlm = 8, kTwoOfBytes = 16 };

template <typename... Patterns>
PreTokenizerRules Rules(const char* name, unsigned flags, Patterns... patterns) {
  return {name,
          {patterns...},
          (flags & kIgnoreMerges) != 0,
          (flags & kNfc) != 0,
          (flags & kAddBos) != 0,
          (flags & kTwoOfBytes) != 0 ? 2 : 0,
          (flags & kGlm) != 0};
}

}  // namespace

const std::vector<PreTokenizerRules>& KnownPreTokenizers() {
  static const std::vector<PreTokenizerRules> known = {
#define KVC_PRE_TOKENIZER(...) Rules(__VA_ARGS__),
#include "models/convert/pre_tokenizers.list"
#undef KVC_PRE_TOKENIZER
  };
  return known;
}

const PreTokenizerRules* FindPreTokenizer(const std::string& name) {
  for (const PreTokenizerRules& rules : KnownPreTokenizers()) {
    if (name == rules.name) return &rules;
  }
  return nullptr;
}

std::string PreTokenizerNames() {
  std::string names;
  for (const PreTokenizerRules& rules : KnownPreTokenizers()) {
    names += names.empty() ? "" : ", ";
    names += rules.name;
  }
  return names;
}

}  // namespace kvc
