// Variables of the environment, set for this process.
#pragma once
#include <cstdlib>

namespace kvc::test {

// A null value takes the variable away.
inline void SetVariable(const char* name, const char* value) {
#if defined(_WIN32)
  ::_putenv_s(name, value == nullptr ? "" : value);
#else
  value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
#endif
}

}  // namespace kvc::test
