#include "tools/suite/utf8.h"

#include <iterator>

namespace kvc::tool {
namespace {

constexpr char32_t kEscape = 0xdc00;

struct Block {
  char32_t first, last;
};

// Blocks above Latin-1 that hold punctuation and symbols.
constexpr Block kNoLetters[] = {{0x2000, 0x206f}, {0x20a0, 0x20cf},   {0x2190, 0x245f},   {0x2500, 0x2bff},
                                {0x2e00, 0x2e7f}, {0x3000, 0x3004},   {0x3008, 0x3020},   {0xd800, 0xf8ff},
                                {0xfe30, 0xfe4f}, {0xff01, 0xff0f},   {0xff1a, 0xff20},   {0xff3b, 0xff40},
                                {0xff5b, 0xff65}, {0x1f000, 0x1faff}, {0xe0000, 0x10ffff}};

// How many bytes follow a first byte; -1: it is none.
int Following(unsigned char first) {
  return first < 0x80                    ? 0
         : first >= 0xc2 && first < 0xe0 ? 1
         : (first & 0xf0) == 0xe0        ? 2
         : first >= 0xf0 && first < 0xf5 ? 3
                                         : -1;
}

bool IsWordPartOfLatin1(char32_t c) {
  if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
  for (const char32_t word : {0xaa, 0xb2, 0xb3, 0xb5, 0xb9, 0xba, 0xbc, 0xbd, 0xbe}) {
    if (c == word) return true;
  }
  return c >= 0xc0 && c != 0xd7 && c != 0xf7;
}

}  // namespace

std::u32string CodePoints(const std::string& text) {
  std::u32string out;
  for (size_t i = 0; i < text.size();) {
    const unsigned char first = static_cast<unsigned char>(text[i]);
    const int n = Following(first);
    bool good = n >= 0 && i + static_cast<size_t>(n) < text.size();
    char32_t c = n > 0 ? first & (0x3f >> n) : first;
    for (int k = 1; good && k <= n; ++k) {
      const unsigned char next = static_cast<unsigned char>(text[i + static_cast<size_t>(k)]);
      good = (next & 0xc0) == 0x80;
      c = c << 6 | (next & 0x3f);
    }
    good = good && !(n == 2 && (c < 0x800 || (c >= 0xd800 && c < 0xe000))) &&
           !(n == 3 && (c < 0x10000 || c > 0x10ffff));
    out += good ? c : kEscape + first;
    i += good ? static_cast<size_t>(n) + 1 : 1;
  }
  return out;
}

std::string Utf8(const std::u32string& text) {
  std::string out;
  for (const char32_t c : text) {
    if (c < 0x80 || (c >= kEscape && c < kEscape + 0x100)) {
      out += static_cast<char>(c & 0xff);
      continue;
    }
    constexpr char32_t kFirst[] = {0, 0xc0, 0xe0, 0xf0};
    const int n = c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    out += static_cast<char>(kFirst[n] | c >> (6 * n));
    for (int k = n - 1; k >= 0; --k) out += static_cast<char>(0x80 | (c >> (6 * k) & 0x3f));
  }
  return out;
}

bool IsSpace(char32_t c) {
  return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
         c == 0x3000;
}

bool IsWordPart(char32_t c) {
  if (c < 0x100) return IsWordPartOfLatin1(c);
  for (const Block& block : kNoLetters) {
    if (c >= block.first && c <= block.last) return false;
  }
  return !IsSpace(c);
}

char32_t LowerCase(char32_t c) {
  const auto within = [c](char32_t first, char32_t last) { return c >= first && c <= last; };
  if (within('A', 'Z') || (within(0xc0, 0xde) && c != 0xd7)) return c + 32;
  if (within(0x100, 0x12e) || within(0x132, 0x136) || within(0x14a, 0x176)) return c | 1;
  if (within(0x139, 0x147) || within(0x179, 0x17d)) return c % 2 == 1 ? c + 1 : c;
  if (c == 0x178) return 0xff;
  if (within(0x391, 0x3ab) && c != 0x3a2) return c + 32;
  if (within(0x388, 0x38a)) return c + 37;
  if (c == 0x386 || c == 0x38c) return c == 0x386 ? 0x3ac : 0x3cc;
  if (within(0x38e, 0x38f)) return c + 63;
  if (within(0x400, 0x40f)) return c + 80;
  return within(0x410, 0x42f) ? c + 32 : c;
}

std::string LowerCase(const std::string& text) {
  std::u32string points = CodePoints(text);
  for (char32_t& c : points) c = LowerCase(c);
  return Utf8(points);
}

std::vector<std::string> SplitWords(const std::string& text) {
  std::vector<std::string> words;
  std::u32string word;
  for (const char32_t c : CodePoints(text) + U" ") {
    if (!IsSpace(c)) {
      word += c;
    } else if (!word.empty()) {
      words.push_back(Utf8(word));
      word.clear();
    }
  }
  return words;
}

std::vector<std::string> SplitAt(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t begin = 0;
  for (size_t end; (end = text.find(separator, begin)) != std::string::npos; begin = end + 1)
    parts.push_back(text.substr(begin, end - begin));
  parts.push_back(text.substr(begin));
  return parts;
}

}  // namespace kvc::tool
