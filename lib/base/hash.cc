#include "lib/base/hash.h"

#include <new>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvc {
namespace {

XXH3_state_t* State(unsigned char* bytes) { return std::launder(reinterpret_cast<XXH3_state_t*>(bytes)); }

}  // namespace

uint64_t Hash64(const void* data, size_t n_bytes) { return XXH3_64bits(data, n_bytes); }

Hasher64::Hasher64() {
  static_assert(sizeof(XXH3_state_t) <= sizeof(state_) && alignof(XXH3_state_t) <= 64, "the state must fit");
  XXH3_64bits_reset(new (state_) XXH3_state_t);
}

void Hasher64::Update(const void* data, size_t n_bytes) {
  if (n_bytes > 0) XXH3_64bits_update(State(state_), data, n_bytes);
}

uint64_t Hasher64::Digest() const { return XXH3_64bits_digest(State(const_cast<unsigned char*>(state_))); }

}  // namespace kvc
