#include "models/convert/jinja/lexer.h"

#include <algorithm>
#include <cstring>

#include "lib/base/decimal.h"
#include "lib/base/utf8.h"
#include "models/convert/jinja/text.h"

namespace kvc::jinja {
namespace {

bool IsNameStart(char c) { return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsBlank(char c) { return c == ' ' || (c >= 9 && c <= 13); }

int HexDigit(char c) {
  const char* digits = "0123456789abcdef";
  const char lower = c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  const char* found = lower == '\0' ? nullptr : std::strchr(digits, lower);
  return found == nullptr ? -1 : static_cast<int>(found - digits);
}

// Longest first.
constexpr const char* kOperators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                      "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

class Lexer {
 public:
  explicit Lexer(const std::string& text) {
    source_.reserve(text.size());
    for (size_t i = 0; i < text.size(); ++i) {  // \r\n and \r are ends of lines
      if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
      source_ += text[i] == '\r' ? '\n' : text[i];
    }
    if (!source_.empty() && source_.back() == '\n') source_.pop_back();
  }

  Status Run() {
    while (at_ < source_.size()) KVC_RETURN_IF_ERROR(Next());
    Push(Token::kEnd, "end of the template");
    return {};
  }
  std::vector<Token> TakeTokens() { return std::move(tokens_); }

 private:
  Status Fail(const char* what) const { return Error(Code::kUnsupported, "line %d: %s", line_, what); }

  bool Begins(const char* s) const { return source_.compare(at_, std::strlen(s), s) == 0; }

  void Advance(size_t n) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + n), '\n'));
    at_ += n;
    at_line_start_ = n > 0 && source_[at_ - 1] == '\n';
  }

  Token& Push(Token::Type type, std::string text) {
    tokens_.emplace_back();
    tokens_.back().type = type, tokens_.back().text = std::move(text), tokens_.back().line = line_;
    return tokens_.back();
  }

  // Text up to the next tag, and the tag.
  Status Next() {
    size_t tag = at_;
    while (tag < source_.size() && !(source_[tag] == '{' && tag + 1 < source_.size() &&
                                     std::strchr("{%#", source_[tag + 1]) != nullptr))
      ++tag;
    if (tag >= source_.size()) {
      const std::string rest = source_.substr(at_);
      Push(Token::kText, rest);
      Advance(rest.size());
      return {};
    }
    const char kind = source_[tag + 1], sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const bool signed_tag = sign == '-' || (sign == '+' && kind != '{');
    std::string text = source_.substr(at_, tag - at_);
    const bool line_start = at_line_start_;
    if (sign == '-') {
      text = Strip(text, nullptr, false, true);
    } else if (!signed_tag && kind != '{') {
      StripLine(&text, line_start);
    }
    if (!text.empty()) Push(Token::kText, text);
    Advance(tag - at_ + (signed_tag ? 3 : 2));
    if (kind == '#') return SkipComment();
    if (kind == '%') {
      bool raw = false;
      KVC_RETURN_IF_ERROR(ReadRaw(&raw));
      if (raw) return {};
    }
    Push(kind == '{' ? Token::kOutputBegin : Token::kBlockBegin, kind == '{' ? "{{" : "{%");
    return ReadTag(kind == '{');
  }

  // lstrip_blocks: white space between the start of a line and a tag.
  static void StripLine(std::string* text, bool line_start) {
    const size_t newline = text->rfind('\n'), begin = newline == std::string::npos ? 0 : newline + 1;
    if (begin == 0 && !line_start) return;
    if (Strip(text->substr(begin), nullptr, true, true).empty()) text->resize(begin);
  }

  void SkipSpace() {
    size_t n = at_;
    while (n < source_.size()) {
      int32_t c = 0;
      const size_t length =
          Utf8Length(reinterpret_cast<const uint8_t*>(source_.data()) + n, source_.size() - n, &c);
      if (length == 0 || !IsWhiteSpace(c)) break;
      n += length;
    }
    Advance(n - at_);
  }

  // What follows a tag's end: -%} takes all white space, %} one newline (trim_blocks), +%} nothing.
  void EndTag(char sign, size_t length, bool block) {
    Advance(length);
    if (sign == '-') {
      const bool line_start = at_line_start_;
      const size_t before = at_;
      SkipSpace();
      if (at_ == before) at_line_start_ = line_start;
    } else if (block && sign != '+' && at_ < source_.size() && source_[at_] == '\n') {
      Advance(1);
    }
  }

  Status SkipComment() {
    const size_t end = source_.find("#}", at_);
    if (end == std::string::npos) return Fail("a comment without an end");
    const char sign = end > at_ ? source_[end - 1] : '\0';
    EndTag(sign, end - at_ + 2, true);
    return {};
  }

  // {% raw %} .. {% endraw %}
  Status ReadRaw(bool* raw) {
    size_t n = at_;
    while (n < source_.size() && IsBlank(source_[n])) ++n;
    if (source_.compare(n, 3, "raw") != 0) return {};
    n += 3;
    while (n < source_.size() && IsBlank(source_[n])) ++n;
    const bool dash = n < source_.size() && source_[n] == '-';
    if (source_.compare(n + (dash ? 1 : 0), 2, "%}") != 0) return {};
    *raw = true;
    EndTag(dash ? '-' : '+', n - at_ + (dash ? 3 : 2), true);
    for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
      size_t end = tag + 2;
      const char sign = end < source_.size() ? source_[end] : '\0';
      if (sign == '-' || sign == '+') ++end;
      while (end < source_.size() && IsBlank(source_[end])) ++end;
      if (source_.compare(end, 6, "endraw") != 0) continue;
      end += 6;
      while (end < source_.size() && IsBlank(source_[end])) ++end;
      const char close = end < source_.size() ? source_[end] : '\0';
      if (close == '-' || close == '+') ++end;
      if (source_.compare(end, 2, "%}") != 0) continue;
      std::string text = source_.substr(at_, tag - at_);
      if (sign == '-') {
        text = Strip(text, nullptr, false, true);
      } else if (sign != '+') {
        StripLine(&text, at_line_start_);
      }
      Push(Token::kText, text);
      EndTag(close == '-' || close == '+' ? close : '\0', end + 2 - at_, true);
      return {};
    }
    return Fail("raw without endraw");
  }

  Status ReadTag(bool output) {
    const char* end = output ? "}}" : "%}";
    std::string open;  // brackets
    for (;;) {
      while (at_ < source_.size() && IsBlank(source_[at_])) Advance(1);
      if (at_ >= source_.size()) return Fail("a tag without an end");
      if (open.empty()) {
        const bool sign = source_[at_] == '-' || (source_[at_] == '+' && !output);
        if (source_.compare(at_ + (sign ? 1 : 0), 2, end) == 0) {
          Push(output ? Token::kOutputEnd : Token::kBlockEnd, end);
          EndTag(sign ? source_[at_] : '\0', sign ? 3 : 2, !output);
          return {};
        }
      }
      KVC_RETURN_IF_ERROR(ReadToken(&open));
    }
  }

  Status ReadToken(std::string* open) {
    const char c = source_[at_];
    if (IsNameStart(c)) {
      size_t n = 1;
      while (at_ + n < source_.size() && (IsNameStart(source_[at_ + n]) || IsDigit(source_[at_ + n]))) ++n;
      Push(Token::kName, source_.substr(at_, n));
      Advance(n);
      return {};
    }
    if (IsDigit(c)) return ReadNumber();
    if (c == '"' || c == '\'') return ReadString(c);
    for (const char* op : kOperators) {
      if (!Begins(op)) continue;
      if (std::strchr("([{", c) != nullptr) open->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      if (std::strchr(")]}", c) != nullptr) {
        if (open->empty() || open->back() != c) return Fail("brackets that do not match");
        open->pop_back();
      }
      Push(Token::kOperator, op);
      Advance(std::strlen(op));
      return {};
    }
    size_t length = 1;
    length = std::max<size_t>(
        1, Utf8Length(reinterpret_cast<const uint8_t*>(source_.data()) + at_, source_.size() - at_));
    return Error(Code::kUnsupported, "line %d: unexpected \"%s\" in a tag", line_,
                 source_.substr(at_, length).c_str());
  }

  Status ReadNumber() {
    std::string digits;
    size_t n = at_;
    bool real = false;
    const auto take_digits = [&] {
      while (n < source_.size() && (IsDigit(source_[n]) || (source_[n] == '_' && n + 1 < source_.size() &&
                                                            IsDigit(source_[n + 1])))) {
        if (source_[n] != '_') digits += source_[n];
        ++n;
      }
    };
    take_digits();
    if (n + 1 < source_.size() && source_[n] == '.' && IsDigit(source_[n + 1])) {
      real = true;
      digits += source_[n++];
      take_digits();
    }
    if (n + 1 < source_.size() && (source_[n] == 'e' || source_[n] == 'E')) {
      const size_t sign = source_[n + 1] == '+' || source_[n + 1] == '-' ? 1 : 0;
      if (n + 1 + sign < source_.size() && IsDigit(source_[n + 1 + sign])) {
        real = true;
        digits += 'e';
        if (source_[n + 1] == '-') digits += '-';
        n += 1 + sign;
        take_digits();
      }
    }
    if (n < source_.size() && IsNameStart(source_[n])) return Fail("a number that goes on as a name");
    Token& token = Push(real ? Token::kFloat : Token::kInt, digits);
    if (!ReadDecimal(digits, &token.real) || (!real && digits.size() > 18))
      return Fail("a number that is too large");
    if (!real) token.whole = std::stoll(digits);
    Advance(n - at_);
    return {};
  }

  Status ReadString(char quote) {
    std::string value;
    size_t n = at_ + 1;
    for (; n < source_.size() && source_[n] != quote; ++n) {
      if (source_[n] != '\\') {
        value += source_[n];
        continue;
      }
      if (++n >= source_.size()) break;
      KVC_RETURN_IF_ERROR(ReadEscape(&n, &value));
    }
    if (n >= source_.size()) return Fail("a text without an end");
    Push(Token::kString, value);
    Advance(n + 1 - at_);
    return {};
  }

  // What follows a backslash; *n stays at its last character.
  Status ReadEscape(size_t* n, std::string* value) const {
    const char c = source_[*n];
    constexpr char kNames[] = "n\nt\tr\r\\\\'\'\"\"a\ab\bf\fv\v";
    for (const char* name = kNames; *name != '\0'; name += 2) {
      if (*name == c) return *value += name[1], Status();
    }
    if (c == '\n') return {};
    const size_t n_hex = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    int64_t code = 0;
    if (n_hex > 0) {
      for (size_t i = 1; i <= n_hex; ++i) {
        const int digit = *n + i < source_.size() ? HexDigit(source_[*n + i]) : -1;
        if (digit < 0) return Fail("a text with a broken escape");
        code = code * 16 + digit;
      }
      *n += n_hex;
    } else if (c >= '0' && c <= '7') {
      size_t i = 0;
      for (; i < 3 && *n + i < source_.size() && source_[*n + i] >= '0' && source_[*n + i] <= '7'; ++i)
        code = code * 8 + (source_[*n + i] - '0');
      *n += i - 1;
    } else {
      *value += '\\';  // no escape: both stay
      *value += c;
      return {};
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return Fail("a text with a broken escape");
    AppendUtf8(static_cast<int32_t>(code), value);
    return {};
  }

  std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  bool at_line_start_ = true;
  std::vector<Token> tokens_;
};

}  // namespace

Result<std::vector<Token>> Tokenize(const std::string& text) {
  Lexer lexer(text);
  KVC_RETURN_IF_ERROR(lexer.Run());
  return lexer.TakeTokens();
}

}  // namespace kvc::jinja
