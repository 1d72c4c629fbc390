#include "lib/base/io_error.h"

#include <cerrno>
#include <system_error>

namespace kvc {

Status IoError(const std::string& path, const char* what, int error) {
  const std::string reason = std::generic_category().message(error);
  return Error(error == ENOMEM ? Code::kMemory : Code::kIo, "%s: %s: %s", path.c_str(), what, reason.c_str());
}

}  // namespace kvc
