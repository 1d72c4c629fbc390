// The pre-tokenizer "Split" of a tokenizer.json as a pattern that isolates its matches, which is the one
// thing that the engine does with patterns.
#pragma once
#include <string>

#include "lib/base/status.h"

namespace kvc {

struct HfSplit {
  std::string regex, plain;  // one of them; plain is text that stands for itself
  std::string behavior;      // "Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"
  bool invert = false;       // what lies between matches counts as the match
};

// kUnsupported names what cannot be said so: parts that are taken out of the text, neighbours of more than
// one character, and what Oniguruma reads in another way than PCRE2. kBadModel: an empty pattern.
Result<std::string> IsolatingPattern(const HfSplit& split);

}  // namespace kvc
