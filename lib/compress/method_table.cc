#include "lib/compress/method_table.h"

#include <algorithm>

#include "lib/base/ascii.h"
#include "lib/compress/allocators.h"
#include "lib/compress/methods.h"
#include "lib/compress/reducers.h"
#include "lib/compress/scorers.h"

namespace kvc {
namespace {

constexpr const Method* kMethods[] = {
#define KVC_METHOD(row) &row,
#include "lib/compress/methods.list"
#undef KVC_METHOD
};
constexpr const Allocator* kAllocators[] = {
#define KVC_ALLOCATOR(row) &row,
#include "lib/compress/allocators.list"
#undef KVC_ALLOCATOR
};
constexpr const Scorer* kScorers[] = {
#define KVC_SCORER(row) &row,
#include "lib/compress/scorers.list"
#undef KVC_SCORER
};
constexpr const Reducer* kReducers[] = {
#define KVC_REDUCER(row) &row,
#include "lib/compress/reducers.list"
#undef KVC_REDUCER
};

constexpr KnownElsewhere kElsewhere[] = {
#define KVC_ELSEWHERE(name, what, nearest) {name, what, nearest},
#include "lib/compress/elsewhere.list"
#undef KVC_ELSEWHERE
};

constexpr KnownAs kOtherNames[] = {
#define KVC_KNOWN_AS(theirs, ours) {theirs, ours},
#include "lib/compress/known_as.list"
#undef KVC_KNOWN_AS
};

template <typename Row, size_t n>
Span<const Row> AsSpan(const Row (&rows)[n]) {
  return Span<const Row>(rows, n);
}

}  // namespace

Span<const Method* const> Methods() { return AsSpan(kMethods); }
Span<const Allocator* const> Allocators() { return AsSpan(kAllocators); }
Span<const Scorer* const> Scorers() { return AsSpan(kScorers); }
Span<const Reducer* const> Reducers() { return AsSpan(kReducers); }
Span<const KnownElsewhere> Elsewhere() { return AsSpan(kElsewhere); }
Span<const KnownAs> OtherNames() { return AsSpan(kOtherNames); }

std::string PlainName(std::string_view name) {
  constexpr std::string_view kEnding = "press";
  std::string plain;
  for (const char c : name.substr(0, 64)) {
    if (c != '-' && c != '_' && c != ' ') plain += LowerAscii(c);
  }
  const size_t end = plain.size() - std::min(plain.size(), kEnding.size());
  if (end > 0 && plain.compare(end, std::string::npos, kEnding) == 0) plain.resize(end);
  return plain;
}

const KnownElsewhere* FindElsewhere(std::string_view name) {
  const std::string plain = PlainName(name);
  for (const KnownElsewhere& known : kElsewhere) {
    if (plain == known.name) return &known;
  }
  return nullptr;
}

const char* NameHere(std::string_view name) {
  const std::string plain = PlainName(name);
  for (const KnownAs& known : kOtherNames) {
    if (plain == known.theirs) return known.ours;
  }
  for (const Method* method : kMethods) {
    if (plain == PlainName(method->name)) return method->name;
  }
  return nullptr;
}

}  // namespace kvc
