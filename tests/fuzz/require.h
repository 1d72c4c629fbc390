// What must hold in a fuzz target, in every build.
#pragma once
#include <cstdio>
#include <cstdlib>

#define KVC_REQUIRE(x) \
  if (!(x)) std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x), std::abort()
