// How a failed call into the system is told.
#pragma once
#include <string>

#include "lib/base/status.h"

namespace kvc {

// kIo (kMemory for ENOMEM): "<path>: <what>: <text of the errno value>".
Status IoError(const std::string& path, const char* what, int error);

}  // namespace kvc
