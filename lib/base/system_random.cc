#include "lib/base/system_random.h"

#include <stdlib.h>
#include <unistd.h>
#if defined(__APPLE__)
#include <sys/random.h>
#endif

namespace kvc {

bool SystemRandom(void* to, size_t n_bytes) {
#if defined(__ANDROID__)  // getentropy came with API 28; this one was always there, and does not fail
  ::arc4random_buf(to, n_bytes);
  return true;
#else
  return ::getentropy(to, n_bytes) == 0;
#endif
}

}  // namespace kvc
