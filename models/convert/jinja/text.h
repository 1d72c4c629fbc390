// Python's strings, as far as templates see them: characters, not bytes, and its idea of white space.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace kvc::jinja {

bool IsAscii(const std::string& text);
// Where the characters of valid UTF-8 begin, and its end.
std::vector<size_t> CharacterStarts(const std::string& text);
int64_t CountCharacters(const std::string& text);

// Steps that looking for a part in a text may take, however often the part begins there and does not end: for
// Interpreter::Charge. Of Split, SplitFromRight and Replace too.
inline size_t SearchSteps(size_t text_bytes, size_t part_bytes) {
  return 1 + text_bytes / 16 * (1 + part_bytes / 64);
}

// str.strip, lstrip, rstrip: of the characters in `set`, or white space where that is null.
std::string Strip(const std::string& text, const std::string* set, bool left, bool right);
// Of ASCII letters; others stay as they are.
std::string Upper(const std::string& text);
std::string Lower(const std::string& text);
std::string Capitalize(const std::string& text);
std::string Title(const std::string& text);
// At most max_parts - 1 cuts; 0: no limit. An empty separator is white space.
std::vector<std::string> Split(const std::string& text, const std::string& separator, size_t max_parts);
std::vector<std::string> SplitFromRight(const std::string& text, const std::string& separator,
                                        size_t max_parts);
std::vector<std::string> SplitLines(const std::string& text, bool keep_ends);
// The first `limit` places, all where it is negative.
std::string Replace(const std::string& text, const std::string& from, const std::string& to, int64_t limit);

// A number as Python's repr writes it: 1.0, 1e-05, inf.
std::string FloatText(double value);
// '..' with Python's escapes.
std::string QuotedText(const std::string& text);
// ".." as json.dumps writes it; ascii: \uXXXX beyond it.
std::string JsonText(const std::string& text, bool ascii);

}  // namespace kvc::jinja
