#include "lib/base/system_random.h"

#include <unistd.h>
#if defined(__APPLE__)
#include <sys/random.h>
#endif

namespace kvc {

bool SystemRandom(void* to, size_t n_bytes) { return ::getentropy(to, n_bytes) == 0; }

}  // namespace kvc
