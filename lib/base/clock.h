// A clock for how long things take.
#pragma once
#include <chrono>

namespace kvc {

// Of a clock that only goes on.
inline double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace kvc
