// Numbers of bytes as people write them.
#pragma once
#include <string_view>

namespace kvc {

// A decimal number (lib/base/decimal.h), perhaps with a unit behind it: B; kB, KB, MB, GB, TB of 1000; KiB,
// MiB, GiB, TiB and K, M, G, T of 1024. White space may be around either. False: text is none. The number may
// have any sign and need not be whole.
bool ReadByteSize(std::string_view text, double* n_bytes);

}  // namespace kvc
