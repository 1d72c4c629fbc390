#include "lib/base/file_descriptor.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace kvc {
namespace {

constexpr int64_t kLargestCall = int64_t{1} << 30;  // some systems refuse more at once

// While it lives, writing beyond what the process may write to a file (RLIMIT_FSIZE) fails with EFBIG and
// nothing else: SIGXFSZ, which comes with it and ends a program that takes no care of it, stays away from
// this thread.
class NoFileSizeSignal {
 public:
  NoFileSizeSignal() {
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    waited_ = Waits();
    blocked_ = pthread_sigmask(SIG_BLOCK, &signal_, &before_) == 0;
  }
  ~NoFileSizeSignal() {
    if (!blocked_) return;
    const int error = errno;
    int which;
    if (!waited_ && Waits()) sigwait(&signal_, &which);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  NoFileSizeSignal(const NoFileSizeSignal&) = delete;
  NoFileSizeSignal& operator=(const NoFileSizeSignal&) = delete;

 private:
  static bool Waits() {
    sigset_t waiting;
    return sigpending(&waiting) == 0 && sigismember(&waiting, SIGXFSZ) == 1;
  }
  sigset_t signal_, before_;
  bool waited_, blocked_;
};

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& o) noexcept {
  std::swap(fd_, o.fd_);
  return *this;
}

int FileDescriptor::Close() {
  if (fd_ < 0) return 0;
  return ::close(Release()) == 0 ? 0 : errno;
}

bool Describe(int fd, FileInfo* out) {
  struct stat info;
  if (::fstat(fd, &info) != 0) return false;
  out->kind = S_ISREG(info.st_mode)   ? FileKind::kRegular
              : S_ISDIR(info.st_mode) ? FileKind::kFolder
                                      : FileKind::kOther;
  out->bytes = info.st_size;
  return true;
}

int64_t ReadAt(int fd, void* to, int64_t n_bytes, int64_t offset) {
  ssize_t n;
  do n = ::pread(fd, to, static_cast<size_t>(std::min(n_bytes, kLargestCall)), offset);
  while (n < 0 && errno == EINTR);
  return n;
}

int64_t WriteAt(int fd, const void* from, int64_t n_bytes, int64_t offset) {
  const NoFileSizeSignal no_signal;
  ssize_t n;
  do n = ::pwrite(fd, from, static_cast<size_t>(std::min(n_bytes, kLargestCall)), offset);
  while (n < 0 && errno == EINTR);
  return n;
}

bool FlushToDisk(int fd) {
#if defined(F_FULLFSYNC)  // macOS: fsync leaves it in the drive's own memory
  if (::fcntl(fd, F_FULLFSYNC) == 0) return true;
#endif
  return ::fsync(fd) == 0;
}

}  // namespace kvc
