#include "lib/base/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>

namespace kvc {
namespace {

constexpr int kMostTemporaryNames = 1000;
constexpr int kMostLinks = 40;  // as Linux follows them

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

std::string TemporaryName(const std::string& folder, int number) {
  return Format("%s/.kvc-%ld-%d.tmp", folder.c_str(), static_cast<long>(::getpid()), number);
}

// The canonical path of what exists; nothing when it does not, or when a part of the way is not there.
bool Canonical(const std::string& path, std::string* out) {
  struct Free {  // also when there is no memory for the string
    void operator()(char* text) const { std::free(text); }
  };
  const std::unique_ptr<char, Free> resolved(::realpath(path.c_str(), nullptr));
  if (resolved == nullptr) return false;
  *out = resolved.get();
  return true;
}

// Where the link `path` points, seen from where the link is; false: it is no link.
bool LinkTarget(const std::string& path, std::string* out) {
  char target[PATH_MAX];
  const ssize_t n = ::readlink(path.c_str(), target, sizeof(target));
  if (n <= 0 || n == static_cast<ssize_t>(sizeof(target))) return false;
  out->assign(target, static_cast<size_t>(n));
  if (target[0] != '/') *out = FolderOf(path) + "/" + *out;
  return true;
}

// A rename is on the disk once its folder is. File systems that cannot sync a folder order renames by
// themselves.
void SyncFolder(const std::string& path) {
  const FileDescriptor folder(::open(FolderOf(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) static_cast<void>(::fsync(folder.get()));
}

}  // namespace

Result<std::string> ResolveOutput(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return Error(Code::kInvalid, "a file name is empty or contains a zero byte");
  }
  std::string at = path, resolved, target;
  for (int links = 0; !Canonical(at, &resolved); ++links) {
    const int error = errno;
    if (links == kMostLinks) return IoError(path, "cannot resolve", ELOOP);
    if (LinkTarget(at, &target)) {
      at = target;
      continue;
    }
    if (error != ENOENT) return IoError(path, "cannot resolve", error);
    if (at.back() == '/') return Error(Code::kIo, "%s: names a folder that is not there", path.c_str());
    std::string folder;
    if (!Canonical(FolderOf(at), &folder)) return IoError(path, "cannot create a file beside it", errno);
    return (folder == "/" ? "" : folder) + "/" + at.substr(at.rfind('/') + 1);
  }
  return resolved;
}

void RemoveTemporaryFiles(const std::string& path) {
  const Result<std::string> resolved = ResolveOutput(path);
  if (!resolved.ok()) return;
  for (int i = 0; i < kMostTemporaryNames; ++i)
    ::unlink(TemporaryName(FolderOf(resolved.value()), i).c_str());
}

Result<std::unique_ptr<AtomicFile>> AtomicFile::Create(const std::string& path) {
  Result<std::string> resolved = ResolveOutput(path);
  if (!resolved.ok()) return resolved.status();
  std::unique_ptr<AtomicFile> file(new AtomicFile());
  file->path_ = std::move(resolved.value());
  struct stat target;
  const bool exists = ::stat(file->path_.c_str(), &target) == 0;
  if (exists && S_ISDIR(target.st_mode)) return Error(Code::kIo, "%s: is a directory", path.c_str());
  if (exists && !S_ISREG(target.st_mode)) return Error(Code::kIo, "%s: is not a regular file", path.c_str());
  for (int i = 0; i < kMostTemporaryNames; ++i) {
    std::string name = TemporaryName(FolderOf(file->path_), i);
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
