#include "lib/compress/method_table.h"

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

template <typename Row, size_t n>
Span<const Row* const> AsSpan(const Row* const (&rows)[n]) {
  return Span<const Row* const>(rows, n);
}

}  // namespace

Span<const Method* const> Methods() { return AsSpan(kMethods); }
Span<const Allocator* const> Allocators() { return AsSpan(kAllocators); }
Span<const Scorer* const> Scorers() { return AsSpan(kScorers); }
Span<const Reducer* const> Reducers() { return AsSpan(kReducers); }

}  // namespace kvc
