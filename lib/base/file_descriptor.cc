#include "lib/base/file_descriptor.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace kvc {

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& o) noexcept {
  std::swap(fd_, o.fd_);
  return *this;
}

int FileDescriptor::Close() {
  if (fd_ < 0) return 0;
  return ::close(Release()) == 0 ? 0 : errno;
}

Status IoError(const std::string& path, const char* what, int error) {
  const std::string reason = std::generic_category().message(error);
  return Error(error == ENOMEM ? Code::kMemory : Code::kIo, "%s: %s: %s", path.c_str(), what, reason.c_str());
}

}  // namespace kvc
