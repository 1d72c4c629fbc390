// Splits text into words with the model's regular expressions (PCRE2). Immutable after Create; thread-safe.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/memory_meter.h"
#include "lib/base/span.h"
#include "lib/base/status.h"
#include "lib/model/text_range.h"

namespace kvc {

// Patterns are read as Oniguruma reads them: properties and \d are Unicode, ^ and $ are the ends of lines,
// and \s is White_Space. PCRE2's own \s counts U+180E as a space, which Unicode gave up, so \s and \S are
// spelled out as a class before compiling (inside a negated or mixed class \S stays PCRE2's).
//
// Patterns come from files that others made, and backtracking takes any time. Those of tokenizer_patterns.h
// are known to take time linear in the text; in others every move of the matcher is counted, and together
// they may make kMovesPerByte for each byte of a text.
class PreTokenizer {
 public:
  static constexpr int64_t kFreeMoves = 1000000, kMovesPerByte = 64;

  // kBadModel: not a regular expression; with the pattern, the place and PCRE2's reason. kUnsupported: it
  // refers back to what a group matched, whose cost no count shows. What PCRE2 takes is added to the charge.
  // The last n_byte_patterns see bytes, and may cut within a character; to them a byte has no property.
  static Result<std::unique_ptr<PreTokenizer>> Create(const std::vector<std::string_view>& patterns,
                                                      int32_t n_byte_patterns, MemoryMeter* meter,
                                                      MeterCharge* charge);
  ~PreTokenizer();

  // Match memory and the budget of one call of Encode. Not thread-safe; make one each.
  class Scratch {
   public:
    explicit Scratch(size_t text_bytes);  // of the whole text, however many parts are split
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class PreTokenizer;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  // Cuts `text`, which must be valid UTF-8, into words: the first pattern isolates its matches, the next one
  // works inside each part, and so on. word() gets the words in order; they cover the text and none is empty.
  // kInvalid: the patterns need too many steps for this text.
  using Word = std::function<void(TextRange)>;
  Status Split(Span<const uint8_t> text, Scratch* scratch, const Word& word) const;

 private:
  PreTokenizer();
  struct Pattern;
  Status SplitPart(size_t level, Span<const uint8_t> text, TextRange part, Scratch::Impl* scratch,
                   const Word& word) const;
  std::vector<std::unique_ptr<Pattern>> patterns_;
};

}  // namespace kvc
