// The same program as C++11.
#include "tests/abi/header.c"
