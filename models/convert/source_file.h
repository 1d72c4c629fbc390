// Files that a user or another file names, read within limits. Also: which files were read, so that none of
// them is written over.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/file_names.h"
#include "lib/base/span.h"
#include "lib/base/status.h"

namespace kvc {

// Which files are inputs, by what they are and not by what they are called.
class InputFiles {
 public:
  // A file that does not exist is no input.
  void Add(const std::string& path);
  // Every file in a folder except those that begin with `except`.
  void AddFolder(const std::string& folder, const std::string& except);
  // Before any work: kInvalid when `output` is one of them, by whatever name: through links, other spellings,
  // a second name. kIo when it cannot be written: a folder, a device, or in a folder that is closed or
  // absent.
  Status CheckOutput(const std::string& output) const;

 private:
  Status CheckFolder(const std::string& folder, const std::string& resolved, const std::string& output) const;
  struct Input {
    FileIdentity identity;
    std::string path;
  };
  std::vector<Input> files_;
  std::vector<std::pair<Input, std::string>> folders_;  // folder, and how files may begin
};

// A file that is read from at offsets; nothing of it is held in memory.
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

// kBadModel where a file begins as those that Git LFS leaves in the place of what it has not fetched.
Status RefuseLfsPointer(const SourceFile& file);

// The whole of a file, of a pipe up to its end, or of a device. kUnsupported as soon as it has more than
// max_bytes, so that one without an end costs no more than that. kNotFound: no such file. kIo: cannot be
// read, a folder, or a named pipe that nobody opens for writing within a few seconds.
Result<std::string> ReadWholeFile(const std::string& path, int64_t max_bytes);
// The same from an open descriptor; `name` goes into messages.
Result<std::string> ReadDescriptor(int fd, const std::string& name, int64_t max_bytes);

inline Span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

bool DirectoryExists(const std::string& path);
std::string BaseName(const std::string& path);  // last component without trailing slashes

}  // namespace kvc
