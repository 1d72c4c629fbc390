#include "lib/base/input_file.h"

#include <algorithm>
#include <cerrno>

#include "lib/base/file_names.h"
#include "lib/base/io_error.h"

namespace kvc {
namespace {

constexpr int64_t kPiece = 256 << 10;  // bytes read at once

}  // namespace

Result<FileDescriptor> OpenInput(const std::string& path) {
  if (path.find('\0') != std::string::npos) return Error(Code::kInvalid, "a file name contains a zero byte");
  if (path.empty()) return Error(Code::kIo, "cannot open: the file name is empty");
  FileDescriptor fd = OpenFile(path);
  if (fd.get() < 0) return IoError(path, "cannot open", errno);
  return fd;
}

Result<int64_t> InputBytes(int fd, const std::string& name) {
  FileInfo info;
  if (!Describe(fd, &info)) return IoError(name, "cannot read", errno);
  if (info.kind == FileKind::kFolder) return Error(Code::kIo, "%s: is a directory", name.c_str());
  if (info.kind != FileKind::kRegular) return Error(Code::kIo, "%s: is not a regular file", name.c_str());
  return info.bytes;
}

Status ReadExactly(int fd, int64_t offset, void* to, int64_t n_bytes, const std::string& name) {
  for (int64_t done = 0; done < n_bytes;) {
    const int64_t n = ReadAt(fd, static_cast<uint8_t*>(to) + done, n_bytes - done, offset + done);
    if (n < 0) return IoError(name, "cannot read", errno);
    if (n == 0) {
      return Error(Code::kIo, "%s: ended after %lld of %lld bytes while it was read", name.c_str(),
                   static_cast<long long>(offset + done), static_cast<long long>(offset + n_bytes));
    }
    done += n;
  }
  return {};
}

Result<FileSource> FileSource::Open(const std::string& path) {
  Result<FileDescriptor> fd = OpenInput(path);
  if (!fd.ok()) return fd.status();
  const Result<int64_t> bytes = InputBytes(fd.value().get(), path);
  if (!bytes.ok()) return bytes.status();
  FileSource source;
  source.name_ = path, source.fd_ = std::move(fd.value()), source.size_ = bytes.value();
  source.piece_.resize(static_cast<size_t>(std::min(kPiece, bytes.value())));
  return source;
}

void FileSource::Seek(int64_t offset) { at_ = offset; }

Result<Span<const uint8_t>> FileSource::Next(int64_t most) {
  if (at_ < piece_begin_ || at_ >= piece_end_) {
    const int64_t n = std::min(static_cast<int64_t>(piece_.size()), size_ - at_);
    piece_begin_ = piece_end_ = at_;  // nothing, where reading fails
    KVC_RETURN_IF_ERROR(ReadExactly(fd_.get(), at_, piece_.data(), n, name_));
    piece_end_ += n;
  }
  const int64_t n = std::min(most, piece_end_ - at_);
  const Span<const uint8_t> next(piece_.data() + (at_ - piece_begin_), static_cast<size_t>(n));
  at_ += n;
  return next;
}

}  // namespace kvc
