#include "models/convert/size_text.h"

#include "lib/base/byte_size.h"

namespace kvc {

bool ReadSize(const std::string& text, double* n_bytes) { return ReadByteSize(text, n_bytes); }

}  // namespace kvc
