#include "models/convert/tokenizer_hf_split.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "lib/base/utf8.h"
#include "lib/model/tokenizer_patterns.h"

namespace kvc {
namespace {

Status Unsupported(const std::string& what) {
  return Error(Code::kUnsupported, "%.300s is not supported", what.c_str());
}

// These leave nothing between their matches, whatever the text.
constexpr const char* kCovering[] = {kPatternGpt2,  kPatternLlama3, kPatternQwen2,     kPatternQwen35,
                                     kPatternO200k, kPatternTekken, kPatternSeedCoder, kPatternBailing};

bool Covers(const std::string& regex) {
  return std::any_of(std::begin(kCovering), std::end(kCovering),
                     [&](const char* pattern) { return regex == pattern; });
}

// Escapes and class operators that Oniguruma, for which the patterns are written, reads in another way than
// PCRE2.
Status CheckPattern(const std::string& pattern) {
  if (pattern == kPatternBloom) return {};  // the engine has it without the class in a class
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i], next = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
    if (c == '\\') {
      if (std::string("hHwWbBXRGKNOyYQEgk").find(next) != std::string::npos && next != '\0') {
        return Unsupported(std::string("\\") + next + " in a pre-tokenizer pattern");
      }
      ++i;
    } else if (in_class && ((c == '&' && next == '&') || (c == '[' && next != ':'))) {
      return Unsupported("a nested class in a pre-tokenizer pattern");
    } else if (in_class && c == '[') {
      const size_t end = pattern.find(":]", i);  // a class by name, such as [:alpha:]
      if (end == std::string::npos) return Unsupported("a nested class in a pre-tokenizer pattern");
      i = end + 1;
    } else if (!in_class && c == '[') {
      in_class = true;
      if (next == '^') ++i;
    } else if (in_class && c == ']') {
      in_class = false;
    }
  }
  return {};
}

std::string Quoted(const std::string& plain) {
  std::string regex;
  for (char c : plain) {
    if (std::strchr(R"(\^$.[]|()?*+{}-#)", c) != nullptr && c != '\0') regex += '\\';
    regex += c;
  }
  return regex;
}

bool IsOneCharacter(const std::string& text) {
  int32_t character = 0;
  return Utf8Length(reinterpret_cast<const uint8_t*>(text.data()), text.size(), &character) == text.size();
}

}  // namespace

Result<std::string> IsolatingPattern(const HfSplit& split) {
  const bool is_plain = !split.plain.empty();
  const std::string regex = is_plain ? Quoted(split.plain) : split.regex;
  const std::string what = "the pre-tokenizer Split with behavior " + split.behavior;
  if (regex.empty()) return Error(Code::kBadModel, "a Split with an empty pattern");
  if (!is_plain) KVC_RETURN_IF_ERROR(CheckPattern(regex));
  // Both are kept then, and it makes no difference which one is the match.
  if (split.behavior == "Isolated") return regex;
  // So do matches that touch, as one word. Each is found as if it stood alone.
  if (split.behavior == "Contiguous") return "(?>" + regex + ")++";
  if (split.behavior == "Removed") {
    if (!split.invert) return Unsupported(what);
    if (!Covers(regex)) return Unsupported(what + " and a pattern that may leave text out");
    return regex;
  }
  const bool before = split.behavior == "MergedWithPrevious", after = split.behavior == "MergedWithNext";
  if (!before && !after) return Unsupported(what);
  if (!is_plain || !IsOneCharacter(split.plain) || split.invert)
    return Unsupported(what + " and a pattern that is not one character");
  const std::string others = "[^" + regex + "]++";
  return before ? others + regex + "|" + regex : regex + others + "|" + regex;
}

}  // namespace kvc
