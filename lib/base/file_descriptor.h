// Owns an open file descriptor, and how a failed system call is told.
#pragma once
#include <string>

#include "lib/base/status.h"

namespace kvc {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& o) noexcept : fd_(o.Release()) {}
  FileDescriptor& operator=(FileDescriptor&& o) noexcept;
  ~FileDescriptor() { Close(); }
  int get() const { return fd_; }
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  int Close();  // 0, or the errno of close; does nothing when nothing is open

 private:
  int fd_ = -1;
};

// kIo (kMemory for ENOMEM): "<path>: <what>: <text of the errno value>".
Status IoError(const std::string& path, const char* what, int error);

}  // namespace kvc
