// Nothing is dropped: the reference for quality, memory and speed.
#include "lib/compress/methods.h"

namespace kvc {

constexpr Method kMethodFull = {"full",  "Keeps every entry", "methods.md 2.1",        nullptr, nullptr,
                                nullptr, DecodeMode::kGrow,   PositionMode::kOriginal, {}};

}  // namespace kvc
