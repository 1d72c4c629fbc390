#include "lib/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lib/base/file_descriptor.h"

namespace kvc {

MappedFile::~MappedFile() {
  if (map_ != nullptr) ::munmap(map_, static_cast<size_t>(map_bytes_));
}

void MappedFile::Swap(MappedFile& o) noexcept {
  std::swap(data_, o.data_), std::swap(size_, o.size_), std::swap(map_, o.map_),
      std::swap(map_bytes_, o.map_bytes_);
  std::swap(buffer_, o.buffer_);
}

Result<MappedFile> MappedFile::Open(const std::string& path, MemoryMeter* meter) {
  if (path.find('\0') != std::string::npos) return Error(Code::kInvalid, "a file name contains a zero byte");
  if (path.empty()) return Error(Code::kIo, "cannot open: the file name is empty");
  // Not blocking: a FIFO without a writer must be refused, not waited for.
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (fd.get() < 0) return IoError(path, "cannot open", errno);
  return FromFd(fd.get(), 0, 0, path, meter);
}

Result<MappedFile> MappedFile::FromFd(int fd, int64_t offset, int64_t n_bytes, const std::string& name,
                                      MemoryMeter* meter) {
  if (offset < 0 || n_bytes < 0) {
    return Error(Code::kInvalid, "%s: offset %lld and size %lld must not be negative", name.c_str(),
                 static_cast<long long>(offset), static_cast<long long>(n_bytes));
  }
  struct stat info;
  if (::fstat(fd, &info) != 0) return IoError(name, "cannot read", errno);
  if (S_ISDIR(info.st_mode)) return Error(Code::kIo, "%s: is a directory", name.c_str());
  if (!S_ISREG(info.st_mode)) return Error(Code::kIo, "%s: is not a regular file", name.c_str());
  const int64_t file_bytes = info.st_size;
  if (offset > file_bytes || n_bytes > file_bytes - offset) {
    return Error(Code::kIo, "%s: %lld bytes from %lld are outside the file, which has %lld", name.c_str(),
                 static_cast<long long>(n_bytes), static_cast<long long>(offset),
                 static_cast<long long>(file_bytes));
  }
  MappedFile file;
  file.size_ = n_bytes > 0 ? n_bytes : file_bytes - offset;
  if (file.size_ == 0) return file;
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const int64_t skip = offset % page;
  if (skip % 64 == 0) {
    void* map =
        ::mmap(nullptr, static_cast<size_t>(file.size_ + skip), PROT_READ, MAP_PRIVATE, fd, offset - skip);
    if (map != MAP_FAILED) {
      file.map_ = map, file.map_bytes_ = file.size_ + skip;
      file.data_ = static_cast<const uint8_t*>(map) + skip;
      return file;
    }
  }
  KVC_RETURN_IF_ERROR(file.Read(fd, offset, name, meter));
  return file;
}

int64_t MappedFile::Drop(int64_t offset, int64_t n_bytes) const {
  if (data_ == nullptr) return 0;
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE)),
             start = reinterpret_cast<uintptr_t>(data_ + offset), begin = (start + page - 1) / page * page,
             end = (start + static_cast<uintptr_t>(n_bytes)) / page * page;
  if (begin >= end) return 0;
  // Whole pages of the mapping, or of the buffer: none of them holds anything else.
  return ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED) == 0
             ? static_cast<int64_t>(end - begin)
             : 0;
}

Status MappedFile::Read(int fd, int64_t offset, const std::string& name, MemoryMeter* meter) {
  KVC_RETURN_IF_ERROR(buffer_.Allocate(meter, size_, name.c_str()));
  data_ = buffer_.data();
  constexpr int64_t kLargestRead = int64_t{1} << 30;  // some systems refuse more in one call
  for (int64_t done = 0; done < size_;) {
    const size_t wanted = static_cast<size_t>(std::min(size_ - done, kLargestRead));
    const ssize_t n = ::pread(fd, buffer_.data() + done, wanted, offset + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return IoError(name, "cannot read", errno);
    if (n == 0) {
      return Error(Code::kIo, "%s: ended after %lld of %lld bytes while it was read", name.c_str(),
                   static_cast<long long>(done), static_cast<long long>(size_));
    }
    done += n;
  }
  return {};
}

}  // namespace kvc
