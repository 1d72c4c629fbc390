// Numbers in text, whatever the locale of the process.
#pragma once
#include <string_view>

namespace kvc {

// Reads all of text as a finite decimal number, such as -1.5e-3: no sign +, no white space, no hexadecimal.
// False: it is none, or out of the range of a double.
bool ReadDecimal(std::string_view text, double* value);

}  // namespace kvc
