// Letters of ASCII, whatever the locale.
#pragma once

namespace kvc {

constexpr char LowerAscii(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

}  // namespace kvc
