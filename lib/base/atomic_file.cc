#include "lib/base/atomic_file.h"

#include <cerrno>
#include <chrono>
#include <utility>

#include "lib/base/system_random.h"

namespace kvc {
namespace {

constexpr int kMostTemporaryNames = 1000;

// Drawn once: a folder that several machines or containers share has processes of the same number. Those of
// one machine are told apart without it, children of a fork too.
uint64_t OwnPart() {
  static const uint64_t part = [] {
    uint64_t drawn = 0;
    if (!SystemRandom(&drawn, sizeof drawn))
      drawn = static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
    return drawn;
  }();
  return part;
}

std::string TemporaryName(const std::string& folder, int number) {
  return Format("%s/.kvc-%lld-%016llx-%d.tmp", folder.c_str(), static_cast<long long>(ProcessNumber()),
                static_cast<unsigned long long>(OwnPart()), number);
}

}  // namespace

void RemoveTemporaryFiles(const std::string& path) {
  const Result<std::string> resolved = ResolveOutput(path);
  if (!resolved.ok()) return;
  for (int i = 0; i < kMostTemporaryNames; ++i) RemoveFile(TemporaryName(FolderOf(resolved.value()), i));
}

Result<std::unique_ptr<AtomicFile>> AtomicFile::Create(const std::string& path) {
  Result<std::string> resolved = ResolveOutput(path);
  if (!resolved.ok()) return resolved.status();
  std::unique_ptr<AtomicFile> file(new AtomicFile());
  file->path_ = std::move(resolved.value());
  FileIdentity identity;
  FileInfo target;
  const bool exists = Identify(file->path_, &identity, &target);
  if (exists && target.kind == FileKind::kFolder) return Error(Code::kIo, "%s: is a directory", path.c_str());
  if (exists && target.kind != FileKind::kRegular)
    return Error(Code::kIo, "%s: is not a regular file", path.c_str());
  for (int i = 0; i < kMostTemporaryNames; ++i) {
    std::string name = TemporaryName(FolderOf(file->path_), i);
    file->fd_ = CreateNewFile(name, exists);  // what takes the place of a secret is one
    if (file->fd_.get() >= 0) {
      file->temporary_ = std::move(name);  // cannot fail: the file is there
      break;
    }
    if (errno != EEXIST) return IoError(path, "cannot create a file beside it", errno);
  }
  if (file->fd_.get() < 0) return IoError(path, "cannot create a file beside it", EEXIST);
  if (exists && !CopyPermissions(file->path_, file->fd_.get()))
    return IoError(path, "cannot keep its permissions", errno);
  return file;
}

AtomicFile::~AtomicFile() {
  if (temporary_.empty()) return;
  fd_.Close();  // Windows removes no open file
  RemoveFile(temporary_);
}

Status AtomicFile::WriteBytes(int64_t offset, const void* data, int64_t n_bytes) {
  if (!failure_.ok()) return failure_;
  if (fd_.get() < 0) return Error(Code::kInternal, "%s: written to after its end", path_.c_str());
  const char* bytes = static_cast<const char*>(data);
  for (int64_t done = 0; done < n_bytes;) {
    const int64_t n = kvc::WriteAt(fd_.get(), bytes + done, n_bytes - done, offset + done);
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

Status AtomicFile::Commit(bool durable) {
  if (!failure_.ok()) return failure_;
  if (fd_.get() < 0) return Error(Code::kInternal, "%s: written to after its end", path_.c_str());
  if (durable && !FlushToDisk(fd_.get())) return failure_ = IoError(path_, "cannot write", errno);
  if (const int error = fd_.Close()) return failure_ = IoError(path_, "cannot write", error);
  if (!MoveFileOver(temporary_, path_)) return failure_ = IoError(path_, "cannot replace", errno);
  temporary_.clear();
  return {};
}

}  // namespace kvc
