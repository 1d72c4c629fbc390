#include "models/convert/source_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "lib/base/atomic_file.h"

namespace kvc {
namespace {

constexpr int kWriterWaitMs = 3000, kWriterPollMs = 50;  // for somebody to open a named pipe

// O_NONBLOCK: opening a named pipe must not wait for a writer.
Result<int> OpenToRead(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos)
    return Error(Code::kInvalid, "a file name is empty or contains a zero byte");
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd >= 0) return fd;
  const int error = errno;
  if (error == ENOENT && FileExists(path))
    return Error(Code::kNotFound, "%s: a link to a file that is not there", path.c_str());
  if (error == ENOENT) return Error(Code::kNotFound, "%s: there is no such file", path.c_str());
  return IoError(path, "cannot be opened", error);
}

Status TooLarge(const std::string& name, int64_t max_bytes) {
  return Error(Code::kUnsupported, "%s: more than the limit of %lld bytes", name.c_str(),
               static_cast<long long>(max_bytes));
}

// Waits for data or the end; without a limit in time when that is -1. False: neither came.
Result<bool> WaitForData(int fd, const std::string& name, int milliseconds) {
  pollfd wait = {fd, POLLIN, 0};
  for (;;) {
    const int n = ::poll(&wait, 1, milliseconds);
    if (n >= 0) return n > 0;
    if (errno != EINTR) return IoError(name, "cannot be read", errno);
  }
}

// Reads to the end of an open file, however the data come. A named pipe that was opened without waiting
// reads as ended until somebody opens it for writing.
class WholeReader {
 public:
  WholeReader(int fd, const std::string& name, int64_t max_bytes)
      : fd_(fd), name_(name), max_bytes_(max_bytes) {}

  Result<std::string> Read() {
    struct stat info;
    if (::fstat(fd_, &info) != 0) return IoError(name_, "cannot be read", errno);
    if (S_ISDIR(info.st_mode)) return Error(Code::kIo, "%s: is a directory", name_.c_str());
    if (S_ISREG(info.st_mode) && info.st_size > max_bytes_) return TooLarge(name_, max_bytes_);
    if (S_ISREG(info.st_mode)) text_.reserve(static_cast<size_t>(info.st_size) + kBlock);  // no later copy
    had_writer_ = !S_ISFIFO(info.st_mode) || (::fcntl(fd_, F_GETFL) & O_NONBLOCK) == 0;
    for (bool ended = false; !ended;) KVC_RETURN_IF_ERROR(Next(&ended));
    return std::move(text_);
  }

 private:
  Status Next(bool* ended) {
    const size_t at = text_.size();
    text_.resize(at + kBlock);
    const ssize_t n = ::read(fd_, &text_[at], kBlock);
    const int error = errno;
    text_.resize(at + static_cast<size_t>(std::max<ssize_t>(n, 0)));
    if (static_cast<int64_t>(text_.size()) > max_bytes_) return TooLarge(name_, max_bytes_);
    if (n < 0 && error == EINTR) return {};
    if (n < 0 && error != EAGAIN) return IoError(name_, "cannot be read", error);
    if (n != 0) had_writer_ = true;
    *ended = n == 0 && had_writer_;
    if (n > 0 || *ended) return {};
    const Result<bool> came = WaitForData(fd_, name_, had_writer_ ? -1 : kWriterPollMs);
    if (!came.ok()) return came.status();
    had_writer_ = had_writer_ || came.value();
    if (!had_writer_ && ++n_waits_ * kWriterPollMs >= kWriterWaitMs)
      return Error(Code::kIo, "%s: a named pipe that nobody writes to", name_.c_str());
    return {};
  }

  static constexpr size_t kBlock = 1 << 16;
  const int fd_;
  const std::string& name_;
  const int64_t max_bytes_;
  std::string text_;
  bool had_writer_ = true;
  int n_waits_ = 0;
};

}  // namespace

