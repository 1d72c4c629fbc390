#include "lib/base/mapped_file.h"

#include <utility>

#include "lib/base/input_file.h"
#include "lib/base/log.h"
#include "lib/base/system_memory.h"

namespace kvc {
namespace {

constexpr int64_t kAlignment = 64;  // of data(), which a mapping has where the file has it

}  // namespace

MappedFile::~MappedFile() {
  if (map_ != nullptr) UnmapFile(map_, map_bytes_);
}

void MappedFile::Swap(MappedFile& o) noexcept {
  std::swap(data_, o.data_), std::swap(size_, o.size_), std::swap(map_, o.map_),
      std::swap(map_bytes_, o.map_bytes_);
  std::swap(buffer_, o.buffer_);
}

Result<MappedFile> MappedFile::Open(const std::string& path, MemoryMeter* meter) {
  const Result<FileDescriptor> fd = OpenInput(path);
  if (!fd.ok()) return fd.status();
  return FromFd(fd.value().get(), 0, 0, path, meter);
}

Result<MappedFile> MappedFile::FromFd(int fd, int64_t offset, int64_t n_bytes, const std::string& name,
                                      MemoryMeter* meter) {
  if (offset < 0 || n_bytes < 0) {
    return Error(Code::kInvalid, "%s: offset %lld and size %lld must not be negative", name.c_str(),
                 static_cast<long long>(offset), static_cast<long long>(n_bytes));
  }
  const Result<int64_t> measured = InputBytes(fd, name);
  if (!measured.ok()) return measured.status();
  const int64_t file_bytes = measured.value();
  if (offset > file_bytes || n_bytes > file_bytes - offset) {
    return Error(Code::kIo, "%s: %lld bytes from %lld are outside the file, which has %lld", name.c_str(),
                 static_cast<long long>(n_bytes), static_cast<long long>(offset),
                 static_cast<long long>(file_bytes));
  }
  MappedFile file;
  file.size_ = n_bytes > 0 ? n_bytes : file_bytes - offset;
  if (file.size_ == 0) return file;
  const int64_t skip = offset % MapOffsetUnit();
  if (skip % kAlignment != 0) {
    Log(kLogWarning, "%s: %lld bytes are read into memory, as offset %lld is no multiple of %lld: not mapped",
        name.c_str(), static_cast<long long>(file.size_), static_cast<long long>(offset),
        static_cast<long long>(kAlignment));
  } else {
    void* map = MapFile(fd, offset - skip, file.size_ + skip);
    if (map != nullptr) {
      file.map_ = map, file.map_bytes_ = file.size_ + skip;
      file.data_ = static_cast<const uint8_t*>(map) + skip;
      return file;
    }
  }
  KVC_RETURN_IF_ERROR(file.Read(fd, offset, name, meter));
  return file;
}

void MappedFile::AskForHugePages(int64_t offset, int64_t n_bytes) const {
  if (mapped()) kvc::AskForHugePages(const_cast<uint8_t*>(data_) + offset, n_bytes);
}

int64_t MappedFile::Drop(int64_t offset, int64_t n_bytes) const {
  if (data_ == nullptr) return 0;
  const auto page = static_cast<uintptr_t>(PageBytes()), start = reinterpret_cast<uintptr_t>(data_ + offset),
             begin = (start + page - 1) / page * page,
             end = (start + static_cast<uintptr_t>(n_bytes)) / page * page;
  if (begin >= end) return 0;
  // Whole pages of the mapping, or of the buffer: none of them holds anything else.
  void* const at = reinterpret_cast<void*>(begin);
  const int64_t bytes = static_cast<int64_t>(end - begin);
  return (mapped() ? DropFilePages(at, bytes) : DropBlockPages(at, bytes)) ? bytes : 0;
}

Status MappedFile::Read(int fd, int64_t offset, const std::string& name, MemoryMeter* meter) {
  KVC_RETURN_IF_ERROR(buffer_.Allocate(meter, size_, name.c_str()));
  data_ = buffer_.data();
  return ReadExactly(fd, offset, buffer_.data(), size_, name);
}

}  // namespace kvc
