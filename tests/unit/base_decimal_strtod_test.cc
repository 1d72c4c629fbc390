// The same tests of what reads decimals where the standard library has no from_chars of a double.
#include "tests/unit/base_decimal_test.cc"