void InputFiles::Add(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) == 0) files_.push_back({info.st_dev, info.st_ino, path});
}

void InputFiles::AddFolder(const std::string& folder, const std::string& except) {
  struct stat info;
  if (::stat(folder.c_str(), &info) == 0)
    folders_.emplace_back(Identity{info.st_dev, info.st_ino, folder}, except);
}

Status InputFiles::CheckOutput(const std::string& output) const {
  const Result<std::string> resolved = ResolveOutput(output);
  if (!resolved.ok()) return resolved.status();
  const std::string folder = resolved.value().substr(0, resolved.value().rfind('/') + 1);
  struct stat info;
  if (::stat(resolved.value().c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode)) return Error(Code::kIo, "%s: is a directory", output.c_str());
    if (!S_ISREG(info.st_mode)) return Error(Code::kIo, "%s: is not a regular file", output.c_str());
    KVC_RETURN_IF_ERROR(CheckFolder(folder, resolved.value(), output));
    for (const Identity& input : files_) {
      if (info.st_dev != input.device || info.st_ino != input.inode) continue;
      return Error(Code::kInvalid, "%s: is one of the inputs, %s; the output must be another file",
                   output.c_str(), input.path.c_str());
    }
  }
  if (::access(folder.c_str(), W_OK) != 0) return IoError(output, "its folder cannot be written", errno);
  return {};
}

// An existing file that would be replaced is not one of a source folder.
Status InputFiles::CheckFolder(const std::string& folder, const std::string& resolved,
                               const std::string& output) const {
  struct stat info;
  if (::stat(folder.c_str(), &info) != 0) return IoError(output, "cannot be examined", errno);
  for (const auto& [input, except] : folders_) {
    if (info.st_dev != input.device || info.st_ino != input.inode) continue;
    const Result<std::unique_ptr<SourceFile>> file = SourceFile::Open(resolved);
    std::string start(except.size(), '\0');
    if (file.ok() && file.value()->size() >= static_cast<int64_t>(start.size()) &&
        file.value()->Read(0, &start[0], static_cast<int64_t>(start.size())).ok() && start == except) {
      continue;
    }
    return Error(Code::kInvalid, "%s: is a file of the source %s; the output must be another file",
                 output.c_str(), input.path.c_str());
  }
  return {};
}

Result<std::unique_ptr<SourceFile>> SourceFile::Open(const std::string& path) {
  const Result<int> opened = OpenToRead(path);
  if (!opened.ok()) return opened.status();
  FileDescriptor fd(opened.value());
  struct stat info;
  if (::fstat(fd.get(), &info) != 0) return IoError(path, "cannot be examined", errno);
  if (S_ISDIR(info.st_mode)) return Error(Code::kIo, "%s: is a directory", path.c_str());
  if (!S_ISREG(info.st_mode)) return Error(Code::kIo, "%s: not a regular file", path.c_str());
  return std::unique_ptr<SourceFile>(new SourceFile(std::move(fd), info.st_size, path));
}

Status SourceFile::Read(int64_t offset, void* out, int64_t n_bytes) const {
  char* to = static_cast<char*>(out);
  while (n_bytes > 0) {
    const ssize_t n =
        ::pread(fd_.get(), to, static_cast<size_t>(std::min<int64_t>(n_bytes, 1 << 30)), offset);
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

Result<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes) {
  const Result<int> opened = OpenToRead(path);
  if (!opened.ok()) return opened.status();
  const FileDescriptor fd(opened.value());
  return ReadDescriptor(fd.get(), path, max_bytes);
}

Result<std::string> ReadDescriptor(int fd, const std::string& name, int64_t max_bytes) {
  return WholeReader(fd, name, max_bytes).Read();
}

bool FileExists(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0;
}

bool DirectoryExists(const std::string& path) {
  struct stat info;
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

std::string BaseName(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path;
  const size_t slash = path.find_last_of('/', end);
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return path.substr(begin, end + 1 - begin);
}

}  // namespace kvc
