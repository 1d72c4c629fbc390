#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "models/convert/source_file.h"

namespace kvc {
namespace {

constexpr int kWriterWaitMs = 3000, kWriterPollMs = 50;  // for somebody to open a named pipe

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

Result<std::string> ReadDescriptor(int fd, const std::string& name, int64_t max_bytes) {
  return WholeReader(fd, name, max_bytes).Read();
}

}  // namespace kvc
