#include "lib/base/file_names.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace kvc {
namespace {

constexpr int kMostLinks = 40;  // as Linux follows them

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

FileDescriptor OpenFile(const std::string& path) {
  return FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
}

FileDescriptor CreateNewFile(const std::string& path, bool is_private) {
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  return FileDescriptor(::open(path.c_str(), flags, is_private ? 0600 : 0666));
}

bool CopyPermissions(const std::string& from, int fd) {
  struct stat info;
  return ::stat(from.c_str(), &info) == 0 && ::fchmod(fd, info.st_mode & 0777) == 0;
}

bool MoveFileOver(const std::string& from, const std::string& path) {
  if (::rename(from.c_str(), path.c_str()) != 0) return false;
  SyncFolder(path);
  return true;
}

void RemoveFile(const std::string& path) { ::unlink(path.c_str()); }

bool Identify(const std::string& path, FileIdentity* identity, FileInfo* info) {
  struct stat found;
  if (::stat(path.c_str(), &found) != 0) return false;
  *identity = {static_cast<uint64_t>(found.st_dev), static_cast<uint64_t>(found.st_ino)};
  info->kind = S_ISREG(found.st_mode)   ? FileKind::kRegular
               : S_ISDIR(found.st_mode) ? FileKind::kFolder
                                        : FileKind::kOther;
  info->bytes = found.st_size;
  return true;
}

bool FileExists(const std::string& path) {
  struct stat info;
  return ::lstat(path.c_str(), &info) == 0;
}

bool MayWriteInto(const std::string& folder) { return ::access(folder.c_str(), W_OK) == 0; }

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "." : slash == 0 ? "/" : path.substr(0, slash);
}

int64_t ProcessNumber() { return ::getpid(); }

}  // namespace kvc
