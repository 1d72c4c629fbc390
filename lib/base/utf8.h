// UTF-8, one character at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace kvc {

constexpr char kReplacementChar[] = "\xEF\xBF\xBD";  // U+FFFD

// Length in bytes (1..4) of the character at `p`, of which `n` >= 1 bytes can be read; its code point goes to
// `code_point` when that is not null. 0: the bytes do not start a valid character (overlong, surrogate,
// beyond U+10FFFF, cut).
inline size_t Utf8Length(const uint8_t* p, size_t n, int32_t* code_point = nullptr) {
  const uint8_t lead = p[0];
  int32_t value = lead;
  size_t length = 1;
  if (lead >= 0x80) {
    if (lead < 0xC2 || lead > 0xF4) return 0;
    length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    if (n < length) return 0;
    value = lead & (0x7F >> length);
    for (size_t i = 1; i < length; ++i) {
      if ((p[i] & 0xC0) != 0x80) return 0;
      value = value << 6 | (p[i] & 0x3F);
    }
    const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
    if (overlong || value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) return 0;
  }
  if (code_point != nullptr) *code_point = value;
  return length;
}

// So many of n bytes stay where a character whose end was cut off goes whole.
inline size_t Utf8Whole(const uint8_t* p, size_t n) {
  size_t begin = n;
  while (begin > 0 && n - begin < 3 && (p[begin - 1] & 0xC0) == 0x80) --begin;
  if (begin == 0) return n;
  const uint8_t lead = p[--begin];
  const size_t length = lead < 0xC2 || lead > 0xF4 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  return n - begin < length ? begin : n;
}

// End of the run that starts at `begin`: a maximal stretch of valid characters (*valid true) or of bytes that
// belong to none.
inline size_t Utf8RunEnd(const uint8_t* p, size_t n, size_t begin, bool* valid) {
  size_t at = begin;
  *valid = begin < n && Utf8Length(p + begin, n - begin) > 0;
  while (at < n) {
    const size_t length = Utf8Length(p + at, n - at);
    if ((length > 0) != *valid) break;
    at += *valid ? length : 1;
  }
  return at;
}

inline bool IsUtf8(const std::string& s) {
  if (s.empty()) return true;
  bool valid;
  return Utf8RunEnd(reinterpret_cast<const uint8_t*>(s.data()), s.size(), 0, &valid) == s.size() && valid;
}

// What Python's str.strip takes away.
inline bool IsWhiteSpace(int32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// Appends a valid code point.
inline void AppendUtf8(int32_t code_point, std::string* out) {
  const auto put = [out](int32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6), put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12), put(0x80 | (code_point >> 6 & 0x3F)), put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | code_point >> 18), put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F)), put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace kvc
