#include "lib/model/tokenizer_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>

#include "lib/base/utf8.h"

namespace kvc {
namespace {

// Oniguruma's \s: tab to carriage return, next line, and every separator.
constexpr char kSpaceSet[] = R"(\t-\r\x{85}\p{Z})";

// One match may take this many steps and more with the text, so that a long run of spaces is fine and a
// pattern that backtracks without end stops.
constexpr uint64_t kMatchSteps = 1000000, kMatchStepsPerByte = 16;
constexpr uint32_t kHeapKiB = 64 * 1024, kDepth = 1000000;
constexpr size_t kJitStackStart = 32 * 1024, kJitStackMax = 1024 * 1024;

// Spells out \s and \S; copies everything else.
std::string SpellOutSpaces(const std::string& pattern) {
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

}  // namespace

struct PreTokenizer::Pattern {
  pcre2_code* code = nullptr;
  ~Pattern() { pcre2_code_free(code); }
};

struct PreTokenizer::Scratch::Impl {
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;
  std::vector<TextRange> parts;
  ~Impl() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  Status Init(size_t text_bytes) {
    if (data == nullptr) data = pcre2_match_data_create(1, nullptr);
    if (context == nullptr) context = pcre2_match_context_create(nullptr);
    if (stack == nullptr) stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);
    if (data == nullptr || context == nullptr)
      return Error(Code::kMemory, "no memory for the tokenizer's patterns");
    const uint64_t steps = kMatchSteps + kMatchStepsPerByte * text_bytes;
    pcre2_set_match_limit(context, static_cast<uint32_t>(std::min<uint64_t>(steps, UINT32_MAX)));
    pcre2_set_depth_limit(context, kDepth);
    pcre2_set_heap_limit(context, kHeapKiB);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
    return {};
  }
};

PreTokenizer::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {}
PreTokenizer::Scratch::~Scratch() = default;
PreTokenizer::PreTokenizer() = default;
PreTokenizer::~PreTokenizer() = default;

Result<std::unique_ptr<PreTokenizer>> PreTokenizer::Create(const std::vector<std::string>& patterns) {
  if (patterns.size() > kMaxPatterns) {
    return Error(Code::kBadModel, "the tokenizer has %zu patterns, the limit is %zu", patterns.size(),
                 kMaxPatterns);
  }
  std::unique_ptr<PreTokenizer> result(new PreTokenizer);
  for (size_t i = 0; i < patterns.size(); ++i) {
    const std::string& pattern = patterns[i];
    if (pattern.empty() || pattern.size() > kMaxPatternBytes) {
      return Error(Code::kBadModel, "tokenizer pattern %zu has %zu bytes, the range is 1 to %zu", i,
                   pattern.size(), kMaxPatternBytes);
    }
    if (!IsUtf8(pattern)) return Error(Code::kBadModel, "tokenizer pattern %zu is not UTF-8", i);
    const std::string spelled = SpellOutSpaces(pattern);
    std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
        pcre2_compile_context_create(nullptr), &pcre2_compile_context_free);
    if (context == nullptr) return Error(Code::kMemory, "no memory for the tokenizer's patterns");
    pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context.get(), 100);
    int error = 0;
    PCRE2_SIZE offset = 0;
    auto compiled = std::make_unique<Pattern>();
    compiled->code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(spelled.data()), spelled.size(),
                      PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, context.get());
    if (compiled->code == nullptr) {
      if (error == PCRE2_ERROR_NOMEMORY)
        return Error(Code::kMemory, "no memory for the tokenizer's patterns");
      return Error(Code::kBadModel, "tokenizer pattern %zu \"%.200s\" is not a regular expression: %s", i,
                   pattern.c_str(), Reason(error).c_str());
    }
    pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);  // without it the same matches, slower
    result->patterns_.push_back(std::move(compiled));
  }
  return result;
}

Status PreTokenizer::SplitOne(const Pattern& pattern, Span<const uint8_t> text, TextRange part,
                              Scratch* scratch, std::vector<TextRange>* out) const {
  const uint8_t* subject = text.data() + part.begin;
  const size_t n = part.end - part.begin;
  Scratch::Impl& impl = *scratch->impl_;
  const PCRE2_SIZE* match = pcre2_get_ovector_pointer(impl.data);
  const auto add = [&](size_t begin, size_t end) {
    if (begin < end) {
      out->push_back(
          TextRange{part.begin + static_cast<uint32_t>(begin), part.begin + static_cast<uint32_t>(end)});
    }
  };
  size_t done = 0;
  for (size_t from = 0; from < n;) {
    int rc = pcre2_match(pattern.code, subject, n, from, PCRE2_NO_UTF_CHECK, impl.data, impl.context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(pattern.code, subject, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, impl.data,
                       impl.context);
    }
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc == PCRE2_ERROR_NOMEMORY) return Error(Code::kMemory, "no memory for the tokenizer's patterns");
    if (rc < 0) {
      return Error(Code::kInvalid, "a tokenizer pattern failed at byte %zu of a text of %zu: %s",
                   part.begin + from, text.size(), Reason(rc).c_str());
    }
    const size_t begin = match[0], end = match[1];
    if (begin > end || begin < done) {  // \K in a lookaround can claim such a match
      return Error(Code::kInvalid, "a tokenizer pattern matches backwards at byte %zu", part.begin + from);
    }
    add(done, begin);
    add(begin, end);
    done = end;
    // A match of nothing still cuts; the search goes on behind the next character.
    from = end > begin || end >= n ? end : end + std::max<size_t>(Utf8Length(subject + end, n - end), 1);
    if (begin == end && end >= n) break;
  }
  add(done, n);
  return {};
}

Status PreTokenizer::Split(Span<const uint8_t> text, Scratch* scratch, std::vector<TextRange>* words) const {
  words->clear();
  if (text.empty()) return {};
  words->push_back(TextRange{0, static_cast<uint32_t>(text.size())});
  if (patterns_.empty()) return {};
  KVC_RETURN_IF_ERROR(scratch->impl_->Init(text.size()));
  for (const auto& pattern : patterns_) {
    std::vector<TextRange>& parts = scratch->impl_->parts;
    parts.swap(*words);
    words->clear();
    for (const TextRange& part : parts) KVC_RETURN_IF_ERROR(SplitOne(*pattern, text, part, scratch, words));
  }
  return {};
}

}  // namespace kvc
