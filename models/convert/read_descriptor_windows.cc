#include <io.h>

#include <algorithm>
#include <cerrno>

#include "models/convert/source_file.h"

namespace kvc {

Result<std::string> ReadDescriptor(int fd, const std::string& name, int64_t max_bytes) {
  constexpr size_t kBlock = 1 << 16;
  FileInfo info;
  if (!Describe(fd, &info)) return IoError(name, "cannot be read", errno);
  if (info.kind == FileKind::kFolder) return Error(Code::kIo, "%s: is a directory", name.c_str());
  std::string text;
  for (bool ended = info.bytes > max_bytes; !ended;) {
    const size_t at = text.size();
    text.resize(at + kBlock);
    const int n = ::_read(fd, &text[at], kBlock);
    if (n < 0) return IoError(name, "cannot be read", errno);
    text.resize(at + static_cast<size_t>(n));
    ended = n == 0 || static_cast<int64_t>(text.size()) > max_bytes;
  }
  if (info.bytes > max_bytes || static_cast<int64_t>(text.size()) > max_bytes)
    return Error(Code::kUnsupported, "%s: more than the limit of %lld bytes", name.c_str(),
                 static_cast<long long>(max_bytes));
  return text;
}

}  // namespace kvc
