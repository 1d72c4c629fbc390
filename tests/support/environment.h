// Variables of the environment, set for this process.
#pragma once
#include <cstdlib>
#include <string>

namespace kvc::test {

// A null value takes the variable away.
inline void SetVariable(const char* name, const char* value) {
#if defined(_WIN32)
  ::_putenv_s(name, value == nullptr ? "" : value);
#else
  value == nullptr ? ::unsetenv(name) : ::setenv(name, value, 1);
#endif
}

inline int NumberVariable(const char* name, int otherwise) {
  const char* const value = std::getenv(name);
  return value == nullptr ? otherwise : std::atoi(value);
}

// Gives a variable back what it was.
class KeptVariable {
 public:
  explicit KeptVariable(const char* name) : name_(name) {
    if (const char* value = std::getenv(name)) value_ = value, was_set_ = true;
  }
  ~KeptVariable() { SetVariable(name_, was_set_ ? value_.c_str() : nullptr); }
  KeptVariable(const KeptVariable&) = delete;

 private:
  const char* name_;
  std::string value_;
  bool was_set_ = false;
};

}  // namespace kvc::test
