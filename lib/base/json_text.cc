#include "lib/base/json_text.h"

#include <charconv>
#include <cmath>
#include <cstring>

namespace kvc {
namespace {

// Length of the UTF-8 sequence that begins at s[0], 0 if there is none: shortest form only, no surrogates, to U+10FFFF.
size_t Utf8Length(const unsigned char* s, size_t n) {
  const unsigned c = s[0];
  if (c < 0x80) return 1;
  const size_t length = c >= 0xc2 && c <= 0xdf ? 2 : (c & 0xf0) == 0xe0 ? 3 : c >= 0xf0 && c <= 0xf4 ? 4 : 0;
  if (length == 0 || n < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((s[i] & 0xc0) != 0x80) return 0;
  }
  const bool overlong = (c == 0xe0 && s[1] < 0xa0) || (c == 0xf0 && s[1] < 0x90);
  const bool beyond = (c == 0xed && s[1] > 0x9f) || (c == 0xf4 && s[1] > 0x8f);
  return overlong || beyond ? 0 : length;
}

template <typename T>
void AppendNumber(std::string* out, T value) {
  char text[40];
  const std::to_chars_result end = std::to_chars(text, text + sizeof(text), value);
  out->append(text, end.ptr);
}

}  // namespace

void AppendJsonString(std::string* out, const char* text, size_t n) {
  static const char kHex[] = "0123456789abcdef";
  out->push_back('"');
  for (size_t i = 0; i < n;) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    const size_t length = Utf8Length(reinterpret_cast<const unsigned char*>(text) + i, n - i);
    if (length == 0) {
      out->append("\xef\xbf\xbd");
    } else if (c == '"' || c == '\\') {
      out->push_back('\\'), out->push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (c == '\r') {
      out->append("\\r");
    } else if (c < 0x20 || c == 0x7f) {
      out->append("\\u00"), out->push_back(kHex[c >> 4]), out->push_back(kHex[c & 15]);
    } else {
      out->append(text + i, length);
    }
    i += length == 0 ? 1 : length;
  }
  out->push_back('"');
}

void AppendJsonNumber(std::string* out, double value) {
  std::isfinite(value) ? AppendNumber(out, value) : static_cast<void>(out->append("null"));
}
void AppendJsonNumber(std::string* out, float value) {
  std::isfinite(value) ? AppendNumber(out, value) : static_cast<void>(out->append("null"));
}
void AppendJsonNumber(std::string* out, int64_t value) { AppendNumber(out, value); }

JsonWriter& JsonWriter::Key(const char* key) {
  Separate();
  AppendJsonString(out_, key, std::strlen(key));
  out_->push_back(':');
  first_ = true;
  return *this;
}

}  // namespace kvc
