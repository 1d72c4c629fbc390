// Tokenizers in the style of every family, and what the PyPI package tokenizers makes of the test strings
// with them (tests/vectors/make_families.py states the files).
#pragma once
#include "models/convert/json.h"
#include "tests/support/tokenizers.h"

namespace kvc {

inline const std::string kFamilies = TokenizerData("families/");

inline std::vector<std::string> Lines(const std::string& path) {
  std::vector<std::string> lines;
  const std::string text = ReadTestFile(path);
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1)
    lines.push_back(text.substr(at, end - at));
  return lines;
}

// "\xNN" is a byte, two backslashes are one.
inline std::string Unescape(const std::string& s) {
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '\\') {
      out += s[i];
    } else if (s[++i] == 'x') {
      out += static_cast<char>(std::stoi(s.substr(i + 1, 2), nullptr, 16)), i += 2;
    } else {
      out += s[i];
    }
  }
  return out;
}

inline std::vector<std::string> FamilyStrings() {
  std::vector<std::string> strings;
  for (const std::string& path : {TokenizerData("strings.txt"), kFamilies + "strings.txt"}) {
    for (const std::string& line : Lines(path)) strings.push_back(Unescape(line));
  }
  return strings;
}

inline std::string Checksum(const std::vector<int32_t>& ids) {
  uint32_t h = 0x811C9DC5;
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8)
      h = (h ^ (static_cast<uint32_t>(id) >> shift & 255)) * 0x01000193;
  }
  char text[9];
  std::snprintf(text, sizeof text, "%08x", h);
  return text;
}

// Of the ids of a string as text, and, where it differs, with its special tokens.
inline std::string SumsOf(const Tokenizer& tokenizer, const std::string& text) {
  const std::string plain = Checksum(Encode(tokenizer, text)),
                    special = Checksum(Encode(tokenizer, text, kParseSpecial));
  return plain + (special == plain ? "" : " " + special);
}

inline Json ReadFamiliesJson(const std::string& name) { return Json::parse(ReadTestFile(kFamilies + name)); }

// In the order of families.json.
inline std::vector<std::string> TokenizerFamilyNames() {
  std::vector<std::string> names;
  const Json families = ReadFamiliesJson("families.json");
  for (const auto& [name, pre] : families.items()) names.push_back(name);
  return names;
}

}  // namespace kvc
