// A range that holds a true value with a stated confidence.
#pragma once

namespace kvc::tool {

struct Interval {
  double low = 0, high = 1;
};

}  // namespace kvc::tool
