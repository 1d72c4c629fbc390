// Text that may be from anywhere, for a terminal.
#pragma once
#include <string>

namespace kvc {

// Control characters and bytes that are no UTF-8 as \xNN: nothing that a file says moves a cursor or changes
// a colour. Line ends stay when asked.
std::string Printable(const std::string& text, bool keep_lines = false);

}  // namespace kvc
