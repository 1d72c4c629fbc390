// The limits of model files as constants. Reader, writer and converter hold to these, and what is laid out by
// a file's numbers may count on them.
//
// Those that code depends on: kMinWeightGroup sizes the scales of quantised activations (MatMulScratchBytes);
// kMaxWeightGroup keeps the sum of a group of products of two bytes within 32 bits.
#pragma once
#include <cstdint>

namespace kvc {

#define KVC_LIMIT(name, value, what) constexpr int32_t name = value;
#include "lib/base/limits.list"
#undef KVC_LIMIT

}  // namespace kvc
