// The rows of all lists, and their names. A row is added by a file and a line in a .list; nothing else
// changes.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/span.h"
#include "lib/compress/method.h"

namespace kvc {

Span<const Method* const> Methods();
Span<const Allocator* const> Allocators();
Span<const Scorer* const> Scorers();
Span<const Reducer* const> Reducers();

// A published method that is not here, for the message that says so.
struct KnownElsewhere {
  const char* name;     // small letters and digits
  const char* what;     // what it does instead
  const char* nearest;  // a policy, to which a budget is added
};
Span<const KnownElsewhere> Elsewhere();
// A method's name as people write it, without what does not matter: capitals, dashes, kvpress's ending
// "Press". Its first 64 characters.
std::string PlainName(std::string_view name);
// By its name, plain or not. Null: unknown.
const KnownElsewhere* FindElsewhere(std::string_view name);

// A method that is here, by a name that others have for it.
struct KnownAs {
  const char *theirs, *ours;  // theirs: small letters and digits
};
Span<const KnownAs> OtherNames();
// What a method is called here that is known by such a name, or by its own but for capitals and dashes. Null:
// none.
const char* NameHere(std::string_view name);

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
