#include "models/convert/jinja/text.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "lib/base/ascii.h"
#include "lib/base/utf8.h"

namespace kvc::jinja {
namespace {

int32_t CodePointAt(const std::string& text, size_t at, size_t* length) {
  int32_t code_point = 0;
  *length = std::max<size_t>(
      1, Utf8Length(reinterpret_cast<const uint8_t*>(text.data()) + at, text.size() - at, &code_point));
  return code_point;
}

bool IsAsciiLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

char UpperChar(char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; }

void AppendHex(uint32_t value, int digits, std::string* out) {
  for (int i = digits - 1; i >= 0; --i) out->push_back("0123456789abcdef"[value >> (4 * i) & 15]);
}

std::vector<std::string> SplitAtSpaces(const std::string& text, size_t max_parts) {
  std::vector<std::string> parts;
  const std::vector<size_t> starts = CharacterStarts(text);
  for (size_t i = 0, n = starts.size() - 1; i < n;) {
    size_t length;
    if (IsWhiteSpace(CodePointAt(text, starts[i], &length))) {
      ++i;
      continue;
    }
    if (max_parts > 0 && parts.size() + 1 == max_parts) {
      parts.push_back(text.substr(starts[i]));
      break;
    }
    size_t end = i;
    while (end < n && !IsWhiteSpace(CodePointAt(text, starts[end], &length))) ++end;
    parts.push_back(text.substr(starts[i], starts[end] - starts[i]));
    i = end;
  }
  return parts;
}

}  // namespace

bool IsAscii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<uint8_t>(c) < 128; });
}

std::vector<size_t> CharacterStarts(const std::string& text) {
  std::vector<size_t> starts;
  for (size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<uint8_t>(text[i]) & 0xC0) != 0x80) starts.push_back(i);
  }
  starts.push_back(text.size());
  return starts;
}

int64_t CountCharacters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

std::string Strip(const std::string& text, const std::string* set, bool left, bool right) {
  const std::vector<size_t> starts = CharacterStarts(text);
  std::vector<std::string> characters;  // of the set, in order
  if (set != nullptr) {
    const std::vector<size_t> places = CharacterStarts(*set);
    for (size_t i = 0; i + 1 < places.size(); ++i)
      characters.push_back(set->substr(places[i], places[i + 1] - places[i]));
    std::sort(characters.begin(), characters.end());
  }
  const auto goes = [&](size_t i) {
    size_t length;
    if (set == nullptr) return IsWhiteSpace(CodePointAt(text, starts[i], &length));
    const std::string character = text.substr(starts[i], starts[i + 1] - starts[i]);
    return std::binary_search(characters.begin(), characters.end(), character);
  };
  size_t begin = 0, end = starts.size() - 1;
  while (left && begin < end && goes(begin)) ++begin;
  while (right && begin < end && goes(end - 1)) --end;
  return text.substr(starts[begin], starts[end] - starts[begin]);
}

std::string Upper(const std::string& text) {
  std::string out = text;
  std::transform(out.begin(), out.end(), out.begin(), UpperChar);
  return out;
}

std::string Lower(const std::string& text) {
  std::string out = text;
  std::transform(out.begin(), out.end(), out.begin(), LowerAscii);
  return out;
}

std::string Capitalize(const std::string& text) {
  std::string out = Lower(text);
  if (!out.empty()) out[0] = UpperChar(out[0]);
  return out;
}

std::string Title(const std::string& text) {
  std::string out = text;
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = i > 0 && IsAsciiLetter(out[i - 1]) ? LowerAscii(out[i]) : UpperChar(out[i]);
  return out;
}

std::vector<std::string> Split(const std::string& text, const std::string& separator, size_t max_parts) {
  if (separator.empty()) return SplitAtSpaces(text, max_parts);
  std::vector<std::string> parts;
  size_t at = 0;
  while (max_parts == 0 || parts.size() + 1 < max_parts) {
    const size_t end = text.find(separator, at);
    if (end == std::string::npos) break;
    parts.push_back(text.substr(at, end - at));
    at = end + separator.size();
  }
  parts.push_back(text.substr(at));
  return parts;
}

std::vector<std::string> SplitFromRight(const std::string& text, const std::string& separator,
                                        size_t max_parts) {
  std::vector<std::string> parts;
  size_t end = text.size();
  while (max_parts == 0 || parts.size() + 1 < max_parts) {
    if (end < separator.size()) break;
    const size_t at = text.rfind(separator, end - separator.size());
    if (at == std::string::npos) break;
    parts.push_back(text.substr(at + separator.size(), end - at - separator.size()));
    end = at;
  }
  parts.push_back(text.substr(0, end));
  std::reverse(parts.begin(), parts.end());
  return parts;
}

std::vector<std::string> SplitLines(const std::string& text, bool keep_ends) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find_first_of("\n\r\v\f\x1c\x1d\x1e", at);
    if (end == std::string::npos) {
      lines.push_back(text.substr(at));
      break;
    }
    const size_t next = end + (text.compare(end, 2, "\r\n") == 0 ? 2 : 1);
    lines.push_back(text.substr(at, (keep_ends ? next : end) - at));
    at = next;
  }
  return lines;
}

std::string Replace(const std::string& text, const std::string& from, const std::string& to, int64_t limit) {
  std::string out;
  size_t at = 0;
  if (from.empty()) {  // before every character and at the end
    const std::vector<size_t> starts = CharacterStarts(text);
    for (size_t i = 0; i < starts.size(); ++i) {
      if (limit < 0 || static_cast<int64_t>(i) < limit) out += to;
      if (i + 1 < starts.size()) out.append(text, starts[i], starts[i + 1] - starts[i]);
    }
    return out;
  }
  for (int64_t n = 0; limit < 0 || n < limit; ++n) {
    const size_t found = text.find(from, at);
    if (found == std::string::npos) break;
    out.append(text, at, found - at);
    out += to;
    at = found + from.size();
  }
  out.append(text, at, std::string::npos);
  return out;
}

std::string FloatText(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[512];
  const double size = std::fabs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(buffer, end.ptr);
  if (plain && text.find('.') == std::string::npos) text += ".0";
  return text;
}

std::string QuotedText(const std::string& text) {
  const bool single = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = single ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    const uint8_t byte = static_cast<uint8_t>(c);
    if (c == quote || c == '\\') {
      out += '\\', out += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (byte < 32 || byte == 127) {
      out += "\\x";
      AppendHex(byte, 2, &out);
    } else {
      out += c;
    }
  }
  return out + quote;
}

std::string JsonText(const std::string& text, bool ascii) {
  std::string out = "\"";
  for (size_t i = 0, length = 1; i < text.size(); i += length) {
    const int32_t c = CodePointAt(text, i, &length);
    const char* names = "\"\"\\\\\bb\ff\nn\rr\tt";
    const char* name = nullptr;
    for (const char* p = names; *p != '\0'; p += 2) {
      if (c == *p) name = p + 1;
    }
    if (name != nullptr) {
      out += '\\', out += *name;
    } else if (c < 32 || (ascii && c > 126 && c < 0x10000)) {
      out += "\\u";
      AppendHex(static_cast<uint32_t>(c), 4, &out);
    } else if (ascii && c >= 0x10000) {
      const uint32_t beyond = static_cast<uint32_t>(c - 0x10000);
      out += "\\u";
      AppendHex(0xD800 + (beyond >> 10), 4, &out);
      out += "\\u";
      AppendHex(0xDC00 + (beyond & 0x3FF), 4, &out);
    } else {
      out.append(text, i, length);
    }
  }
  return out + "\"";
}

}  // namespace kvc::jinja
