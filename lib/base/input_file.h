// Regular files that are read: opened, measured, read piece by piece.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "lib/base/byte_source.h"
#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"

namespace kvc {

// kInvalid: a zero byte in the path; kIo with path and reason: it cannot be opened.
Result<FileDescriptor> OpenInput(const std::string& path);
// Bytes of an open file. kIo: it cannot be asked, or is no regular file. `name` goes into messages.
Result<int64_t> InputBytes(int fd, const std::string& name);
// n_bytes from offset. kIo: the file cannot be read, or ends before.
Status ReadExactly(int fd, int64_t offset, void* to, int64_t n_bytes, const std::string& name);

// A whole file as a source, as long as it was when it was opened: one that is cut meanwhile is kIo, where a
// mapping would end the program.
class FileSource final : public ByteSource {
 public:
  FileSource() = default;  // empty
  static Result<FileSource> Open(const std::string& path);
  int64_t size() const override { return size_; }
  Result<Span<const uint8_t>> Next(int64_t most) override;
  void Seek(int64_t offset) override;

 private:
  std::string name_;
  FileDescriptor fd_;
  int64_t size_ = 0, at_ = 0;  // at_: where Next goes on
  std::vector<uint8_t> piece_;
  int64_t piece_begin_ = 0, piece_end_ = 0;  // of the file, what piece_ holds
};

}  // namespace kvc
