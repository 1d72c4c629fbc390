// Replaces a file all at once: everything goes to a temporary file in the same folder, which takes the
// target's name at the end. Until then, and on every failure, the old target stays as it was and the
// temporary file is removed.
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "lib/base/byte_sink.h"
#include "lib/base/file_names.h"
#include "lib/base/status.h"

namespace kvc {

// For a program that ends without unwinding: removes the temporary files of this process beside `path`.
void RemoveTemporaryFiles(const std::string& path);

class AtomicFile final : public ByteSink {
 public:
  // kIo with path and reason: the folder cannot be written, or the target exists and is no regular file.
  // Links are followed as ResolveOutput tells. The permissions of an existing target are kept
  // (CopyPermissions).
  static Result<std::unique_ptr<AtomicFile>> Create(const std::string& path);
  ~AtomicFile() override;
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;
  // Appends. After a failure (a full disk, say) every further call fails the same way.
  Status Write(const void* data, int64_t n_bytes) override;
  // Overwrites bytes already written; offset + n_bytes must not pass size().
  Status WriteAt(int64_t offset, const void* data, int64_t n_bytes);
  // Forces everything to the disk and renames. Nothing can be written afterwards. Not durable: without the
  // former, for what is worth nothing once the system went down.
  Status Commit(bool durable = true);
  int64_t size() const { return size_; }

 private:
  AtomicFile() = default;
  Status WriteBytes(int64_t offset, const void* data, int64_t n_bytes);
  std::string path_, temporary_;  // temporary_ empty: nothing to remove
  FileDescriptor fd_;
  int64_t size_ = 0;
  Status failure_;  // the first one
};

}  // namespace kvc
