// Sizes on command lines, which are written as budget_bytes of a policy is.
#pragma once
#include <string>

namespace kvc {

// lib/base/byte_size.h for the program, which knows nothing below this folder.
bool ReadSize(const std::string& text, double* n_bytes);

}  // namespace kvc
