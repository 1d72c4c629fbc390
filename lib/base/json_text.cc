#include "lib/base/json_text.h"

#include <charconv>
#include <cmath>
#include <cstring>

#include "lib/base/utf8.h"

namespace kvc {
namespace {

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
    const size_t length = Utf8Length(reinterpret_cast<const uint8_t*>(text) + i, n - i);
    if (length == 0) {
      out->append(kReplacementChar);
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
