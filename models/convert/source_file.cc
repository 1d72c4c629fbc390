#include "models/convert/source_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace kvc {

Result<std::unique_ptr<SourceFile>> SourceFile::Open(const std::string& path) {
  // O_NONBLOCK: a named pipe must be refused below, not waited for.
  FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) {
    const int error = errno;
    if (error == ENOENT) return Error(Code::kNotFound, "%s: there is no such file", path.c_str());
    return IoError(path, "cannot be opened", error);
  }
  struct stat info;
  if (fstat(fd.get(), &info) != 0) return IoError(path, "cannot be examined", errno);
  if (!S_ISREG(info.st_mode)) return Error(Code::kIo, "%s: not a regular file", path.c_str());
  return std::unique_ptr<SourceFile>(new SourceFile(std::move(fd), info.st_size, path));
}

Status SourceFile::Read(int64_t offset, void* out, int64_t n_bytes) const {
  char* to = static_cast<char*>(out);
  while (n_bytes > 0) {
    const ssize_t n = pread(fd_.get(), to, static_cast<size_t>(std::min<int64_t>(n_bytes, 1 << 30)), offset);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return IoError(path_, "cannot be read", errno);
    if (n == 0) {
      return Error(Code::kBadModel, "%s: truncated: the file ends at byte %lld, %lld more are needed",
                   path_.c_str(), static_cast<long long>(offset), static_cast<long long>(n_bytes));
    }
    to += n, offset += n, n_bytes -= n;
  }
  return {};
}

Result<std::vector<uint8_t>> ReadSmallFile(const std::string& path, int64_t max_bytes) {
  auto file = SourceFile::Open(path);
  if (!file.ok()) return file.status();
  const int64_t size = file.value()->size();
  if (size > max_bytes) {
    return Error(Code::kUnsupported, "%s: %lld bytes, more than the limit of %lld", path.c_str(),
                 static_cast<long long>(size), static_cast<long long>(max_bytes));
  }
  std::vector<uint8_t> bytes(static_cast<size_t>(size));
  KVC_RETURN_IF_ERROR(file.value()->Read(0, bytes.data(), size));
  return bytes;
}

bool FileExists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

bool DirectoryExists(const std::string& path) {
  struct stat info;
  return stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

bool SameFile(const std::string& a, const std::string& b) {
  struct stat x, y;
  return stat(a.c_str(), &x) == 0 && stat(b.c_str(), &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

std::string BaseName(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path;
  const size_t slash = path.find_last_of('/', end);
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return path.substr(begin, end + 1 - begin);
}

}  // namespace kvc
