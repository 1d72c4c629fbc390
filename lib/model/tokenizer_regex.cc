#include "lib/model/tokenizer_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <iterator>

#include "lib/base/limits.h"
#include "lib/base/utf8.h"
#include "lib/model/tokenizer_patterns.h"

namespace kvc {
namespace {

// Oniguruma's \s: tab to carriage return, next line, and every separator.
constexpr char kSpaceSet[] = R"(\t-\r\x{85}\p{Z})";

// Patterns known to be linear: each of their parts is tried once for each character, whatever the text.
// Where what stands there is not, `run` finds the same words and is.
struct LinearPattern {
  std::string_view written, run;
  constexpr LinearPattern(const char* pattern) : written(pattern), run(pattern) {}
  constexpr LinearPattern(const char* pattern, const char* same) : written(pattern), run(same) {}
};
constexpr LinearPattern kLinear[] = {
    kPatternGpt2,
    kPatternLlama3,
    kPatternQwen2,
    kPatternQwen35,
    kPatternO200k,
    kPatternTekken,
    kPatternHanKana,
    kPatternDeepSeek3,
    kPatternLineEnd,
    kPatternDeepSeekCoderLetters,
    kPatternDeepSeekCoderSigns,
    kPatternDeepSeekLetters,
    kPatternDeepSeekSigns,
    // A run of spaces that reaches no end is looked at from its first space only: if it fails there, it fails
    // behind.
    {kPatternSpacesAtEnd, R"((?<!\s)\s+$)"},
    kPatternHanHangul,
    kPatternSeedCoder,
    kPatternBailing,
    {kPatternBloom, kPatternBloomFlat},
    kPatternBloomFlat,
    kPatternDigit,
    kPatternDigits,
    kPatternThreeDigits,
    kPatternPunctuation,
    kPatternByteNumbers,
    kPatternByteNumber,
    kPatternThreeAsciiDigits,
};

// Some files have line ends themselves where others write \\r and \\n.
std::string SpellOutLineEnds(std::string_view pattern) {
  std::string out;
  for (const char c : pattern) {
    if (c == '\r' || c == '\n') out += '\\';
    out += c == '\r' ? 'r' : c == '\n' ? 'n' : c;
  }
  return out;
}

const LinearPattern* FindLinear(std::string_view pattern) {
  const std::string spelled = SpellOutLineEnds(pattern);
  const auto* known = std::find_if(std::begin(kLinear), std::end(kLinear),
                                   [&](const LinearPattern& p) { return p.written == spelled; });
  return known == std::end(kLinear) ? nullptr : known;
}

// For one match of a linear pattern, which goes over a run of spaces at most a few times.
constexpr uint64_t kMatchSteps = 1000000, kMatchStepsPerByte = 16;
constexpr uint32_t kHeapKiB = 4 * 1024, kDepth = 1000000;
constexpr size_t kJitStackStart = 32 * 1024, kJitStackMax = 1024 * 1024;

// Spells out \s and \S; copies everything else.
std::string SpellOutSpaces(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's') {
        out += in_class ? kSpaceSet : std::string("[") + kSpaceSet + "]";
      } else if (next == 'S' && !in_class) {
        out += std::string("[^") + kSpaceSet + "]";
      } else {
        out += c, out += next;
      }
      continue;
    }
    out += c;
    if (!in_class && c == '[') {
      in_class = true;  // a ']' that comes first in a class stands for itself
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];
    } else if (in_class && c == '[' && i + 1 < pattern.size() && pattern[i + 1] == ':') {
      const size_t end = pattern.find(":]", i + 2);  // a class by name, such as [:alpha:]
      if (end == std::string::npos) continue;
      out.append(pattern, i + 1, end + 1 - i);
      i = end + 1;
    } else if (in_class && c == ']') {
      in_class = false;
    }
  }
  return out;
}

std::string Reason(int code) {
  PCRE2_UCHAR text[256];
  return pcre2_get_error_message(code, text, sizeof text) < 0 ? Format("error %d", code)
                                                              : reinterpret_cast<char*>(text);
}

