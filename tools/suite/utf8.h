// Code points of UTF-8 text, and what Python's str methods say of them, as far as benchmarks need it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace kvc::tool {

// A byte that is no UTF-8 becomes 0xdc00 + byte, as Python's surrogateescape has it, and turns back into that
// byte.
std::u32string CodePoints(const std::string& text);
std::string Utf8(const std::u32string& text);

bool IsSpace(char32_t c);        // str.isspace
bool IsWordPart(char32_t c);     // \w: exact in ASCII and Latin-1, by blocks elsewhere
char32_t LowerCase(char32_t c);  // Latin, Greek and Cyrillic letters that have one lower case letter
std::string LowerCase(const std::string& text);

// Words between white space, without empty ones: str.split().
std::vector<std::string> SplitWords(const std::string& text);
// Between single characters, empty parts included: str.split(separator).
std::vector<std::string> SplitAt(const std::string& text, char separator);

}  // namespace kvc::tool
