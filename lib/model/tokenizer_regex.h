// Splits text into words with the model's regular expressions (PCRE2). Immutable after Create; thread-safe.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/span.h"
#include "lib/base/status.h"

namespace kvc {

// The bytes [begin, end) of some text. 32 bits: a text has less than 2 GiB.
struct TextRange {
  uint32_t begin = 0, end = 0;
};

// Patterns are read as Oniguruma reads them: properties and \d are Unicode, and \s is White_Space. PCRE2's
// own \s counts U+180E as a space, which Unicode gave up, so \s and \S are spelled out as a class before
// compiling (inside a negated or mixed class \S stays PCRE2's).
class PreTokenizer {
 public:
  static constexpr size_t kMaxPatterns = 16, kMaxPatternBytes = 16384;
  // kBadModel: too many, too long, or not a regular expression; with the pattern, the place and PCRE2's
  // reason.
  static Result<std::unique_ptr<PreTokenizer>> Create(const std::vector<std::string>& patterns);
  ~PreTokenizer();

  // Match memory of one call of Encode. Not thread-safe; make one each.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class PreTokenizer;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  // Cuts `text`, which must be valid UTF-8, into words: the first pattern isolates its matches, the next one
  // works inside each part, and so on. The words cover the text, in order; none is empty. kInvalid: a pattern
  // hit its limit on this text.
  Status Split(Span<const uint8_t> text, Scratch* scratch, std::vector<TextRange>* words) const;

 private:
  PreTokenizer();
  struct Pattern;
  Status SplitOne(const Pattern& pattern, Span<const uint8_t> text, TextRange part, Scratch* scratch,
                  std::vector<TextRange>* out) const;
  std::vector<std::unique_ptr<Pattern>> patterns_;
};

}  // namespace kvc
