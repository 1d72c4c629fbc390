// What is not kept is gone.
#include "lib/compress/reducers.h"

namespace kvc {

constexpr Reducer kReducerEvict = {"evict", ReduceKind::kEvict, kNeedsNothing, {}};

}  // namespace kvc
