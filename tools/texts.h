// Texts put together and changed.
#pragma once
#include <string>
#include <vector>

namespace kvc::tool {

inline std::string Join(const std::vector<std::string>& parts, const char* between = " ") {
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) text += (i > 0 ? between : "") + parts[i];
  return text;
}

// Every `from`, which is not empty, becomes `to`, in which nothing is looked for.
inline std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

}  // namespace kvc::tool
