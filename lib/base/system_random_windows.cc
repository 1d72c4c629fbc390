#define _CRT_RAND_S  // rand_s of the C library: the system's generator without a library more to link
#include <cstdlib>
#include <cstring>

#include "lib/base/system_random.h"

namespace kvc {

bool SystemRandom(void* to, size_t n_bytes) {
  unsigned char* bytes = static_cast<unsigned char*>(to);
  for (size_t done = 0; done < n_bytes; done += sizeof(unsigned)) {
    unsigned word = 0;
    if (rand_s(&word) != 0) return false;
    const size_t left = n_bytes - done;
    std::memcpy(bytes + done, &word, left < sizeof word ? left : sizeof word);
  }
  return true;
}

}  // namespace kvc
