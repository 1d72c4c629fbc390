// The rows of all lists, and their names. A row is added by a file and a line in a .list; nothing else
// changes.
#pragma once
#include <string_view>
#include <vector>

#include "lib/base/span.h"
#include "lib/compress/method.h"

namespace kvc {

Span<const Method* const> Methods();
Span<const Allocator* const> Allocators();
Span<const Scorer* const> Scorers();
Span<const Reducer* const> Reducers();

template <typename Row>
const Row* FindRow(Span<const Row* const> rows, std::string_view name) {
  for (const Row* row : rows) {
    if (name == row->name) return row;
  }
  return nullptr;
}

template <typename Row>
std::vector<std::string_view> RowNames(Span<const Row* const> rows) {
  std::vector<std::string_view> names;
  for (const Row* row : rows) names.push_back(row->name);
  return names;
}

}  // namespace kvc
