// What the converter and the kvc program write: through lib/base/atomic_file.h, all at once or not at all.
#pragma once
#include <string>

#include "lib/base/atomic_file.h"
#include "lib/base/status.h"

namespace kvc {

// Replaces a file, or makes it. On any failure the old one stays. Links are followed (ResolveOutput).
Status WriteWholeFile(const std::string& path, const std::string& text);

}  // namespace kvc
