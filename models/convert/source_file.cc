#include "models/convert/source_file.h"

#include <cerrno>

#include "lib/base/atomic_file.h"

namespace kvc {
namespace {

Result<FileDescriptor> OpenToRead(const std::string& path) {
  if (path.empty() || path.find('\0') != std::string::npos)
    return Error(Code::kInvalid, "a file name is empty or contains a zero byte");
  FileDescriptor fd = OpenFile(path);
  if (fd.get() >= 0) return fd;
  const int error = errno;
  if (error == ENOENT && FileExists(path))
    return Error(Code::kNotFound, "%s: a link to a file that is not there", path.c_str());
  if (error == ENOENT) return Error(Code::kNotFound, "%s: there is no such file", path.c_str());
  return IoError(path, "cannot be opened", error);
}

}  // namespace

void InputFiles::Add(const std::string& path) {
  FileIdentity identity;
  FileInfo info;
  if (Identify(path, &identity, &info)) files_.push_back({identity, path});
}

void InputFiles::AddFolder(const std::string& folder, const std::string& except) {
  FileIdentity identity;
  FileInfo info;
  if (Identify(folder, &identity, &info)) folders_.emplace_back(Input{identity, folder}, except);
}

Status InputFiles::CheckOutput(const std::string& output) const {
  const Result<std::string> resolved = ResolveOutput(output);
  if (!resolved.ok()) return resolved.status();
  const std::string folder = resolved.value().substr(0, resolved.value().rfind('/') + 1);
  FileIdentity identity;
  FileInfo info;
  if (Identify(resolved.value(), &identity, &info)) {
    if (info.kind == FileKind::kFolder) return Error(Code::kIo, "%s: is a directory", output.c_str());
    if (info.kind != FileKind::kRegular) return Error(Code::kIo, "%s: is not a regular file", output.c_str());
    KVC_RETURN_IF_ERROR(CheckFolder(folder, resolved.value(), output));
    for (const Input& input : files_) {
      if (!(identity == input.identity)) continue;
      return Error(Code::kInvalid, "%s: is one of the inputs, %s; the output must be another file",
                   output.c_str(), input.path.c_str());
    }
  }
  if (!MayWriteInto(folder)) return IoError(output, "its folder cannot be written", errno);
  return {};
}

// An existing file that would be replaced is not one of a source folder.
Status InputFiles::CheckFolder(const std::string& folder, const std::string& resolved,
                               const std::string& output) const {
  FileIdentity identity;
  FileInfo info;
  if (!Identify(folder, &identity, &info)) return IoError(output, "cannot be examined", errno);
  for (const auto& [input, except] : folders_) {
    if (!(identity == input.identity)) continue;
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
  Result<FileDescriptor> fd = OpenToRead(path);
  if (!fd.ok()) return fd.status();
  FileInfo info;
  if (!Describe(fd.value().get(), &info)) return IoError(path, "cannot be examined", errno);
  if (info.kind == FileKind::kFolder) return Error(Code::kIo, "%s: is a directory", path.c_str());
  if (info.kind != FileKind::kRegular) return Error(Code::kIo, "%s: not a regular file", path.c_str());
  return std::unique_ptr<SourceFile>(new SourceFile(std::move(fd.value()), info.bytes, path));
}

Status SourceFile::Read(int64_t offset, void* out, int64_t n_bytes) const {
  char* to = static_cast<char*>(out);
  while (n_bytes > 0) {
    const int64_t n = ReadAt(fd_.get(), to, n_bytes, offset);
    if (n < 0) return IoError(path_, "cannot be read", errno);
    if (n == 0) {
      return Error(Code::kBadModel, "%s: truncated: the file ends at byte %lld, %lld more are needed",
                   path_.c_str(), static_cast<long long>(offset), static_cast<long long>(n_bytes));
    }
    to += n, offset += n, n_bytes -= n;
  }
  return {};
}

Status RefuseLfsPointer(const SourceFile& file) {
  constexpr std::string_view kBegins = "version ";
  char start[kBegins.size()];
  if (file.size() < static_cast<int64_t>(sizeof start)) return {};
  KVC_RETURN_IF_ERROR(file.Read(0, start, sizeof start));
  if (std::string_view(start, sizeof start) != kBegins) return {};
  return Error(Code::kBadModel, "%s: is a pointer of Git LFS, not the file: git lfs pull fetches it",
               file.path().c_str());
}

Result<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes) {
  const Result<FileDescriptor> fd = OpenToRead(path);
  if (!fd.ok()) return fd.status();
  return ReadDescriptor(fd.value().get(), path, max_bytes);
}

bool DirectoryExists(const std::string& path) {
  FileIdentity identity;
  FileInfo info;
  return Identify(path, &identity, &info) && info.kind == FileKind::kFolder;
}

std::string BaseName(const std::string& path) {
  const size_t end = path.find_last_not_of('/');
  if (end == std::string::npos) return path;
  const size_t slash = path.find_last_of('/', end);
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return path.substr(begin, end + 1 - begin);
}

}  // namespace kvc
