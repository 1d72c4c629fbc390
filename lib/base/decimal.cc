#include "lib/base/decimal.h"

#include <charconv>
#include <cmath>

// KVC_NO_FROM_CHARS: a test of what stands in for it. libc++ before 20, so every Android NDK up to r28, has
// no from_chars of a double.
#if !defined(__cpp_lib_to_chars) && !defined(KVC_NO_FROM_CHARS)
#define KVC_NO_FROM_CHARS
#endif

#if defined(KVC_NO_FROM_CHARS)
#include <locale.h>
#include <stdlib.h>

#include <cerrno>
#include <string>
#if defined(__APPLE__)
#include <xlocale.h>
#endif
#endif

namespace kvc {

#if !defined(KVC_NO_FROM_CHARS)

bool ReadDecimal(std::string_view text, double* value) {
  const std::from_chars_result end = std::from_chars(text.data(), text.data() + text.size(), *value);
  return end.ec == std::errc() && end.ptr == text.data() + text.size() && std::isfinite(*value);
}

#else

namespace {

// Without memory for the locale: nothing is read.
double ReadInCLocale(const char* text, char** end) {
#if defined(_WIN32)
  const _locale_t plain = _create_locale(LC_ALL, "C");
  if (plain == nullptr) return 0;
  const double value = _strtod_l(text, end, plain);
  _free_locale(plain);
#else
  const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  if (plain == nullptr) return 0;
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
  const bool fits = errno == 0 || (errno == ERANGE && *value != 0);  // of numbers that are not normal, too
  return fits && end == copy.c_str() + copy.size() && std::isfinite(*value);
}

#endif

}  // namespace kvc