Status NoMemory() { return Error(Code::kMemory, "no memory for the tokenizer's patterns"); }

// What the counted patterns of one call of Encode may still do.
struct Moves {
  int64_t left = 0;
  size_t at = 0;  // place of the last item
};

// PCRE2 calls this before every item of a counted pattern. How far the place has moved since bounds what the
// item before has looked at.
int CountMove(pcre2_callout_block* item, void* data) {
  auto* moves = static_cast<Moves*>(data);
  const size_t now = item->current_position;
  moves->left -= 1 + static_cast<int64_t>(now > moves->at ? now - moves->at : moves->at - now);
  moves->at = now;
  return moves->left < 0 ? PCRE2_ERROR_CALLOUT : 0;
}

}  // namespace

struct PreTokenizer::Pattern {
  pcre2_code* code = nullptr;
  ~Pattern() { pcre2_code_free(code); }

  // `index` goes into messages. of_bytes: its subject is bytes, not characters.
  Status Compile(size_t index, std::string_view pattern, bool of_bytes);
  int64_t bytes() const {
    size_t code_bytes = 0, jit_bytes = 0;
    pcre2_pattern_info(code, PCRE2_INFO_SIZE, &code_bytes);
    pcre2_pattern_info(code, PCRE2_INFO_JITSIZE, &jit_bytes);
    return static_cast<int64_t>(code_bytes + jit_bytes);
  }
};

Status PreTokenizer::Pattern::Compile(size_t index, std::string_view pattern, bool of_bytes) {
  const std::string text(pattern);
  if (pattern.empty()) return Error(Code::kBadModel, "tokenizer pattern %zu is empty", index);
  if (!IsUtf8(text)) return Error(Code::kBadModel, "tokenizer pattern %zu is not UTF-8", index);
  const LinearPattern* linear = FindLinear(pattern);
  const std::string_view run = linear != nullptr ? linear->run : pattern;
  const std::string spelled = of_bytes ? std::string(run) : SpellOutSpaces(run);
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
  if (context == nullptr) return NoMemory();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 100);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const uint32_t subject = of_bytes ? PCRE2_NEVER_UTF | PCRE2_NEVER_UCP : PCRE2_UTF | PCRE2_UCP;
  const uint32_t options =
      subject | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | (linear != nullptr ? 0 : PCRE2_AUTO_CALLOUT);
  code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(), options, &error, &offset,
                       context.get());
  if (code == nullptr) {
    if (error == PCRE2_ERROR_NOMEMORY || error == PCRE2_ERROR_HEAP_FAILED) return NoMemory();
    return Error(Code::kBadModel, "tokenizer pattern %zu \"%.200s\" is not a regular expression: %s", index,
                 text.c_str(), Reason(error).c_str());
  }
  uint32_t back_references = 0;
  pcre2_pattern_info(code, PCRE2_INFO_BACKREFMAX, &back_references);
  if (back_references > 0) {
    return Error(Code::kUnsupported, "tokenizer pattern %zu \"%.200s\" refers back to a group", index,
                 text.c_str());
  }
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without it the same matches, slower
  return {};
}

