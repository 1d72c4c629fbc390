#include "models/convert/output_file.h"

#include <memory>

namespace kvc {

Status WriteWholeFile(const std::string& path, const std::string& text) {
  Result<std::unique_ptr<AtomicFile>> file = AtomicFile::Create(path);
  if (!file.ok()) return file.status();
  KVC_RETURN_IF_ERROR(file.value()->Write(text.data(), static_cast<int64_t>(text.size())));
  return file.value()->Commit();
}

}  // namespace kvc
