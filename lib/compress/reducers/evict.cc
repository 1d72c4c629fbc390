// What is not kept is gone.
#include "lib/compress/reducers.h"

namespace kvc {

constexpr Reducer kReducerEvict = {"evict", {}};

}  // namespace kvc
