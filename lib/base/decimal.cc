#include "lib/base/decimal.h"

#include <charconv>
#include <cmath>

#if !defined( \
    __cpp_lib_to_chars)  // libc++ before 20, so every Android NDK up to r28: no from_chars of a double
#include <locale.h>
#include <stdlib.h>

#include <cerrno>
#include <string>
#if defined(__APPLE__)
#include <xlocale.h>
#endif
#endif

namespace kvc {

#if defined(__cpp_lib_to_chars)

bool ReadDecimal(std::string_view text, double* value) {
  const std::from_chars_result end = std::from_chars(text.data(), text.data() + text.size(), *value);
  return end.ec == std::errc() && end.ptr == text.data() + text.size() && std::isfinite(*value);
}

#else

namespace {

double ReadInCLocale(const char* text, char** end) {
#if defined(_WIN32)
  const _locale_t plain = _create_locale(LC_ALL, "C");
  const double value = _strtod_l(text, end, plain);
  _free_locale(plain);
#else
  const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  const double value = strtod_l(text, end, plain);
  freelocale(plain);
#endif
  return value;
}

}  // namespace

bool ReadDecimal(std::string_view text, double* value) {
  const std::string copy(text);
  if (copy.empty() || copy[0] == '+' || copy.find_first_not_of("0123456789+-.eE") != std::string::npos)
    return false;
  char* end = nullptr;
  errno = 0;
  *value = ReadInCLocale(copy.c_str(), &end);
  return errno == 0 && end == copy.c_str() + copy.size() && std::isfinite(*value);
}

#endif

}  // namespace kvc
