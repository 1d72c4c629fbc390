// Owns an open file descriptor, and what is asked of one. Every call that fails leaves the reason in errno.
#pragma once
#include <cstdint>

#include "lib/base/io_error.h"

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

enum class FileKind { kRegular, kFolder, kOther };
struct FileInfo {
  FileKind kind = FileKind::kOther;
  int64_t bytes = 0;
};
bool Describe(int fd, FileInfo* out);

// At most n_bytes from or to `offset`; how many, 0 at the end, -1: failed. The file's position stays.
int64_t ReadAt(int fd, void* to, int64_t n_bytes, int64_t offset);
int64_t WriteAt(int fd, const void* from, int64_t n_bytes, int64_t offset);

// Everything written is on the disk.
bool FlushToDisk(int fd);

}  // namespace kvc
