// A template's text cut into tokens, by Jinja's rules for white space around tags (trim_blocks,
// lstrip_blocks, no newline kept at the end: the settings of transformers).
#pragma once
#include <string>
#include <vector>

#include "lib/base/status.h"

namespace kvc::jinja {

struct Token {
  enum Type {
    kText,         // what stands outside of tags
    kOutputBegin,  // {{
    kOutputEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,
    kInt,
    kFloat,
    kOperator,
    kEnd,
  };
  Type type = kEnd;
  std::string text;  // kString: without quotes and escapes
  int64_t whole = 0;
  double real = 0;
  int line = 0;
  bool Is(Type t, const char* s) const { return type == t && text == s; }
};

// kUnsupported, with the line in front: what is no template. The text is valid UTF-8.
Result<std::vector<Token>> Tokenize(const std::string& text);

}  // namespace kvc::jinja
