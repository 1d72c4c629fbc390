#include "lib/base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace kvc {
namespace {

constexpr int kMostTemporaryNames = 1000;

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

// A rename is on the disk once its folder is. File systems that cannot sync a folder order renames by
// themselves.
void SyncFolder(const std::string& path) {
  const FileDescriptor folder(::open(FolderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) static_cast<void>(::fsync(folder.get()));
}

}  // namespace

Result<std::unique_ptr<AtomicFile>> AtomicFile::Create(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return Error(Code::kInvalid, "a file name is empty or contains a zero byte");
  }
  std::unique_ptr<AtomicFile> file(new AtomicFile());
  file->path_ = path;
  struct stat target;
  const bool exists = ::stat(path.c_str(), &target) == 0;
  if (exists && S_ISDIR(target.st_mode)) return Error(Code::kIo, "%s: is a directory", path.c_str());
  if (exists && !S_ISREG(target.st_mode)) return Error(Code::kIo, "%s: is not a regular file", path.c_str());
  if (exists) {
    char* resolved = ::realpath(path.c_str(), nullptr);
    if (resolved == nullptr) return IoError(path, "cannot resolve", errno);
    file->path_ = resolved;
    std::free(resolved);
  }
  for (int i = 0; i < kMostTemporaryNames; ++i) {
    const std::string folder = FolderOf(file->path_);
    std::string name = Format("%s/.kvc-%ld-%d.tmp", folder.c_str(), static_cast<long>(::getpid()), i);
    file->fd_ = FileDescriptor(::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (file->fd_.get() >= 0) {
      file->temporary_ = std::move(name);  // cannot fail: the file is there
      break;
    }
    if (errno != EEXIST) return IoError(path, "cannot create a file beside it", errno);
  }
  if (file->fd_.get() < 0) return IoError(path, "cannot create a file beside it", EEXIST);
  if (exists && ::fchmod(file->fd_.get(), target.st_mode & 0777) != 0) {
    return IoError(path, "cannot keep its permissions", errno);
  }
  return file;
}

AtomicFile::~AtomicFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

Status AtomicFile::WriteBytes(int64_t offset, const void* data, int64_t n_bytes) {
  if (!failure_.ok()) return failure_;
  if (fd_.get() < 0) return Error(Code::kInternal, "%s: written to after its end", path_.c_str());
  constexpr int64_t kLargestWrite = int64_t{1} << 30;  // some systems refuse more in one call
  const char* bytes = static_cast<const char*>(data);
  for (int64_t done = 0; done < n_bytes;) {
    const size_t wanted = static_cast<size_t>(std::min(n_bytes - done, kLargestWrite));
    const ssize_t n = ::pwrite(fd_.get(), bytes + done, wanted, offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return failure_ = IoError(path_, "cannot write", n < 0 ? errno : ENOSPC);
    done += n;
  }
  return {};
}

Status AtomicFile::Write(const void* data, int64_t n_bytes) {
  KVC_RETURN_IF_ERROR(WriteBytes(size_, data, n_bytes));
  size_ += n_bytes;
  return {};
}

Status AtomicFile::WriteAt(int64_t offset, const void* data, int64_t n_bytes) {
  if (offset < 0 || n_bytes < 0 || offset > size_ || n_bytes > size_ - offset) {
    return Error(Code::kInternal, "%s: overwrites bytes that were not written", path_.c_str());
  }
  return WriteBytes(offset, data, n_bytes);
}

Status AtomicFile::Commit() {
  if (!failure_.ok()) return failure_;
  if (fd_.get() < 0) return Error(Code::kInternal, "%s: written to after its end", path_.c_str());
  if (::fsync(fd_.get()) != 0) return failure_ = IoError(path_, "cannot write", errno);
  if (const int error = fd_.Close()) return failure_ = IoError(path_, "cannot write", error);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    return failure_ = IoError(path_, "cannot replace", errno);
  temporary_.clear();
  SyncFolder(path_);
  return {};
}

}  // namespace kvc
