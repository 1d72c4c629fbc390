// Declares the rows of reducers.list.
#pragma once
#include "lib/compress/method.h"

namespace kvc {

#define KVC_REDUCER(row) extern const Reducer row;
#include "lib/compress/reducers.list"
#undef KVC_REDUCER

}  // namespace kvc
