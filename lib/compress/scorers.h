// The scorers there are; scorers.list is the one list.
#pragma once
#include "lib/compress/method.h"

namespace kvc {

#define KVC_SCORER(name) extern const Scorer name;
#include "lib/compress/scorers.list"
#undef KVC_SCORER

}  // namespace kvc
