// A file that is read from at offsets; nothing of it is held in memory.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/file_descriptor.h"
#include "lib/base/status.h"

namespace kvc {

class SourceFile {
 public:
  // kNotFound: no such file. kIo: cannot be opened, or is no regular file.
  static Result<std::unique_ptr<SourceFile>> Open(const std::string& path);
  // Fills `out`. kBadModel when the file ends before offset + n_bytes, kIo when reading fails.
  Status Read(int64_t offset, void* out, int64_t n_bytes) const;
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }

 private:
  SourceFile(FileDescriptor fd, int64_t size, std::string path)
      : fd_(std::move(fd)), size_(size), path_(std::move(path)) {}
  FileDescriptor fd_;
  int64_t size_;
  std::string path_;
};

// The whole of a small file. kUnsupported when it is larger than max_bytes.
Result<std::vector<uint8_t>> ReadSmallFile(const std::string& path, int64_t max_bytes);
bool FileExists(const std::string& path);  // a regular file
bool DirectoryExists(const std::string& path);
bool SameFile(const std::string& a, const std::string& b);  // both exist and are one file
std::string BaseName(const std::string& path);              // last component without trailing slashes

}  // namespace kvc