struct PreTokenizer::Scratch::Impl {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  size_t text_bytes = 0;
  Moves moves;
  ~Impl() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  Status Init(size_t n_patterns) {
    if (data != nullptr) return {};
    moves.left =
        kFreeMoves + kMovesPerByte * static_cast<int64_t>(text_bytes) * static_cast<int64_t>(n_patterns);
    context = pcre2_match_context_create(nullptr);
    stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
    if (context == nullptr) return NoMemory();
    const uint64_t steps = kMatchSteps + kMatchStepsPerByte * text_bytes;
    pcre2_set_match_limit(context, static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
    pcre2_set_depth_limit(context, kDepth);
    pcre2_set_heap_limit(context, kHeapKiB);
    pcre2_set_callout(context, &CountMove, &moves);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
    data = pcre2_match_data_create(1, nullptr);
    return data == nullptr ? NoMemory() : Status();
  }
  // The match of `pattern` in [from, n) of the subject.
  int Match(const Pattern& pattern, const uint8_t* subject, size_t n, size_t from) {
    moves.at = from;
    const int rc = pcre2_match(pattern.code, subject, n, from, PCRE2_NO_UTF_CHECK, data, context);
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
    moves.at = from;
    return pcre2_match(pattern.code, subject, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
  }
};

PreTokenizer::Scratch::Scratch(size_t text_bytes) : impl_(std::make_unique<Impl>()) {
  impl_->text_bytes = text_bytes;
}
PreTokenizer::Scratch::~Scratch() = default;
PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(const std::vector<std::string_view>& patterns,
                                                           int32_t n_byte_patterns, MemoryMeter* meter,
                                                           MeterCharge* charge) {
  std::unique_ptr<PreTokenizer> result(new PreTokenizer);
  for (const std::string_view& pattern : patterns) {
    result->patterns_.push_back(std::make_unique<Pattern>());
    Pattern& compiled = *result->patterns_.back();
    const size_t index = result->patterns_.size() - 1;
    const bool of_bytes = index + static_cast<size_t>(n_byte_patterns) >= patterns.size();
    KVC_RETURN_IF_ERROR(compiled.Compile(index, pattern, of_bytes));
    KVC_RETURN_IF_ERROR(charge->Add(meter, compiled.bytes(), "the tokenizer's patterns"));
  }
  return result;
}

Status PreTokenizer::SplitPart(size_t level, Span<const uint8_t> text, TextRange part, Scratch::Impl* scratch,
                               const Word& word) const {
  if (level == patterns_.size()) {
    word(part);
    return {};
  }
  const uint8_t* subject = text.data() + part.begin;
  const size_t n = part.end - part.begin;
  const auto add = [&](size_t begin, size_t end) -> Status {
    if (begin >= end) return {};
    const TextRange range{part.begin + static_cast<uint32_t>(begin), part.begin + static_cast<uint32_t>(end)};
    return SplitPart(level + 1, text, range, scratch, word);
  };
  size_t done = 0;
  for (size_t from = 0; from < n;) {
    const int rc = scratch->Match(*patterns_[level], subject, n, from);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc == PCRE2_ERROR_NOMEMORY) return NoMemory();
    if (rc == PCRE2_ERROR_CALLOUT || rc == PCRE2_ERROR_MATCHLIMIT) {
      return Error(
          Code::kInvalid,
          "the tokenizer's patterns need more steps than a text of %zu bytes may take: the limit was "
          "reached at byte %zu",
          scratch->text_bytes, part.begin + from);
    }
    if (rc < 0) {
      return Error(Code::kInvalid, "a tokenizer pattern failed at byte %zu of a text of %zu: %s",
                   part.begin + from, scratch->text_bytes, Reason(rc).c_str());
    }
    const PCRE2_SIZE* match = pcre2_get_ovector_pointer(scratch->data);
    const size_t begin = match[0], end = match[1];
    if (begin > end || begin < done) {  // \K in a lookaround can claim such a match
      return Error(Code::kInvalid, "a tokenizer pattern matches backwards at byte %zu", part.begin + from);
    }
    KVC_RETURN_IF_ERROR(add(done, begin));
    KVC_RETURN_IF_ERROR(add(begin, end));
    done = end;
    // A match of nothing still cuts; the search goes on behind the next character.
    from = end > begin || end >= n ? end : end + std::max<size_t>(Utf8Length(subject + end, n - end), 1);
    if (begin == end && end >= n) break;
  }
  return add(done, n);
}

Status PreTokenizer::Split(Span<const uint8_t> text, Scratch* scratch, const Word& word) const {
  if (text.empty()) return {};
  if (!patterns_.empty()) KVC_RETURN_IF_ERROR(scratch->impl_->Init(patterns_.size()));
  return SplitPart(0, text, TextRange{0, static_cast<uint32_t>(text.size())}, scratch->impl_.get(), word);
}

}  // namespace kvc
