// A range of a file as read-only memory: mapped where the system can, else read into a metered block.
#pragma once
#include <cstdint>
#include <string>

#include "lib/base/memory_meter.h"
#include "lib/base/status.h"

namespace kvc {

// Movable. A mapped file must not be cut while it is in use: reading past its new end raises SIGBUS.
class MappedFile {
 public:
  MappedFile() = default;
  MappedFile(MappedFile&& o) noexcept { Swap(o); }
  MappedFile& operator=(MappedFile&& o) noexcept {
    Swap(o);
    return *this;
  }
  ~MappedFile();

  // The whole file. kIo with path and reason when it is missing, not readable or not a regular file.
  static Result<MappedFile> Open(const std::string& path, MemoryMeter* meter);
  // n_bytes from offset of an open file, 0 = to its end; the file's position does not change and fd stays the
  // caller's. `name` goes into messages. From an offset that is no multiple of 64 it is read, with a warning
  // in the log. kInvalid: offset or n_bytes negative, kIo: outside the file.
  static Result<MappedFile> FromFd(int fd, int64_t offset, int64_t n_bytes, const std::string& name,
                                   MemoryMeter* meter);

  const uint8_t* data() const { return data_; }  // 64-byte aligned; null when empty
  int64_t size() const { return size_; }
  bool mapped() const { return map_ != nullptr; }
  // [offset, offset + n_bytes) is going to be read over and over from one end to the other: large pages,
  // where the system has them for files. A hint, to be given before the first reading.
  void AskForHugePages(int64_t offset, int64_t n_bytes) const;
  // The caller will not soon read [offset, offset + n_bytes) again: the whole pages in it no longer take
  // memory. Returns how many bytes. From a mapping they come back when they are read after all; where the
  // file was read they are undefined from then on: for callers that have their own form of them.
  int64_t Drop(int64_t offset, int64_t n_bytes) const;

 private:
  Status Read(int fd, int64_t offset, const std::string& name, MemoryMeter* meter);
  void Swap(MappedFile& o) noexcept;
  const uint8_t* data_ = nullptr;
  int64_t size_ = 0;
  void* map_ = nullptr;  // page-aligned start and length of the mapping; null when read
  int64_t map_bytes_ = 0;
  Buffer<uint8_t> buffer_;
};

}  // namespace kvc
