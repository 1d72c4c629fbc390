// Sorts what is short, or sorted once when a file is opened. std::sort of the C++ library that is shipped
// adds 2 to 6 KB of code for every kind of element, this a tenth of it (the library for a phone has to stay
// below 1.5 MB).
#pragma once
#include <algorithm>

namespace kvc {

// In place and without memory of its own, n log n; equal elements end up in any order.
template <typename Iterator, typename Less>
void HeapSort(Iterator begin, Iterator end, Less less) {
  std::make_heap(begin, end, less);
  std::sort_heap(begin, end, less);
}

}  // namespace kvc
