#include "lib/base/json_text.h"

#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "lib/base/decimal.h"
#include "lib/base/utf8.h"

namespace kvc {
namespace {

// A number as its significant digits: d.ddd * 10^exponent, with a sign.
struct Digits {
  bool negative;
  std::string digits;
  int exponent;
};

Digits RoundTo(double value, int n_digits) {
  char text[40];
  std::snprintf(text, sizeof(text), "%.*e", n_digits - 1, value);
  Digits out = {text[0] == '-', "", 0};
  const char* p = text;
  for (; *p != 'e'; ++p) {  // whatever the locale puts between the digits
    if (*p >= '0' && *p <= '9') out.digits.push_back(*p);
  }
  out.exponent = std::atoi(p + 1);
  return out;
}

std::string Scientific(const Digits& d) {
  std::string text = d.digits.substr(0, 1);
  if (d.digits.size() > 1) text += '.' + d.digits.substr(1);
  char exponent[8];
  std::snprintf(exponent, sizeof(exponent), "e%+03d", d.exponent);
  return text + exponent;
}

// Behind the last digit of a whole number stand those that it has, not zeros.
std::string Fixed(const Digits& d, double value) {
  const size_t n = d.digits.size();
  if (d.exponent < 0) return "0." + std::string(static_cast<size_t>(-d.exponent - 1), '0') + d.digits;
  const size_t whole = static_cast<size_t>(d.exponent) + 1;
  if (whole < n) return d.digits.substr(0, whole) + '.' + d.digits.substr(whole);
  char text[400];  // the largest double has 309 digits
  std::snprintf(text, sizeof(text), "%.0f", std::fabs(value));
  return text;
}

// What std::to_chars writes. That of a double brings 120 KB of tables into libraries that are linked
// statically with the C++ runtime; numbers are written seldom.
template <typename T>
void AppendFloating(std::string* out, T value) {
  const auto reads_back = [&](const Digits& d) {
    double read = 0;
    return ReadDecimal((d.negative ? "-" : "") + Scientific(d), &read) && static_cast<T>(read) == value;
  };
  int few = 1, enough = sizeof(T) == 4 ? 9 : 17;  // these always read back
  while (few < enough) {
    const int middle = (few + enough) / 2;
    reads_back(RoundTo(double{value}, middle)) ? enough = middle : few = middle + 1;
  }
  const Digits d = RoundTo(double{value}, enough);
  const std::string fixed = Fixed(d, double{value}), scientific = Scientific(d);
  if (d.negative) out->push_back('-');
  out->append(fixed.size() <= scientific.size() ? fixed : scientific);
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
  std::isfinite(value) ? AppendFloating(out, value) : static_cast<void>(out->append("null"));
}
void AppendJsonNumber(std::string* out, float value) {
  std::isfinite(value) ? AppendFloating(out, value) : static_cast<void>(out->append("null"));
}
void AppendJsonNumber(std::string* out, int64_t value) {
  char text[24];
  out->append(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

JsonWriter& JsonWriter::Key(const char* key) {
  Separate();
  AppendJsonString(out_, key, std::strlen(key));
  out_->push_back(':');
  first_ = true;
  return *this;
}

}  // namespace kvc
