// Declares the rows of methods.list.
#pragma once
#include "lib/compress/method.h"

namespace kvc {

#define KVC_METHOD(row) extern const Method row;
#include "lib/compress/methods.list"
#undef KVC_METHOD

}  // namespace kvc
