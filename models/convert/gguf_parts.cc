#include "models/convert/gguf_parts.h"

#include "lib/base/ascii.h"
#include "lib/base/status.h"

namespace kvc {
namespace {

constexpr char kFirst[] = "-00001-of-", kEnd[] = ".gguf";
constexpr size_t kDigits = 5, kCount = kDigits + sizeof kEnd - 1, kTail = sizeof kFirst - 1 + kCount;

}  // namespace

bool NamedGguf(const std::string& path) {
  const size_t n = sizeof kEnd - 1;
  if (path.size() < n) return false;
  std::string end = path.substr(path.size() - n);
  for (char& c : end) c = LowerAscii(c);
  return end == kEnd;
}

int32_t GgufPartsNamed(const std::string& first) {
  if (first.size() < kTail || first.compare(first.size() - kTail, sizeof kFirst - 1, kFirst) != 0 ||
      first.compare(first.size() - (sizeof kEnd - 1), sizeof kEnd - 1, kEnd) != 0)
    return 0;
  int32_t count = 0;
  for (const char c : first.substr(first.size() - kCount, kDigits)) {
    if (c < '0' || c > '9') return 0;
    count = count * 10 + (c - '0');
  }
  return count;
}

std::string GgufPart(const std::string& first, int32_t part) {
  return first.substr(0, first.size() - kTail) + Format("-%05d-of-", part + 1) +
         first.substr(first.size() - kCount);
}

}  // namespace kvc
