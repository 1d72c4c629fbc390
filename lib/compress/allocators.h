// Declares the rows of allocators.list.
#pragma once
#include "lib/compress/method.h"

namespace kvc {

#define KVC_ALLOCATOR(row) extern const Allocator row;
#include "lib/compress/allocators.list"
#undef KVC_ALLOCATOR

}  // namespace kvc
