#include "lib/base/file_descriptor.h"

#include <io.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lib/base/system_names_windows.h"

namespace kvc {
namespace {

constexpr int64_t kLargestCall = int64_t{1} << 30;

// Reading and writing at an offset moves the position of a file: it is put back.
class KeptPosition {
 public:
  explicit KeptPosition(HANDLE file) : file_(file) {
    known_ = SetFilePointerEx(file, LARGE_INTEGER{}, &before_, FILE_CURRENT) != 0;
  }
  ~KeptPosition() {
    if (known_) SetFilePointerEx(file_, before_, nullptr, FILE_BEGIN);
  }
  KeptPosition(const KeptPosition&) = delete;
  KeptPosition& operator=(const KeptPosition&) = delete;

 private:
  const HANDLE file_;
  LARGE_INTEGER before_ = {};
  bool known_ = false;
};

OVERLAPPED At(int64_t offset) {
  OVERLAPPED at = {};
  at.Offset = static_cast<DWORD>(offset);
  at.OffsetHigh = static_cast<DWORD>(offset >> 32);
  return at;
}

DWORD Wanted(int64_t n_bytes) { return static_cast<DWORD>(std::min(n_bytes, kLargestCall)); }

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& o) noexcept {
  std::swap(fd_, o.fd_);
  return *this;
}

int FileDescriptor::Close() {
  if (fd_ < 0) return 0;
  return ::_close(Release()) == 0 ? 0 : errno;
}

bool Describe(int fd, FileInfo* out) {
  const HANDLE file = HandleOf(fd);
  if (file == nullptr) return false;
  BY_HANDLE_FILE_INFORMATION info = {};
  out->kind = FileKind::kOther, out->bytes = 0;
  if (GetFileType(file) != FILE_TYPE_DISK) return true;
  if (GetFileInformationByHandle(file, &info) == 0) {
    SetErrno(GetLastError());
    return false;
  }
  out->kind =
      (info.dwFileAttributes & FILE_ATTRIBUTE_DIRECTORY) != 0 ? FileKind::kFolder : FileKind::kRegular;
  out->bytes = static_cast<int64_t>(info.nFileSizeHigh) << 32 | info.nFileSizeLow;
  return true;
}

int64_t ReadAt(int fd, void* to, int64_t n_bytes, int64_t offset) {
  const HANDLE file = HandleOf(fd);
  if (file == nullptr) return -1;
  const KeptPosition kept(file);
  OVERLAPPED at = At(offset);
  DWORD n = 0;
  if (ReadFile(file, to, Wanted(n_bytes), &n, &at) != 0) return n;
  if (GetLastError() == ERROR_HANDLE_EOF) return 0;
  SetErrno(GetLastError());
  return -1;
}

int64_t WriteAt(int fd, const void* from, int64_t n_bytes, int64_t offset) {
  const HANDLE file = HandleOf(fd);
  if (file == nullptr) return -1;
  const KeptPosition kept(file);
  OVERLAPPED at = At(offset);
  DWORD n = 0;
  if (WriteFile(file, from, Wanted(n_bytes), &n, &at) != 0) return n;
  SetErrno(GetLastError());
  return -1;
}

bool FlushToDisk(int fd) {
  const HANDLE file = HandleOf(fd);
  if (file == nullptr) return false;
  if (FlushFileBuffers(file) != 0) return true;
  SetErrno(GetLastError());
  return false;
}

}  // namespace kvc
